"""Pictures of a program as files that the library reads: with the model's preprocessing, as `--inputs` has them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._errors import UsageError

if TYPE_CHECKING:
    import numpy as np


def paths_of(value: Any) -> list[str] | None:
    """The paths of a list of files; None for anything else."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, (str, os.PathLike)) for each in value):
        return None
    return [os.path.abspath(os.fspath(each)) for each in value]


def images_of(value: Any) -> list[Any] | None:
    """The images of Pillow, of one or of a list; None for anything else."""
    images = list(value) if isinstance(value, (list, tuple)) else [value]
    return images if images and all(hasattr(each, "convert") and hasattr(each, "mode") for each in images) else None


def pixels_of(value: Any) -> list[np.ndarray[Any, Any]] | None:
    """The pictures [H, W, C] or [H, W] of a uint8 array of one or several; None for others."""
    import numpy as np

    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (3, 4):
        return None
    if value.ndim == 3:
        return [value] if value.shape[-1] in (1, 3) else list(value)
    return list(value if value.shape[-1] in (1, 3) else value.transpose(0, 2, 3, 1))


def _write_png(path: str, pixels: np.ndarray[Any, Any]) -> None:
    """Source of the format: https://www.w3.org/TR/png-3/."""
    import struct
    import zlib

    import numpy as np

    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    if channels not in (1, 3):
        raise UsageError(f"pictures have 1 or 3 channels, not {channels}")
    height, width = pixels.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * channels)], 1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 1)))
        file.write(chunk(b"IEND", b""))


@contextlib.contextmanager
def picture_file(names: list[str], batch: tuple[Any, ...]) -> Iterator[str]:
    """The path of a table of pictures in files, which is there meanwhile.

    `names` are those of the inputs: the first takes the pictures, the others follow them in the batch.
    """
    import csv
    import tempfile

    import numpy as np

    if len(batch) > len(names):
        raise UsageError(f"pictures and {len(batch) - 1} more arrays; the model takes {', '.join(names)}")
    with tempfile.TemporaryDirectory() as folder:
        files = paths_of(batch[0])
        if files is None:
            pictures = images_of(batch[0]) or pixels_of(batch[0]) or []
            files = [os.path.join(folder, f"{i}.png") for i in range(len(pictures))]
            for picture, file in zip(pictures, files):
                if isinstance(picture, np.ndarray):
                    _write_png(file, picture)
                else:
                    (picture if picture.mode in ("L", "RGB") else picture.convert("RGB")).save(file)
        path = os.path.join(folder, "pictures.csv")
        with open(path, "w", newline="") as table:
            rows = zip(files, *(np.asarray(each).tolist() for each in batch[1:]))
            csv.writer(table).writerows([["path", *names[1 : len(batch)]], *rows])
        yield path
