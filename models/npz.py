"""Reads and writes .npz files with Python's standard library alone, for scripts that run where NumPy is not installed.

An array is (shape, array.array); only float32 ("f") and int64 ("q"), uncompressed or deflated, little-endian, C order.
"""

import ast
import math
import struct
import zipfile
from array import array

DESCRIPTIONS = {"f": "<f4", "q": "<i8"}
MAGIC = b"\x93NUMPY\x01\x00"


def write_npz(path, arrays):
    """arrays: name -> (shape, array.array)."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (shape, values) in arrays.items():
            if math.prod(shape) != len(values):
                raise ValueError(f"{name}: {len(values)} values do not fill {shape}")
            header = repr({"descr": DESCRIPTIONS[values.typecode], "fortran_order": False, "shape": tuple(shape)})
            header += " " * (-(len(MAGIC) + 2 + len(header) + 1) % 64) + "\n"
            data = MAGIC + struct.pack("<H", len(header)) + header.encode() + values.tobytes()
            archive.writestr(f"{name}.npy", data)


def read_npz(path):
    """name -> (shape, array.array)."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            data = archive.read(member)
            major = data[6]
            size, start = (struct.unpack("<H", data[8:10])[0], 10) if major == 1 else (
                struct.unpack("<I", data[8:12])[0], 12)
            header = ast.literal_eval(data[start : start + size].decode())
            code = {description: code for code, description in DESCRIPTIONS.items()}[header["descr"]]
            values = array(code)
            values.frombytes(data[start + size :])
            arrays[member.removesuffix(".npy")] = header["shape"], values
    return arrays
