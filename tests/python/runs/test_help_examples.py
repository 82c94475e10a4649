"""Every example that `onnx-train COMMAND --help` prints runs as it stands, in a folder with the files that it names."""

import json
import os
import re
import shutil
import subprocess

import numpy as np
import onnx
import pytest
import tool
from onnx import TensorProto, helper, numpy_helper

COMMANDS = """check build import-ort fit sweep eval predict sample export flatten show opt grad verify bench compile scale devices ops
report watch explain completion""".split()
# What takes long, in fewer steps; nothing else of an example changes.
SHORTER = {" --seconds 10": "", "onnx-train bench train.onnx": "onnx-train bench train.onnx --seconds 0.1",
           "--random 20": "--random 2", "--tokens 300": "--tokens 20", "--texts 4": "--texts 4 --tokens 5",
           " --ranks 1,2,8,64": " --seconds 0.1 --ranks 1,2,8,64", "| source": "> fish"}  # fmt: skip


def examples(command):
    text = tool.run(command, "--help").partition("\nExamples:\n")[2]
    return [line.strip() for line in text.splitlines() if re.search(r"^  .*onnx-train", line)]


def network(path, shape, classes, layers=("embeddings", "fc"), outputs=("logits",)):
    """Flatten, a layer with Relu, and a layer for each output."""
    rng, hidden, size = np.random.default_rng(0), 32, int(np.prod(shape))
    weights, nodes = [], [helper.make_node("Flatten", ["x"], ["flat"], name="flat")]

    def add(name, source, result, rows, columns):
        weights.append(numpy_helper.from_array(rng.normal(0, 0.1, (rows, columns)).astype(np.float32), f"{name}.weight"))
        nodes.append(helper.make_node("MatMul", [source, f"{name}.weight"], [result], name=name))

    add(layers[0], "flat", "sums", size, hidden)
    nodes.append(helper.make_node("Relu", ["sums"], ["hidden"], name="relu"))
    for i, output in enumerate(outputs):
        add(layers[1] if i == 0 else output, "hidden", output, hidden, classes)
    graph = helper.make_graph(nodes, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])],
                              [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["batch", classes]) for o in outputs],
                              weights)  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def bigrams(path, vocabulary, width=4):
    """A causal language model that reads the last token alone."""
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name)
               for name, size in (("token.weight", (vocabulary, width)), ("head.weight", (width, vocabulary)))]  # fmt: skip
    nodes = [helper.make_node("Gather", ["token.weight", "tokens"], ["embedded"], name="token"),
             helper.make_node("MatMul", ["embedded", "head.weight"], ["logits"], name="head")]  # fmt: skip
    graph = helper.make_graph(nodes, "bigrams",
                              [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", vocabulary])],
                              weights)  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def write_pictures(folder):
    """What the examples call mnist/, cifar-10/ and pictures/."""
    from PIL import Image

    rng = np.random.default_rng(2)
    for name in "mnist", "cifar-10", *(f"pictures/{label}" for label in ("cat", "dog", "hen")):
        (folder / name).mkdir(parents=True)
    for part, count in ("train", 960), ("t10k", 32):
        images, labels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10
        header = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (folder / f"mnist/{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (folder / f"mnist/{part}-labels-idx1-ubyte").write_bytes(np.array([0x801, count], ">i4").tobytes() + labels.tobytes())
    rows = np.concatenate([np.arange(20, dtype=np.uint8)[:, None] % 10, rng.integers(0, 256, (20, 3072), dtype=np.uint8)], 1)
    for name in *(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin":
        (folder / "cifar-10" / name).write_bytes(rows.tobytes())
    for path in (folder / "pictures").iterdir():
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path / "1.png")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders with the files that examples name: "plain" for most, others by what an example has in it."""
    root = tmp_path_factory.mktemp("examples")
    plain = root / "plain"
    plain.mkdir()
    rng = np.random.default_rng(3)
    for name, count in ("train", 128), ("test", 64), ("batch", 16):
        arrays = {"x": rng.normal(size=(count, 4)).astype(np.float32), "labels": rng.integers(0, 3, count)}
        targets = {"target": rng.normal(size=(count, 3)).astype(np.float32)} if name == "batch" else {}
        tool.save(plain / f"{name}.npz", arrays | targets)
    (plain / ".zfunc").mkdir()
    header, rows = "x0,x1,x2,x3", rng.normal(size=(5, 4)).round(3)
    (plain / "test.csv").write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    tool.save(plain / "vectors.npz", {"fc.weight": np.ones((32, 3), np.float32)})
    network(plain / "model.onnx", [4], 3)
    network(plain / "two_heads.onnx", [4], 3, outputs=("logits", "aux"))
    (plain / "fit.yaml").write_text("model: train.onnx\ndata: train.npz\neval_data: test.npz\nepochs: 1\n")
    write_pictures(plain)

    def trained(folder, data, *options):
        tool.run("build", folder / "model.onnx", "-o", folder / "train.onnx", *options)
        tool.run("fit", folder / "train.onnx", "--data", data, "--epochs", 1, "--batch-size", 2, "--out", folder / "run")

    def variant(name):
        shutil.copytree(plain, root / name)
        return root / name

    digits, cifar, pictures, adapted, text = map(variant, ("mnist/", "cifar-10/", "pictures/", "adapter/", "sequence="))
    scaled, untrained, left = variant("scale"), variant("untrained"), variant("artifacts")
    run = tool.ROOT / "tests" / "fixtures" / "onnxruntime" / "mlp"
    shutil.copytree(run, left / "artifacts")
    for file in run.iterdir():
        shutil.copy(file, left / "artifacts" / f"custom_{file.name}")
    (left / "saved").mkdir()
    shutil.copy(run / "checkpoint", left / "saved" / "epoch_12")
    trained(plain, plain / "train.npz")
    tool.run("fit", plain / "train.onnx", "--data", plain / "train.npz", "--eval-data", plain / "test.npz", "--epochs", 1,
             "--out", plain / "run", "--overwrite")  # fmt: skip
    for name in "adamw", "sgd", "lion":
        shutil.copytree(plain / "run", plain / "runs" / name)
    for folder, shape, classes, data in ((digits, [1, 28, 28], 10, "mnist"), (cifar, [3, 32, 32], 10, "cifar-10"),
                                         (pictures, [3, 8, 8], 3, "pictures")):  # fmt: skip
        network(folder / "model.onnx", shape, classes)
        trained(folder, folder / data)
    trained(adapted, adapted / "train.npz", "--lora", "rank=2")
    (adapted / "decoder").mkdir()
    for served in "decoder.onnx", "decoder/model.onnx":
        shutil.copy(adapted / "model.onnx", adapted / served)
    bigrams(text / "model.onnx", 256)
    (text / "text.txt").write_text("LOVE, n. A temporary insanity. " * 40)
    tool.run("build", text / "model.onnx", "-o", text / "train.onnx")
    tool.run("fit", text / "train.onnx", "--data", text / "text.txt", "--block-size", 16, "--steps", 2, "--batch-size", 2,
             "--out", text / "run")  # fmt: skip
    bigrams(text / "gpt2.onnx", 50257)
    (text / "gpt2").mkdir()
    words = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate("Once upon a time [UNK]".split())}, "unk_token": "[UNK]"}
    (text / "gpt2/tokenizer.json").write_text(json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": words}))
    (text / "gpt2/chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    tool.run("build", scaled / "model.onnx", "-o", scaled / "train.onnx", "--accumulate")
    tool.run("build", untrained / "model.onnx", "-o", untrained / "train.onnx")
    return root


# Which of the folders an example runs in, by what is in it.
FOLDERS = {"mnist/": "mnist/", "cifar-10/": "cifar-10/", "pictures/": "pictures/", "--merge": "adapter/",
           "-o adapter/": "adapter/", "sequence=": "sequence=", "onnx-train sample": "sequence=",
           "onnx-train scale": "scale", "onnx-train fit": "untrained", "artifacts/": "artifacts"}  # fmt: skip


def run(example, folder):
    for long, short in SHORTER.items():
        example = example.replace(long, short)
    path = f"{tool.COMMAND.parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(["bash", "-c", example], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="replace")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_the_help_run(folders, tmp_path, command):
    """Those of one command may need what those before them have made."""
    lines = examples(command)
    assert any(f"onnx-train {command}" in line for line in lines)
    for line in lines:
        name = next((folder for key, folder in FOLDERS.items() if key in line), "plain")
        if not (tmp_path / name).exists():
            shutil.copytree(folders / name, tmp_path / name)
        done = run(line, tmp_path / name)
        if "--device cuda" in line and done.returncode:  # its module is tested elsewhere: here its options are
            assert done.returncode == 1 and "'cuda'" in done.stderr, done.stderr
        else:
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_all_commands_are_among_those():
    assert re.findall(r"^  ([a-z-]+) ", tool.run("--help").split("Options:")[0], re.MULTILINE) == COMMANDS
