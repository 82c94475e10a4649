"""Conversion of what users pass as arrays. Arrays that fit are never copied; the module _core reads them in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._device_array import DeviceArray, device_name
from ._errors import DataError


_ON_HOST = (1, 3, 13)  # types of devices whose memory numpy reads: the CPU, and CUDA's pinned and managed memory


def on_device(value: Any, device: tuple[int, int], stream: int | None, name: str) -> Any:
    """A DLPack capsule of `value` if its memory is on `device`, which is DLPack's type and number, else None.

    Work on `stream`, where the device has one, waits for what writes the memory.

    Raises:
        DataError: for an array that does not export its memory; the message has `name`.
    """
    if _device_of(value) != device:
        return None
    detach = getattr(value, "detach", None)  # a tensor that requires a gradient does not export its memory
    try:
        return (value if detach is None else detach()).__dlpack__(stream=stream)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise DataError(f"'{name}' does not export its memory on {device_name(device)}: {error}") from error


def _device_of(value: Any) -> tuple[int, int] | None:
    where = getattr(value, "__dlpack_device__", None)
    if where is None:
        return None
    kind, number = where()
    return int(kind), int(number)


def as_numpy(value: Any) -> np.ndarray[Any, Any]:
    """`value` as a numpy array; shares memory with arrays of any library that exports DLPack or buffers."""
    if isinstance(value, np.ndarray):
        return value
    detach = getattr(value, "detach", None)  # a tensor that requires a gradient does not export its memory
    if detach is not None:
        value = detach()
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # which numpy has no type for
        value = value.float()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        return np.from_dlpack(value)
    return np.asarray(value)


def as_input(value: Any, dtype: str, name: str) -> np.ndarray[Any, Any]:
    """`value` as a dense array in row-major order with elements of `dtype`.

    Numbers and lists take the type that the model expects. Arrays are converted where numpy calls that casting "same
    kind" (float64 to float32, int32 to int64, integers to floats); this makes a copy.

    Raises:
        DataError: for anything else; the message names the input, its type and the expected one.
    """
    array = _read(value, name)
    expected = np.dtype(dtype)
    is_number_or_list = not hasattr(value, "dtype")
    if not np.can_cast(array.dtype, expected, casting="same_kind") and not (
        is_number_or_list and array.dtype.kind in "iuf" and expected.kind in "iu" and _is_exact(array, expected)
    ):
        raise DataError(f"'{name}' is {array.dtype}; it must be {expected}", "OT5003")
    return np.asarray(array, expected, order="C")


def as_dense(value: Any, name: str) -> np.ndarray[Any, Any]:
    """`value` as a dense array in row-major order with elements of its own type.

    Raises:
        DataError: for what is no array; the message has `name`.
    """
    return np.asarray(value.numpy() if isinstance(value, DeviceArray) else _read(value, name), order="C")


def _read(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        return as_numpy(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        device = _device_of(value)
        if device is not None and device[0] not in _ON_HOST:
            text = f"'{name}' is on {device_name(device)}, where it cannot be read here; copy it to the host first"
            raise DataError(text) from error
        raise DataError(f"'{name}' cannot be read as an array: {error}") from error


def _is_exact(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    return bool(np.all(array.astype(dtype) == array))
