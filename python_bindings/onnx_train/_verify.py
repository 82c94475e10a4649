"""A check of gradients by differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._errors import UsageError
from ._grad import Objective, objectives
from ._model import Patterns

if TYPE_CHECKING:
    from .losses import Loss


class Verification(NamedTuple):
    """What `verify` found; true if all gradients are right.

    Attributes:
        errors: by weight and float input, |derivative - difference| / max(|derivative|, |difference|, 1e-6 of the largest
            derivative).
        tolerance: the largest error of a right gradient.

    >>> import numpy as np
    >>> import onnx_train
    >>> batch = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> found = onnx_train.verify("mlp.onnx", "cross_entropy", batch)
    >>> bool(found), max(found.errors.values()) < found.tolerance
    (True, True)
    """

    errors: dict[str, float]
    tolerance: float

    def __bool__(self) -> bool:
        return all(error <= self.tolerance for error in self.errors.values())


def verify(
    model: Any,
    loss: str | Loss | Any = None,
    batch: Any = None,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    seed: int = 0,
    tolerance: float = 1e-6,
    threads: int | None = None,
) -> Verification:
    """Compares gradients in float64 with central differences, along a random direction for each weight and float input.

    The difference is one of 4th order with steps of 1e-3 of a unit direction. Next to a kink, such as zero of a ReLU,
    a right gradient may fail; the command ``onnx-train verify`` tells these apart.

    Args:
        model, loss, train, freeze, threads: as `value_and_grad` takes them.
        batch: a mapping of names to arrays, or a tuple, likewise.
        seed: of the directions.
        tolerance: the largest relative error of a right gradient.

    Raises:
        UnsupportedError: for a model that cannot be differentiated.

    >>> import numpy as np
    >>> import onnx_train
    >>> batch = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> bool(onnx_train.verify("mlp.onnx", "cross_entropy", batch))
    True
    """
    if batch is None:
        objective = Objective(model, loss, train, freeze, "frozen", "float64", threads)
        names = ", ".join(f"'{name}': ..." for name in objective.names)
        raise UsageError(f"verify needs a batch: verify(model, loss, {{{names}}})")
    function = objectives(model, loss, train, freeze, "frozen", "float64", threads)(batch)
    state, arrays = function.state, function.batch(batch)
    _, gradients = function(arrays)
    rng = np.random.default_rng(seed)
    pairs = {}
    for name, gradient in gradients.items():
        direction = rng.normal(size=np.shape(gradient))
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        value = np.asarray(arrays[name] if name in arrays else state[name], np.float64)

        def at(distance: float) -> float:
            moved = {name: value + distance * direction}  # noqa: B023  (called in this turn of the loop)
            return function({**arrays, **moved} if name in arrays else arrays, None if name in arrays else moved)[0]  # noqa: B023

        h = 1e-3
        difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
        pairs[name] = float(np.sum(gradient * direction)), difference
    floor = 1e-6 * max((abs(derivative) for derivative, _ in pairs.values()), default=0.0) or 1.0
    errors = {name: abs(a - b) / max(abs(a), abs(b), floor) for name, (a, b) in pairs.items()}
    return Verification(errors, tolerance)
