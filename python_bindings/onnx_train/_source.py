"""Data of `fit` in the form that the library takes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from . import _core
from ._arrays import as_dense, as_numpy
from ._errors import DataError, UsageError, warn
from ._session import Session, _by_name, used
from ._tables import as_file, is_table

if TYPE_CHECKING:
    from ._fit import _Reports

Data = Union[str, os.PathLike[str], Mapping[str, Any], Sequence[Any], Iterable[Any]]


_ONE_EPOCH = (
    "data is an iterator, which gives one epoch: give steps in the place of epochs, or an object that can be iterated "
    "again, such as a DataLoader or one whose __iter__ begins anew"
)


def expect_data(name: str, data: object) -> None:
    """Raises UsageError for what is no data at all; `name` is the argument's."""
    if data is None:
        raise UsageError(f"{name} is missing: give arrays by name, a path, a table or an iterable of batches")
    has_batches = hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    if not has_batches and not isinstance(data, os.PathLike) and not is_table(data):
        kind = type(data).__name__
        raise UsageError(f"{name} is of type {kind}: give arrays by name, a path, a table or an iterable of batches")


class Source:
    """Data in the form that the library takes: files, whole arrays, or batches of an iterable of the user's."""

    def __init__(
        self, session: Session, entry: str, data: Data, is_scaled: bool, reading: list[tuple[str, str]] | None = None
    ) -> None:
        self._entry, self._known = entry, session._entry(entry)
        self._data: Any = data
        self._ports = [port for port in session.inputs(entry) if port.default is None]
        self._files: _core.Dataset | None = None
        self._arrays: dict[str, Any] | None = None
        self._looked_at = is_scaled
        self.samples = 0
        if isinstance(data, (str, os.PathLike)) or is_table(data):
            with as_file(data) as file:
                self._files = session._core.open_data(file, entry, reading or [])
            self.samples = self._files.size(0)[0]
        else:
            self._arrays = _arrays_of(data, [port.name for port in self._ports])
            if self._arrays is not None:
                self._arrays = used(entry, self._known.inputs, self._known.data, self._arrays)
        if self._arrays is not None:
            self._look_at(self._arrays)
            self.samples = _common_length(self._arrays, lambda name: session._core.sample_axis(entry, name))
        self._iterator: Iterator[Any] = iter(())
        self._save: Callable[[], None] | None = None

    def batch_size(self, wanted: int | None) -> int:
        """0: what the library finds usual for files."""
        if self._files is not None:
            return wanted or 0
        wanted = wanted or 32
        return wanted if self._arrays is None else min(wanted, self.samples)

    def num_batches(self, batch_size: int) -> int:
        """Of an epoch; 0 where the iterable does not say."""
        if self._files is not None:
            return self._files.size(batch_size)[1]
        if self._arrays is not None:
            return math.ceil(self.samples / batch_size)
        try:
            return len(self._data) if isinstance(self._data, Sized) else 0
        except TypeError:  # a DataLoader of a dataset without a length
            return 0

    def save_epochs(self, reports: _Reports, save: Callable[[], None], steps_per_epoch: int) -> None:
        """Arranges that `save` is called after each epoch."""
        if self.samples == 0:
            self._save = save
        else:
            reports.save, reports.save_every = save, steps_per_epoch

    def expect_epochs(self, epochs: int) -> None:
        """Raises UsageError for an iterator that is to give several: it may be endless, and never come to the second."""
        if epochs > 1 and isinstance(self._data, Iterator):
            raise UsageError(_ONE_EPOCH)

    def core_files(self) -> _core.Dataset | None:
        """The files, where data are files."""
        return self._files

    def core_data(self) -> Any:
        """What the module _core takes."""
        if self._files is not None:
            return self._files
        return self._arrays if self._arrays is not None else (self._begin, self._next, self.num_batches(1))

    def _begin(self, epoch: int) -> None:
        if epoch > 0 and self._save is not None:
            self._save()
        iterator = iter(self._data)
        if iterator is self._data and epoch > 0:
            raise UsageError(_ONE_EPOCH)
        self._iterator = iterator

    def _next(self) -> dict[str, Any] | None:
        try:
            batch = next(self._iterator)
        except StopIteration:
            return None
        arrays = _by_name(self._entry, self._known, (batch,))
        self._look_at(arrays)
        return arrays

    def _look_at(self, arrays: Mapping[str, Any]) -> None:
        """Warns of pictures of bytes in the first arrays: 0 to 255 are no numbers to train a network with."""
        if self._looked_at:
            return
        self._looked_at = True
        for port in self._ports:
            array = arrays.get(port.name)
            if str(getattr(array, "dtype", "")).rpartition(".")[2] != "uint8" or np.dtype(port.dtype).kind != "f":
                continue
            array = as_numpy(array)
            if array.size > 0 and array.max() > 1:
                warn(
                    f"fit: '{port.name}' holds uint8, up to {array.max()}, and goes to a float input as it is: if the model expects "
                    f"0 to 1, divide it by np.float32(255); if it takes bytes, give it as float32"
                )


def _arrays_of(data: Any, names: list[str]) -> dict[str, Any] | None:
    if isinstance(data, tuple) and data and all(hasattr(array, "shape") for array in data):
        if len(data) > len(names):
            raise UsageError(f"the model takes {len(names)} arrays ({', '.join(names)}), not {len(data)}")
        data = dict(zip(names, data))
    if isinstance(data, Mapping):
        return {name: as_dense(array, name) for name, array in data.items()}
    return None


def _common_length(arrays: dict[str, Any], axis_of: Callable[[str], int]) -> int:
    axes = {name: axis_of(name) for name in arrays}
    lengths = {name: array.shape[axes[name]] if array.ndim > axes[name] else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(f"arrays of data need one number of samples, at least 1; they have {lengths}", "OT4005")
    return next(iter(lengths.values()))
