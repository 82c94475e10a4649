"""build --qat, against PyTorch's formulas and ONNX Runtime's integer kernels."""

import numpy as np
import onnx
import onnxruntime
import tool
import torch
from export import export
from onnx import numpy_helper
from torch.nn import functional as F

DIGITS = tool.ROOT / "models" / "digits_cnn.onnx"
DATA = tool.ROOT / "models" / "data"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2 = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Rounded:
    """What --qat makes of Net, in PyTorch: weights symmetric by channel, moving averages of the ranges."""

    def __init__(self, net):
        self.net, self.ranges, self.sums = net, {}, {}

    def weight(self, w):
        scale = w.detach().abs().amax(1) / 127
        return torch.fake_quantize_per_channel_affine(w, scale, torch.zeros_like(scale, dtype=torch.int32), 0, -127, 127)

    def activation(self, name, x, train):
        if train:
            # Adam's form: the average from zeros, over the weight that the batches have in it.
            seen = torch.stack([x.detach().min(), x.detach().max()])
            mean, steps = self.sums.get(name, (torch.zeros(2), 0))
            self.sums[name] = 0.99 * mean + 0.01 * seen, steps + 1
            self.ranges[name] = self.sums[name][0] / (1 - 0.99 ** (steps + 1))
        least, most = self.ranges[name][0].clamp(max=0), self.ranges[name][1].clamp(min=0)
        scale = (most - least) / 255
        zero = -torch.round(least / scale)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero.int(), 0, 255)

    def __call__(self, x, train):
        x = self.activation("x", x, train)
        h = torch.relu(F.linear(x, self.weight(self.net.fc1.weight), self.net.fc1.bias))
        return F.linear(self.activation("h", h, train), self.weight(self.net.fc2.weight), self.net.fc2.bias)


def test_a_perceptron_trains_as_in_pytorch_and_evaluates_with_what_was_observed(tmp_path):
    net, rng = Net(), np.random.default_rng(1)
    export(net, {"x": torch.zeros(2, 6)}, tmp_path / "m.onnx", "torchscript", True)
    data = {"x": rng.normal(size=(64, 6)).astype(np.float32), "labels": rng.integers(0, 3, 64)}
    tool.save(tmp_path / "d.npz", data)
    said = tool.run("build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--qat", "int8", "--optimizer", "sgd")
    assert "weights of 2 layers" in said and "2 activations" in said
    tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--steps", 16, "--batch-size", 16, "--lr", 0.25,
             "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    rounded, losses = Rounded(net), []
    optimizer = torch.optim.SGD(net.parameters(), 0.25)
    for step in range(16):
        at = slice(step % 4 * 16, step % 4 * 16 + 16)
        loss = F.cross_entropy(rounded(torch.tensor(data["x"][at]), True), torch.tensor(data["labels"][at]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ours = [line["loss"] for line in tool.metrics(tmp_path / "run") if "loss" in line][:16]
    # A value between two integers may round to the other one: then the loss differs by a part of a step.
    np.testing.assert_allclose(ours, losses, rtol=2e-3)
    states = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "run" / "last.onnx").graph.initializer}
    np.testing.assert_allclose(states["x/range"][:2], rounded.ranges["x"], rtol=1e-5)
    tool.run("predict", tmp_path / "run" / "last.onnx", "--inputs", tmp_path / "d.npz", "-o", tmp_path / "p.npz")
    (logits,) = tool.load(tmp_path / "p.npz").values()
    with torch.no_grad():
        np.testing.assert_allclose(logits, rounded(torch.tensor(data["x"]), False), atol=0.02)


def test_digits_trained_for_integers_run_in_integers(tmp_path):
    """ONNX Runtime's optimizer makes integer kernels of every layer, and their logits are ours within a step."""
    train, run = tmp_path / "t.onnx", tmp_path / "run"
    tool.run("build", DIGITS, "-o", train, "--qat", "int8")
    tool.run("fit", train, "--data", DATA / "digits_train.npz", "--epochs", 3, "--batch-size", 32, "--lr", 0.003, "--out", run)
    said = tool.run("export", run / "last.onnx", "-o", tmp_path / "int8.onnx")
    assert "weights that are integers now: 5" in said
    graph = onnx.load(tmp_path / "int8.onnx").graph
    assert not any(n.op_type == "BatchNormalization" for n in graph.node)
    stored = {t.name: t.data_type for t in graph.initializer}
    assert [k for k in stored.values()].count(onnx.TensorProto.INT8) >= 5

    images = tool.load(DATA / "digits_test.npz")
    tool.run("predict", run / "last.onnx", "--inputs", DATA / "digits_test.npz", "-o", tmp_path / "p.npz")
    ours = tool.load(tmp_path / "p.npz")["logits"]
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(tmp_path / "int8.onnx"), options, providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"image": images["image"]})[0]
    operators = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert operators.count("QLinearConv") == 3 and operators.count("QGemm") == 2, operators
    # One step of the last layer's input, through its weights.
    graph_tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    last = [n for n in graph.node if n.op_type == "Gemm"][-1]
    producer = {n.output[0]: n for n in graph.node}
    step = graph_tensors[producer[last.input[0]].input[1]]
    weight = producer[last.input[1]]
    w = graph_tensors[weight.input[0]] * graph_tensors[weight.input[1]][:, None]
    assert np.abs(ours - theirs).max() <= step * np.abs(w).sum(1).max()
    assert np.abs(ours - theirs).mean() < 0.02 * np.abs(ours).mean()
    accuracy = (theirs.argmax(1) == images["labels"]).mean()
    assert accuracy > 0.97, accuracy


def test_a_short_run_has_the_ranges_of_all_its_batches_whatever_the_first_one_was(tmp_path):
    """The first batch is of zeros: an average that begins with it would clip what the others have."""
    net, rng = Net(), np.random.default_rng(1)
    export(net, {"x": torch.zeros(2, 6)}, tmp_path / "m.onnx", "torchscript", True)
    x = rng.normal(size=(64, 6)).astype(np.float32)
    x[:16] = 0
    tool.save(tmp_path / "d.npz", {"x": x, "labels": rng.integers(0, 3, 64)})
    tool.run("build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--qat", "int8", "--optimizer", "sgd")
    fit = ("--data", tmp_path / "d.npz", "--batch-size", 16, "--no-shuffle", "--schedule", "constant", "--out", tmp_path / "run")
    tool.run("fit", tmp_path / "t.onnx", "--steps", 2, *fit)
    tool.run("fit", tmp_path / "t.onnx", "--steps", 4, *fit, "--resume")
    states = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "run" / "last.onnx").graph.initializer}
    weights = 0.99 ** np.arange(3, -1, -1)
    seen = np.array([[b.min(), b.max()] for b in x.reshape(4, 16, 6).astype(np.float64)])
    np.testing.assert_allclose(states["x/range"][:2], weights @ seen / weights.sum(), rtol=1e-5)
