"""Weights in fewer bits: export --dtype, and the frozen weights beside adapters (QLoRA), against the formulas."""

import re

import numpy as np
import onnx
import pytest
import tool
import torch
from export import export
from torch.nn import functional as F

DIGITS = tool.ROOT / "models" / "digits_cnn.onnx"
TEST = tool.ROOT / "models" / "data" / "digits_test.npz"


def in_blocks(w, axis, block, high):
    """w, rounded in blocks along the axis."""
    moved = np.moveaxis(w, axis, -1)
    padded = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, -moved.shape[-1] % block)])
    blocks = padded.reshape(*padded.shape[:-1], -1, block)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(high)
    scale[scale == 0] = 1
    rounded = (np.round(blocks / scale) * scale).reshape(padded.shape)[..., : moved.shape[-1]]
    return np.moveaxis(rounded, -1, axis).astype(np.float32)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    tool.run("build", DIGITS, "-o", folder / "t.onnx")
    tool.run("fit", folder / "t.onnx", "--data", TEST, "--epochs", 2, "--batch-size", 32, "--lr", 0.003, "--out", folder / "run")
    tool.run("export", folder / "run" / "last.onnx", "-o", folder / "float.onnx")
    return folder


@pytest.mark.parametrize(("dtype", "smaller", "tolerance"), [("float16", 1.8, 0.01), ("bfloat16", 1.8, 0.1), ("int8", 2.8, 0.2), ("int4", 4.2, 3)])
def test_an_exported_model_stores_its_weights_and_says_what_that_costs(digits, dtype, smaller, tolerance):
    path = digits / f"{dtype}.onnx"
    said = tool.run("export", digits / "run" / "last.onnx", "-o", path, "--dtype", dtype, "--eval-data", TEST)
    assert (digits / "float.onnx").stat().st_size > smaller * path.stat().st_size
    images = tool.load(TEST)
    exact = tool.session(digits / "float.onnx").run(None, {"image": images["image"]})[0]
    rounded = tool.session(path).run(None, {"image": images["image"]})[0]
    assert 0 < np.abs(rounded - exact).max() < tolerance
    loss = re.search(r"^loss +(\S+) +(\S+)$", said, re.MULTILINE)
    for logits, printed in ((exact, loss[1]), (rounded, loss[2])):
        expected = F.cross_entropy(torch.tensor(logits), torch.tensor(images["labels"])).item()
        assert abs(float(printed) - expected) < 1e-3 * max(expected, 0.01)
    assert re.search(r"^accuracy ", said, re.MULTILINE)


class Block(torch.nn.Module):
    """A tiny transformer: one head of attention and two linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o, self.up = (torch.nn.Linear(32, n) for n in (32, 32, 32, 32, 64))
        self.down, self.head = torch.nn.Linear(64, 32), torch.nn.Linear(32, 5)

    def forward(self, x):
        x = x + self.o(torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5, -1) @ self.v(x))
        return self.head((x + self.down(torch.tanh(self.up(x)))).mean(1))


NAMES = ["q", "k", "v", "o", "up", "down"]


@pytest.mark.parametrize(("dtype", "high"), [("int4", 7), ("int8", 127)])
def test_adapters_on_integers_train_as_in_pytorch(tmp_path, dtype, high):
    net, rng = Block(), np.random.default_rng(2)
    export(net, {"x": torch.zeros(2, 6, 32)}, tmp_path / "m.onnx", "torchscript", True)
    data = {"x": rng.normal(size=(32, 6, 32)).astype(np.float32), "labels": rng.integers(0, 5, 32)}
    tool.save(tmp_path / "d.npz", data)
    build = ["build", tmp_path / "m.onnx", "--lora", "rank=4,alpha=8,targets=" + ",".join(NAMES), "--optimizer", "sgd"]
    tool.run(*build, "-o", tmp_path / "float.onnx")
    said = tool.run(*build, "-o", tmp_path / "t.onnx", "--quantize-base", f"{dtype},block=32")
    assert f"{dtype}, blocks of 32: 6 frozen weights" in said
    kept = {t.name: t for t in onnx.load(tmp_path / "t.onnx").graph.initializer}
    factors = {n: torch.tensor(onnx.numpy_helper.to_array(kept[n + ".lora_A.weight"])) for n in NAMES}
    tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--steps", 12, "--batch-size", 16, "--lr", 0.5,
             "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip

    a = {n: factors[n].clone().requires_grad_() for n in NAMES}
    b = {n: torch.zeros(getattr(net, n).out_features, 4, requires_grad=True) for n in NAMES}
    for p in net.parameters():
        p.requires_grad_(False)
    layers = {n: getattr(net, n) for n in NAMES}
    for n, layer in layers.items():
        layer.weight.copy_(torch.tensor(in_blocks(layer.weight.numpy(), 1, 32, high)))
        layer.register_forward_hook(lambda m, i, y, n=n: y + F.linear(F.linear(i[0], a[n]), b[n]) * 2)
    optimizer, losses = torch.optim.SGD([*a.values(), *b.values()], 0.5), []
    for step in range(12):
        at = slice(step % 2 * 16, step % 2 * 16 + 16)
        loss = F.cross_entropy(net(torch.tensor(data["x"][at])), torch.tensor(data["labels"][at]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ours = [line["loss"] for line in tool.metrics(tmp_path / "run") if "loss" in line][:12]
    np.testing.assert_allclose(ours, losses, rtol=2e-4)

    # What is exported says the same, with the integers in the file or floats with the adapters in them.
    expected = net(torch.tensor(data["x"])).detach().numpy()
    for name, options, types in (("integers", [], {"int4": 22, "int8": 3}[dtype]), ("merged", ["--merge"], 1)):
        tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / f"{name}.onnx", *options)
        weights = [t for t in onnx.load(tmp_path / f"{name}.onnx").graph.initializer if list(t.dims) == [64, 32]]
        assert [t.data_type for t in weights] == [types]
        session = tool.session(tmp_path / f"{name}.onnx")
        logits = session.run(None, {"x": data["x"]})[0]
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


def test_integers_make_the_training_model_and_its_memory_smaller(tmp_path):
    """Two layers of 512 x 512: the frozen weights take an eighth, and floats exist only while a product reads them."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)], torch.nn.Linear(512, 3))
    export(net, {"x": torch.zeros(2, 512)}, tmp_path / "m.onnx", "torchscript", True)
    memory, sizes = {}, {}
    for kind, options in (("float", []), ("int4", ["--quantize-base", "int4"])):
        path = tmp_path / f"{kind}.onnx"
        tool.run("build", tmp_path / "m.onnx", "-o", path, "--lora", "rank=4", *options)
        sizes[kind] = path.stat().st_size
        arena, constants = re.search(r"arena (.*?), of it.* constants (.*)", tool.run("show", path, "--plan", "--batch", 4)).groups()
        memory[kind] = sum(float(n) * {"KiB": 2**10, "MiB": 2**20}[unit] for n, unit in map(str.split, (arena, constants)))
    assert sizes["int4"] < 0.25 * sizes["float"]
    assert memory["int4"] < 0.6 * memory["float"], memory


def test_float32_says_that_weights_stay_as_they_are(tmp_path):
    model = tmp_path / "train.onnx"
    tool.run("build", tool.ROOT / "models" / "digits_cnn.onnx", "-o", model)
    tool.run("export", model, "-o", tmp_path / "a.onnx")
    tool.run("export", model, "-o", tmp_path / "b.onnx", "--dtype", "float32")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    tool.run("export", model, "-o", tmp_path / "w.npz", "--dtype", "float32")
