"""What the two systems do with files (same.py): names, folders, damage, sizes, texts, and what is said of them."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from same import ROOT, Case, Comparison

DIGITS = ROOT / "models" / "digits_cnn.onnx"
NAMES = ["with spaces.onnx", "ünïcödé.onnx", "模型.onnx", "модель 🧪.onnx", "-dash.onnx", "a'b&c;d$e.onnx", "x.y.z"]


def put(name="model.onnx", model=DIGITS):
    """A case's preparation: the model under this name."""

    def prepare(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model, folder / name)

    return prepare


def put_scaled(folder):
    """The model, and one with other weights."""
    put()(folder)
    model = onnx.load(DIGITS)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.5), tensor.name))
    onnx.save(model, folder / "other.onnx")


def damaged(data, number):
    """One of many ways to be no model."""
    rng = np.random.default_rng(number)
    if number % 3 == 0:
        return data[: int(rng.integers(0, len(data)))]
    changed = bytearray(data)
    for _ in range(1 + number % 5):
        changed[int(rng.integers(0, len(data) if number % 3 == 1 else 4000))] = int(rng.integers(0, 256))
    return bytes(changed)


def put_damaged(number):
    return lambda folder: (folder / "model.onnx").write_bytes(damaged(DIGITS.read_bytes(), number))


def linear(weight):
    """y = x W, whose weight is as given."""
    rows, columns = weight.dims
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", columns])], [weight],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def external(name, dims, location, offset, length=None):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    pairs = {"location": location, "offset": offset} | ({} if length is None else {"length": length})
    for key, value in pairs.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def put_external(location, file=None, offset=0, dims=(8, 4)):
    """A model with its weight in a file, at an offset, of which all that comes before is a hole."""

    def prepare(folder):
        onnx.save(linear(external("w", dims, location, offset)), folder / "model.onnx")
        path = folder / (file or location)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as data:
            data.seek(offset)
            data.write(np.arange(32, dtype=np.float32).tobytes())
            data.truncate(offset + 4 * dims[0] * dims[1])

    return prepare


def put_texts(end):
    def prepare(folder):
        put()(folder)
        lines = ["optimizer: adamw(lr=0.01)", "clip: 1", "loss: cross_entropy", ""]
        (folder / "options.yaml").write_bytes(end.join(lines).encode())
        names = [t.name for t in onnx.load(DIGITS).graph.initializer][:2]
        (folder / "names.txt").write_bytes(end.join([*names, ""]).encode())

    return prepare


def build(model="model.onnx", output="train.onnx", *more):
    return ["build", model, "-o", output, *more]


def cases():
    for name in NAMES:
        word = f"./{name}"
        yield Case(f"named {name}", [["check", word], build(word, f"./t {name}.onnx"), ["show", f"./t {name}.onnx"],
                                     ["export", f"./t {name}.onnx", "-o", "./e " + name]], put(name))  # fmt: skip
        yield Case(f"in a folder named {name}", [build(f"{name}/m.onnx", f"{name}/t.onnx"),
                                                 build(f"{name}/absent.onnx")], put(f"{name}/m.onnx"))  # fmt: skip
    odd = "ö 模 🧪"
    yield Case("a folder of a model", [["check", odd], build(odd), ["show", odd], build("empty " + odd)],
               lambda f: (put(f"{odd}/onnx/model.onnx")(f), (f / f"empty {odd}").mkdir()))  # fmt: skip
    yield Case("into a folder", [build("other.onnx"), ["export", "train.onnx", "--into", odd, "-o", "out " + odd]],
               lambda f: (put_scaled(f), put(f"{odd}/onnx/model.onnx")(f),
                          put(f"{odd}/deep er/ü.txt", ROOT / "README.md")(f)))  # fmt: skip
    yield Case("adapters", [
        build("model.onnx", "train.onnx", "--lora", "rank=2", "--seed", "1"),
        ["export", "train.onnx", "-o", odd + "/"],
        ["export", "train.onnx", "-o", odd + ".onnx_adapter"],
        build("model.onnx", "again.onnx", "--adapter", odd + "/"),
        build("model.onnx", "sum.onnx", "--adapter", f"{odd},{odd}=0.5"),
        build("model.onnx", "absent.onnx", "--adapter", odd + "/absent"),
    ], put())  # fmt: skip
    yield Case("other files", [
        build("other.onnx"),
        ["export", "train.onnx", "-o", odd + ".npz"],
        ["export", "train.onnx", "-o", odd + ".safetensors"],
        ["export", "train.onnx", "-o", odd + ".onnx"],
        build("model.onnx", "a.onnx", "--weights", odd + ".npz"),
        build("model.onnx", "b.onnx", "--weights", odd + ".safetensors"),
        build("model.onnx", "c.onnx", "--teacher", odd + ".onnx", "--loss", "distill(logits, teacher.logits)"),
        build("model.onnx", "d.onnx", "--loss", odd + ".onnx"),
        build("model.onnx", "e.onnx", "--loss", "absent.onnx"),
        build("model.onnx", "f.onnx", "--loss", 'mse("a|b", <c>: d?)'),
        build("model.onnx", odd + ".onnx", "--weights", odd + ".onnx"),
        ["export", "train.onnx", "--into", "model.onnx", "-o", "into.onnx"],
        ["export", "train.onnx", "--into", "model.onnx", "-o", "model.onnx"],
    ], put_scaled)  # fmt: skip
    yield Case("back-slashes", [build("sub/deep/model.onnx", "sub/train.onnx"), ["show", "sub/train.onnx"],
                                build("sub/absent.onnx"), build("sub/deep/model.onnx", "absent/train.onnx")],
               put("sub/deep/model.onnx"),
               [build(r"sub\deep\model.onnx", r"sub\train.onnx"), ["show", r"sub\train.onnx"],
                build(r"sub\absent.onnx"), build(r"sub\deep\model.onnx", r"absent\train.onnx")])  # fmt: skip
    yield Case("missing", [build("absent.onnx"), ["check", "absent/x.onnx"], ["show", ""], build(output="absent/t.onnx"),
                           build(output="folder/t.onnx/"), ["export", "absent", "-o", "x"]], put())  # fmt: skip
    yield Case("a folder for a model", [["check", "folder"], ["show", "."], build("folder")], put("folder/readme"))
    yield Case("a file for a folder", [["show", "model.onnx/x.onnx"], build(output="model.onnx/x.onnx")], put())
    yield Case("a folder for an output", [build(output="folder")], lambda f: (put()(f), (f / "folder").mkdir()))
    yield Case("no file may be made there", [build(output="/sys/x.onnx")], put())
    # Not where root runs this, who may do everything.
    for mode in (0o555, 0o000):
        yield Case(f"a folder of mode {mode:o}", [build(output="folder/t.onnx"), ["show", "folder/model.onnx"]],
                   lambda f, mode=mode: (put()(f), put("folder/model.onnx")(f), (f / "folder").chmod(mode)))  # fmt: skip
    yield Case("a model that may not be read", [build(), ["show", "model.onnx"]],
               lambda f: (put()(f), (f / "model.onnx").chmod(0)))  # fmt: skip
    yield Case("over a file", [build(), build(), build("model.onnx", "train.onnx", "--force")], put())
    yield Case("over its own model", [build(), build("model.onnx", "model.onnx", "--force"),
                                      ["export", "train.onnx", "-o", "train.onnx"], ["flatten", "train.onnx", "-o", "train.onnx"],
                                      ["show", "train.onnx"]], put())  # fmt: skip
    yield Case("over a file that may not be written",
               [build(output="t.onnx"), build("model.onnx", "t.onnx", "--force")],
               lambda f: (put()(f), (f / "t.onnx").write_text("text"), (f / "t.onnx").chmod(0o444)))  # fmt: skip
    for number in range(40):
        yield Case(f"damaged {number}", [["check", "model.onnx"], build(), ["show", "model.onnx"]], put_damaged(number))
    yield Case("empty", [["check", "model.onnx"], build()], lambda f: (f / "model.onnx").write_bytes(b""))
    yield Case("a text", [["check", "model.onnx"], build()], put(model=ROOT / "README.md"))
    for end in ("\n", "\r\n"):
        yield Case(f"texts with lines that end in {end!r}",
                   [build("model.onnx", "a.onnx", "--config", "options.yaml"),
                    build("model.onnx", "b.onnx", "--train", "@names.txt"),
                    build("model.onnx", "c.onnx", "--freeze", "@absent.txt")], put_texts(end))  # fmt: skip
    for location in ("w.bin", "sub/ünï 🧪/w.bin", "./sub//w.bin"):
        yield Case(f"data in {location}", [["check", "model.onnx"], build(), ["show", "model.onnx"]],
                   put_external(location))  # fmt: skip
    for location in ("absent.bin", "../w.bin", "/etc/passwd", r"sub\w.bin", "C:w.bin", "nul", "sub", "w.bin:stream"):
        yield Case(f"data in {location}", [build()], put_external(location, "sub/w.bin"))
    yield Case("data that end early", [build()], short_data)
    yield Case("data with two names", [build()], linked_data)
    for offset in ((1 << 31) - 4096, (1 << 31) + 4096, (1 << 32) + 4096):
        yield Case(f"data at {offset}", [["check", "model.onnx"], build()], put_external("w.bin", offset=offset))
    long = "/".join(letter * 60 for letter in "abcdef")
    yield Case("a long path", [build(f"{long}/model.onnx", f"{long}/train.onnx"), ["show", f"{long}/train.onnx"]],
               put(f"{long}/model.onnx"))  # fmt: skip
    for key, value in (("LC_ALL", "de_DE.UTF-8"), ("TZ", "Pacific/Chatham"), ("LC_ALL", "tr_TR.UTF-8")):
        yield Case(f"{key}={value}", [["check", "model.onnx"], build(), ["show", "train.onnx"]], put(),
                   environment={key: value})  # fmt: skip
    yield Case("words", [["build"], ["bulid"], ["build", "--los", "mse"], [], ["build", "a b", 'c"d', "e\\"],
                         ["show", "*.onnx"], ["show", "%PATH%"], ["check", "", "''"]], put())  # fmt: skip


def short_data(folder):
    put_external("w.bin")(folder)
    os.truncate(folder / "w.bin", 100)


def linked_data(folder):
    put_external("w.bin")(folder)
    os.link(folder / "w.bin", folder / "other.bin")


def put_huge(folder):
    """A weight of more than 2 GiB of zeros, which take no space."""
    put_external("w.bin", dims=(24000, 25000))(folder)


def main(folder):
    comparison = Comparison(folder)
    comparison.run("files", list(cases()))
    comparison.run("a weight of 2.4 GB", [Case("huge", [["check", "model.onnx"], build("model.onnx", "train.onnx", "--optimizer", "sgd")],
                                               put_huge)])  # fmt: skip
    return comparison.summary()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
