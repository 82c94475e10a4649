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
        self.net, self.ranges = net, {}

    def weight(self, w):
        scale = w.detach().abs().amax(1) / 127
        return torch.fake_quantize_per_channel_affine(w, scale, torch.zeros_like(scale, dtype=torch.int32), 0, -127, 127)

    def activation(self, name, x, train):
        if train:
            seen = torch.stack([x.detach().min(), x.detach().max()])
            old = self.ranges.get(name)
            self.ranges[name] = seen if old is None else old + 0.01 * (seen - old)
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
    np.testing.assert_allclose(states["x/range"], rounded.ranges["x"], rtol=1e-6)
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


class Segmenter(torch.nn.Module):
    """A transposed convolution with a batch norm, a last convolution that is an output, and biases of one row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ConvTranspose2d(4, 5, 2, stride=2)
        self.norm, self.last, self.fc = torch.nn.BatchNorm2d(5), torch.nn.Conv2d(5, 2, 1), torch.nn.Linear(5, 3)

    def forward(self, x):
        h = torch.relu(self.norm(self.up(torch.relu(self.down(x)))))
        return self.last(h), self.fc(h.mean((2, 3)))


def test_all_layers_are_integers_in_the_export_the_last_one_too(tmp_path):
    export(Segmenter(), {"x": torch.zeros(2, 3, 8, 8)}, tmp_path / "m.onnx", "torchscript", True)
    model, rng = onnx.load(tmp_path / "m.onnx"), np.random.default_rng(0)
    for t in model.graph.initializer:
        if t.name == "fc.bias":  # as scikit-learn's converter stores it
            t.dims[:] = [1, 3]
    first, second = model.graph.output[0].name, "scores"
    for node in model.graph.node:
        node.output[:] = [second if name == model.graph.output[1].name else name for name in node.output]
    model.graph.output[1].name = second
    onnx.save(model, tmp_path / "m.onnx")
    data = {"x": rng.normal(size=(32, 3, 8, 8)).astype(np.float32), "a": rng.normal(size=(32, 2, 16, 16)).astype(np.float32),
            "b": rng.normal(size=(32, 3)).astype(np.float32)}  # fmt: skip
    tool.save(tmp_path / "d.npz", data)
    said = tool.run("build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--qat", "int8", "--loss", f"mse({first}, a) + mse({second}, b)")
    assert "weights of 4 layers" in said, said
    tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--steps", 6, "--batch-size", 16, "--lr", 0.01, "--out", tmp_path / "run")
    said = tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "e.onnx")
    assert "weights that are integers now: 4" in said and "stay floats" not in said, said
    graph = onnx.load(tmp_path / "e.onnx").graph
    assert [o.name for o in graph.output] == [first, second]
    assert not any(n.op_type == "BatchNormalization" for n in graph.node)
    producer = {n.output[0]: n for n in graph.node}
    types = {t.name: t.data_type for t in graph.initializer}
    for layer in (n for n in graph.node if n.op_type in ("Conv", "ConvTranspose", "Gemm")):
        weight, bias = (types[producer[name].input[0]] for name in layer.input[1:3])
        assert (weight, bias) == (onnx.TensorProto.INT8, onnx.TensorProto.INT32), layer
    tool.run("predict", tmp_path / "run" / "last.onnx", "--inputs", tmp_path / "d.npz", "-o", tmp_path / "p.npz")
    ours = tool.load(tmp_path / "p.npz")
    for name, theirs in zip((first, second), tool.session(tmp_path / "e.onnx").run(None, {"x": data["x"]})):
        assert np.abs(ours[name] - theirs).mean() < 0.02 * np.abs(theirs).mean()
    # With its output rounded, ONNX Runtime multiplies the last convolution in integers, too.
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 4
    onnxruntime.InferenceSession(str(tmp_path / "e.onnx"), options, providers=["CPUExecutionProvider"])
    assert [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node].count("QLinearConv") == 2


def test_what_is_quantized_is_not_quantized_again(tmp_path):
    """Its integers would be rounded to other integers."""
    net = Net()
    export(net, {"x": torch.zeros(2, 6)}, tmp_path / "m.onnx", "torchscript", True)
    model = onnx.load(tmp_path / "m.onnx")
    for op, inputs, output in (("DequantizeLinear", ["q", "s", "z"], "d"), ("QuantizeLinear", ["x", "s", "z"], "q")):
        model.graph.node.insert(0, onnx.helper.make_node(op, inputs, [output]))
    for node in model.graph.node[2:]:
        node.input[:] = ["d" if name == "x" else name for name in node.input]
    model.graph.initializer.extend([numpy_helper.from_array(np.float32(0.02), "s"), numpy_helper.from_array(np.int8(0), "z")])
    onnx.save(model, tmp_path / "q.onnx")
    said = tool.run("build", tmp_path / "q.onnx", "-o", tmp_path / "t.onnx", "--qat", "int8", status=1)
    assert "quantized already" in said and "leave out --qat" in said, said
    assert "--qat" not in tool.run("check", tmp_path / "q.onnx")
