"""Files of named tensors: safetensors (https://github.com/huggingface/safetensors) and numpy's .npz.

A safetensors file is the length of a JSON header (8 bytes, little-endian), the header
``{name: {"dtype", "shape", "data_offsets": [begin, end]}}``, and the bytes of the tensors. Offsets count from the end of
the header; tensors cover the rest of the file without gaps or overlaps.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import FileError

Arrays = dict[str, np.ndarray[Any, Any]]

_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_HEADER_LIMIT = 100_000_000  # bytes; the limit of the format's own reader


def write(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors by name: as .npz if the path ends so, else as safetensors. The write is atomic.

    Raises:
        FileError: for an element type that the format does not have, and for a file that cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    try:
        with open(temporary, "wb") as file:
            if target.suffix == ".npz":
                np.savez(file, **arrays)  # type: ignore[arg-type,unused-ignore]
            else:
                _write_safetensors(file, arrays, metadata, target)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(f"'{target}' cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, str]]:
    """The tensors of a file that `write` or another program wrote, and its metadata.

    bfloat16, a type that numpy does not have, becomes float32 with the same values.

    Raises:
        FileError: for a file that is missing, cut off or not what it should be; the message names the tensor.
    """
    try:
        if Path(path).suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}, {}
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise FileError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise FileError(f"'{path}' is no .npz file of arrays: {error}") from error
    return _parse(str(path), data)


def _write_safetensors(file: Any, arrays: Arrays, metadata: Mapping[str, str] | None, target: Path) -> None:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, array in arrays.items():
        if array.dtype.name not in _CODES or name == "__metadata__":
            raise FileError(f"'{target}': safetensors cannot hold '{name}' of type {array.dtype}")
        header[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).tobytes())


def _parse(path: str, data: np.ndarray[Any, Any]) -> tuple[Arrays, dict[str, str]]:
    length = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or length > min(len(data) - 8, _HEADER_LIMIT):
        raise FileError(f"'{path}' is cut off or no safetensors file: its header has {length} bytes, the file {len(data)}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes().decode())
        metadata = header.pop("__metadata__", {})
        rows = sorted(((_row(name, entry), name) for name, entry in header.items()), key=lambda row: row[0][2:])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileError(f"'{path}' has a header that is not one of safetensors: {error}") from error
    body, position = data[8 + length :], 0
    arrays: Arrays = {}
    for (code, shape, begin, end), name in rows:
        expected = math.prod(shape) * _item_size(path, name, code)
        if begin != position:
            raise FileError(f"'{path}': '{name}' begins at byte {begin}, the tensor before it ends at {position}")
        if end - begin != expected:
            raise FileError(f"'{path}': '{name}' of shape {shape} takes {expected} bytes, not {end - begin}")
        if end > len(body):
            raise FileError(f"'{path}' is cut off: '{name}' ends at byte {end}, the tensors at {len(body)}")
        arrays[name] = _array(code, shape, body[begin:end])
        position = end
    if position != len(body):
        raise FileError(f"'{path}' has {len(body) - position} bytes after its last tensor")
    return {name: arrays[name] for name in header}, metadata


def _row(name: str, entry: dict[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"the shape or the offsets of '{name}' are no sizes")
    return str(entry["dtype"]), shape, begin, end


def _item_size(path: str, name: str, code: str) -> int:
    if code not in _NAMES:
        raise FileError(f"'{path}': '{name}' has the type {code}; supported are {', '.join(_NAMES)}")
    return 2 if code == "BF16" else np.dtype(_NAMES[code]).itemsize


def _array(code: str, shape: tuple[int, ...], raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if code == "BF16":  # the upper half of a float32
        bits = np.frombuffer(raw.tobytes(), "<u2").astype(np.uint32) << 16
        wide: np.ndarray[Any, Any] = bits.view(np.float32).reshape(shape)
        return wide
    array: np.ndarray[Any, Any] = np.frombuffer(raw.tobytes(), _NAMES[code]).reshape(shape).copy()
    return array
