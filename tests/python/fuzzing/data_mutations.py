"""Broken data: the formats that fit reads, with headers that lie, wrong sizes, damaged bytes, unusual names."""

import gzip
import io
import json
import random
import struct
import zipfile

import numpy as np
from mutations import bits_flipped, bytes_replaced, length_inflated, not_a_model, span_repeated, truncated

BYTES = [truncated, truncated, bits_flipped, bits_flipped, bytes_replaced, span_repeated, length_inflated, not_a_model]

HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 2), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (0, 9223372036854775807, 8), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (12, 4, 1), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-12, -4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 5000 + "), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (12, 4), }",
    "{'descr': '>f4', 'fortran_order': False, 'shape': (12, 4), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (12, 4), }",
    "{'descr': '<c8', 'fortran_order': False, 'shape': (12, 4), }",
    "{'descr': '', 'fortran_order': Fals, 'shape': (12", "{", "", "{}", "{'shape': (), 'shape': ()}", "{'descr': '<f4'}",
]  # fmt: skip


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def with_header(data, text):
    body = data[10 + int.from_bytes(data[8:10], "little") :]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + body


def changed(arrays, rng):
    """Well-formed files of what does not fit the model, or does and is unusual."""
    arrays = dict(arrays)
    name = rng.choice(list(arrays))
    array = arrays[name]
    kind = rng.randrange(11)
    if kind == 0:
        arrays[name] = array[:-1]
    elif kind == 1:
        arrays[name] = array[:0]
    elif kind == 2:
        arrays[name] = array.astype(rng.choice(["f8", "i8", "f2", "u1", "u8", "bool", "i2"]))
    elif kind == 3:
        arrays["labels"] = np.where(np.arange(array.shape[0]) % 3 == 1, rng.choice([99, -1, -100, 2**62, -(2**63)]), 0)
    elif kind == 4 and array.dtype.kind == "f":
        arrays[name] = np.full_like(array, rng.choice([np.nan, np.inf, -np.inf, 3e38]))
    elif kind == 5:
        arrays[name] = array.reshape(array.shape[0], -1, 1, 1)
    elif kind == 6:
        arrays[name] = np.asfortranarray(array)
    elif kind == 7:
        del arrays[name]
    elif kind == 8:
        arrays[name] = array.T
    elif kind == 9:
        arrays[name] = array[0]
    else:
        arrays = {f"{key} with space": value for key, value in arrays.items()} | arrays
    return arrays


def damaged(data, rng):
    return rng.choice(BYTES)(data, rng) if rng.random() < 0.5 else data


def write_npz(arrays, folder, rng):
    path = folder / rng.choice(["data.npz", "data with space.npz", "dätä,1.npz"])
    if rng.random() < 0.3:
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                data = with_header(npy(array), rng.choice(HEADERS)) if rng.random() < 0.7 else npy(array)
                archive.writestr(f"{name}.npy", data)
        return path
    rng.choice([np.savez, np.savez_compressed])(path, **changed(arrays, rng))
    path.write_bytes(damaged(path.read_bytes(), rng))
    return path


def write_npy_folder(arrays, folder, rng):
    path = folder / "arrays"
    path.mkdir()
    for name, array in changed(arrays, rng).items():
        (path / f"{name}.npy").write_bytes(damaged(npy(array), rng))
    if rng.random() < 0.2:
        (path / "extra.npy").mkdir()
    return path


def write_csv(arrays, folder, rng):
    x = next(iter(arrays.values())).reshape(len(arrays["labels"]), -1)
    rows = [[*(f"{v:.6g}" for v in row), str(label)] for row, label in zip(x, arrays["labels"])]
    header = [f"x{i}" for i in range(x.shape[1])] + ["labels"]
    kind = rng.randrange(10)
    if kind == 0:
        rows[rng.randrange(len(rows))][0] = rng.choice(["", "nan", "inf", "1e400", "x" * 100000, '"', "1;2", "0x10"])
    elif kind == 1:
        rows[rng.randrange(len(rows))].append("1")
    elif kind == 2:
        header = rng.choice([[], header[:-1], header + header, [""] * len(header), ["labels"] * len(header)])
    elif kind == 3:
        rows = []
    elif kind == 4:
        rows = [[*row[:-1], rng.choice(["9223372036854775807", "-1", "99", "0.5"])] for row in rows]
    elif kind == 5:
        rows = [[*row[:-1], rng.choice(['"a', '"a,""b"', "NA", "b", "\xff", '"a"b'])] for row in rows]
    elif kind == 6:
        rows = [[rng.choice(["red", "", "true", "1"]), *row[1:]] for row in rows]
    text = "\n".join(",".join(row) for row in [header, *rows]) + rng.choice(["", "\n", "\r\n\n\n", "\0"])
    path = folder / "table.csv"
    path.write_bytes(damaged(text.encode(), rng))
    return path


def write_libsvm(arrays, folder, rng):
    x = next(iter(arrays.values())).reshape(len(arrays["labels"]), -1)
    first = rng.choice([0, 1, 1])
    rows = [[str(label), *(f"{i + first}:{v:.6g}" for i, v in enumerate(row) if v > 0)] for row, label in zip(x, arrays["labels"])]
    row = rng.choice(rows)
    lie = rng.choice(["", "0:1", "1:", ":1", "1:1 1:1", "2147483647:1", "99999999999:1", "-1:1", "qid:3", "1:nan", "1:1e999", "# 2:1"])
    row.insert(rng.randrange(len(row) + 1), lie)
    if rng.random() < 0.2:
        row[0] = rng.choice(["-1", "+1", "0.5", "x", "9e18", "inf", "1,2", ""])
    path = folder / rng.choice(["table.libsvm", "table.svm", "table.svmlight"])
    path.write_bytes(damaged("\n".join(map(" ".join, rows)).encode(), rng))
    return path


def idx(array, rng):
    codes = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    code = codes[array.dtype.name] if rng.random() < 0.8 else rng.choice([0, 7, 8, 14, 255])
    sizes = [n if rng.random() < 0.9 else rng.choice([0, 1, 2**32 - 1, n + 1]) for n in array.shape]
    rank = len(sizes) if rng.random() < 0.9 else rng.choice([0, 3, 255])
    header = bytes([0, 0, code, rank]) + b"".join(n.to_bytes(4, "big") for n in sizes)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(arrays, folder, rng):
    x = next(iter(arrays.values()))
    x = (x * 40).astype(rng.choice(["uint8", "int8", "int16", "float32", "float64"]))
    images, labels = damaged(idx(x, rng), rng), damaged(idx(arrays["labels"].astype("uint8"), rng), rng)
    packed = rng.random() < 0.3
    names = [f"{kind}-idx-ubyte{'.gz' if packed else ''}" for kind in ("train-images", "train-labels")]
    for name, data in zip(names, (images, labels)):
        (folder / name).write_bytes(damaged(gzip.compress(data), rng) if packed else data)
    return rng.choice([f"{folder / names[0]},{folder / names[1]}", folder, f"{folder / names[0]},", folder / names[0]])


def write_cifar(arrays, folder, rng):
    records = bytearray(rng.randbytes(3073 * 4))
    for at in range(0, len(records), 3073):
        records[at] = rng.choice([0, 1, 2, 9, 255])
    path = folder / rng.choice(["data_batch_1.bin", "test.bin"])
    path.write_bytes(damaged(bytes(records), rng))
    return path


SAFE_LIES = [
    ("dtype", ["F64", "I8", "BOOL", "F8_E4M3", "", 4, None]),
    ("shape", [[], [-12, 4], [2**62, 8], [2**64], [1.5], "12", [12] * 5000, [[12]]]),
    ("data_offsets", [[0], [8, 0], [-8, 8], [0, 2**63], [2**64 - 8, 2**64], [4, 12], {}, [0, 10**30]]),
]


def write_safetensors(arrays, folder, rng):
    codes = {"float32": "F32", "float64": "F64", "int64": "I64", "float16": "F16", "uint8": "U8", "bool": "BOOL"}
    header, body = {}, b""
    for name, array in changed(arrays, rng).items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": codes.get(array.dtype.name, "I64"), "shape": list(array.shape),
                        "data_offsets": [len(body), len(body) + len(data)]}  # fmt: skip
        body += data
    if rng.random() < 0.5:
        field, lies = rng.choice(SAFE_LIES)
        header[rng.choice(list(header))][field] = rng.choice(lies)
    text = json.dumps(header)
    if rng.random() < 0.2:
        text = rng.choice([text[:-1] + "," + text[1:], "[" * 100000, text * 2, "{}", "", '{"__metadata__": 3}', text + "\0"])
    length = len(text) if rng.random() < 0.9 else rng.choice([0, 2**63, 2**64 - 1, 100_000_001, len(text) + 1])
    path = folder / "data.safetensors"
    path.write_bytes(damaged(length.to_bytes(8, "little") + text.encode() + body, rng))
    return path


def token_bytes(rng):
    """A file of tokens: with llm.c's header, which may lie, or without one."""
    tokens = np.array([rng.randrange(0, 70000 if rng.random() < 0.2 else 12) for _ in range(rng.choice([1, 9, 200]))])
    wide = rng.random() < 0.4
    body = tokens.astype("<u4" if wide else "<u2").tobytes()
    if rng.random() < 0.4:
        return body
    magic, version = rng.choice([(20240520, 1), (20240801, 7), (20240520, 9), (20240522, 1), (0, 0)])
    count = rng.choice([len(tokens), len(tokens), len(tokens), len(tokens) + 1, -1, 2**31 - 1])
    return struct.pack("<iii", magic, version, count) + bytes(4 * 253) + body


def write_tokens(arrays, folder, rng):
    """For models of tokens; others are to refuse it in one line."""
    for i in range(rng.choice([1, 1, 3])):
        (folder / f"train_{i}.bin").write_bytes(damaged(token_bytes(rng), rng) if rng.random() < 0.9 else b"")
    (folder / "tokens.npy").write_bytes(damaged(npy(np.arange(40, dtype=rng.choice(["u2", "i8", "f4", "O"]))), rng)
                                        if rng.random() < 0.8 else b"")  # fmt: skip
    (folder / "text.jsonl").write_bytes(damaged(b'{"text": "abc\\u0000"}\n' * 20 + b'{"text": 1}\n[[[[', rng))
    (folder / "text.txt").write_bytes(damaged(b"text " * 30, rng))
    names = ["train_*.bin", "train_0.bin", "tokens.npy", "text.jsonl", "text.txt", "*", "[", "none_*.bin", "."]
    return folder / rng.choice(names)


def picture(rng):
    """A small picture of some format, mode and size; its header may claim another size."""
    from PIL import Image

    mode = rng.choice(["RGB", "RGB", "L", "P", "RGBA", "1", "CMYK", "I;16"])
    size = rng.choice([(8, 8), (8, 8), (1, 1), (1, 300), (40, 7)])
    kind = rng.choice({"CMYK": ["JPEG"], "RGB": ["PNG", "JPEG", "WEBP"], "L": ["PNG", "JPEG"]}.get(mode, ["PNG"]))
    image = Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1])).convert("L" if mode == "I;16" else mode)
    exif = Image.Exif()
    exif[0x0112] = rng.choice([1, 6, 8, 9, 65535])
    out = io.BytesIO()
    (image.convert("I").convert("I;16") if mode == "I;16" else image).save(out, kind, exif=exif)
    data = bytearray(out.getvalue())
    if rng.random() < 0.2:  # the sizes of PNG are at 16; those of JPEG and WebP are somewhere
        at = 16 if kind == "PNG" else rng.randrange(4, len(data) - 4)
        data[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\1\0\0"])
    return damaged(bytes(data), rng)


def write_pictures(arrays, folder, rng):
    root, files = folder / "pictures", []
    with_masks = rng.random() < 0.3
    for i in range(12):
        parent = "images" if with_masks else f"class {i % 3}"
        files.append(f"{parent}/{i}.{rng.choice(['png', 'jpg', 'webp', 'jpeg'])}")
        for name in [files[-1], *([f"masks/{i}.png"] if with_masks and rng.random() < 0.95 else [])]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(picture(rng))
    kind = rng.randrange(6)
    if kind == 0:
        (root / "class 1" / "itself").parent.mkdir(parents=True, exist_ok=True)
        (root / "class 1" / "itself").symlink_to(root)
    elif kind == 1:
        return root / rng.choice(files)
    elif kind == 2:
        rows = [["path", "class"], *([name, rng.choice(["a", "b", "", "9", '"', "a,b"])] for name in files)]
        text = "\n".join(rng.choice([",", ",", ",", ";"]).join(row) for row in rows)
        (root / "table.csv").write_bytes(damaged(text.encode(), rng))
        return root / "table.csv"
    return root


def write_nothing(arrays, folder, rng):
    empty = folder / "empty.npz"
    empty.write_bytes(b"")
    link = folder / "link.npz"
    link.symlink_to(link)
    return rng.choice([empty, folder / "missing.npz", folder / "none", link, "/dev/zero", "/dev/null", "", ",", "a,b",
                       "x" * 5000, "/proc/self/mem", folder / "table.csv/x"])  # fmt: skip


WRITERS = [write_npz, write_npz, write_npz, write_npy_folder, write_csv, write_csv, write_libsvm, write_idx, write_cifar, write_nothing,
           write_safetensors, write_tokens, write_pictures, write_pictures]  # fmt: skip


def write(number, arrays, folder):
    """Writes broken data `number` into `folder`; returns what --data is to be, and the kind."""
    rng = random.Random(number)
    writer = rng.choice(WRITERS)
    path = folder / "data"
    path.mkdir()
    return writer(arrays, path, rng), writer.__name__
