"""Conversion of what users pass as arrays. Arrays that fit are never copied; the module _core reads them in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._errors import DataError


def as_numpy(value: Any) -> np.ndarray[Any, Any]:
    """`value` as a numpy array; shares memory with arrays of any library that exports DLPack or buffers."""
    if isinstance(value, np.ndarray):
        return value
    detach = getattr(value, "detach", None)  # a tensor that requires a gradient does not export its memory
    if detach is not None:
        value = detach()
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
        raise DataError(f"'{name}' is {array.dtype}; it must be {expected}")
    return np.asarray(array, expected, order="C")


def as_dense(value: Any, name: str) -> np.ndarray[Any, Any]:
    """`value` as a dense array in row-major order with elements of its own type.

    Raises:
        DataError: for what is no array; the message has `name`.
    """
    return np.asarray(_read(value, name), order="C")


def _read(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        return as_numpy(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise DataError(f"'{name}' cannot be read as an array: {error}") from error


def _is_exact(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    return bool(np.all(array.astype(dtype) == array))
