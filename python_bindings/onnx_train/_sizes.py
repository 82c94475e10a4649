"""Models for the sizes of a batch, where a rule needs sizes that the model leaves open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._arrays import as_dense
from ._errors import UnsupportedError, warn
from ._model import _as_model
from ._session import Session

T = TypeVar("T")

_KEPT = 8  # how many sets of sizes have something made for them at the same time


def for_sizes(model: Any, make: Callable[[str | None], T]) -> Callable[[Any], T]:
    """What serves a batch: `make(None)` or, where that is not supported and the model leaves sizes open besides the number
    of samples, `make("SAMPLES=512")` for the sizes of that batch, as the option ``dim`` takes them. The last few are kept.
    If the sizes do not help, the first error stands.
    """
    try:
        one = make(None)
        return lambda batch: one
    except UnsupportedError as error:
        names = _inputs_of_open_sizes(model)
        if not names:
            raise
        reason = str(error)
    made: dict[str, T] = {}
    lock = threading.Lock()

    def of(batch: Any) -> T:
        arrays = dict(batch) if isinstance(batch, Mapping) else dict(zip(names, batch))
        given = {name: as_dense(arrays[name], name) for name in names if name in arrays}
        sizes = _as_model(model)._core.sizes(given)
        with lock:
            if sizes not in made:
                try:
                    found = make(sizes) if sizes else None
                except UnsupportedError:
                    found = None
                if found is None:
                    raise UnsupportedError(reason)
                warn(f"built for the sizes of the batch, {sizes}; as exported: {reason}")
                made[sizes] = found
            made[sizes] = made.pop(sizes)  # the last one is the latest
            if len(made) > _KEPT:
                del made[next(iter(made))]
            return made[sizes]

    return of


def _inputs_of_open_sizes(model: Any) -> list[str]:
    """The names of all inputs, in order, if a size of one is open besides the number of samples; else none."""
    session = Session(model)
    ports = [port for port in session.inputs("predict") if port.default is None]
    for port in ports:
        samples = session._core.sample_axis("predict", port.name)
        if any(size < 0 for axis, size in enumerate(port.shape or ()) if axis != samples):
            return [port.name for port in ports]
    return []
