"""Writes the digits of models/data as PNG files, a folder for each class: python digit_pictures.py DIR makes DIR/train
and DIR/val. Only NumPy is needed."""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[2] / "models" / "data"


def png(pixels):
    """A picture, uint8[height, width] or uint8[height, width, 3], as the bytes of a file."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape[:2]
    kind = 2 if pixels.ndim == 3 else 0
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write(folder, arrays):
    images = np.clip(arrays["image"][:, 0] / arrays["image"].max() * 255, 0, 255).astype(np.uint8)
    for number, (pixels, label) in enumerate(zip(images, arrays["labels"])):
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(pixels))
    return len(images)


def main(folder):
    root = Path(folder)
    count = write(root / "train", np.load(DATA / "digits_train.npz"))
    write(root / "val", np.load(DATA / "digits_test.npz"))
    return f"{root}: {len(list((root / 'train').iterdir()))} folders, {count} pictures"


if __name__ == "__main__":
    print(main(sys.argv[1]))
