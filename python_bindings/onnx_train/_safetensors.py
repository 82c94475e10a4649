"""Files of named tensors: safetensors, which the library reads and writes, and numpy's .npz."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import _core
from ._arrays import as_dense
from ._errors import FileError

Arrays = dict[str, np.ndarray[Any, Any]]


def write(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors by name: as .npz if the path ends so, else as safetensors. The write is atomic.

    Raises:
        FileError: for an element type that the format does not have, and for a file that cannot be written.
    """
    arrays = {name: as_dense(value, name) for name, value in tensors.items()}
    if Path(path).suffix == ".npz":
        _write_npz(Path(path), arrays)
    else:
        _core.save_safetensors(os.fspath(path), arrays, list((metadata or {}).items()))


def read(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, str]]:
    """The tensors of a file that `write` or another program wrote, and its metadata.

    bfloat16, a type that numpy does not have, becomes float32 with the same values.

    Raises:
        FileError: for a file that is missing, cut off or not what it should be; the message names the tensor.
    """
    if Path(path).suffix != ".npz":
        file = _core.open_safetensors(os.fspath(path))
        return file.arrays(), file.metadata()
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}, {}
    except OSError as error:
        raise FileError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise FileError(f"'{path}' is no .npz file of arrays: {error}") from error


def _write_npz(target: Path, arrays: Arrays) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type,unused-ignore]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(f"'{target}' cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
