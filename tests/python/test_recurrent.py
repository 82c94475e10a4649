"""Recurrent layers as both of PyTorch's exporters write them: gradients are PyTorch's."""

import numpy as np
import onnx
import pytest
import reference
import test_gradients
import test_other_runtimes as runtimes
import tool
import torch
import networks
from export import export
from onnx import TensorProto, helper, numpy_helper
from torch import nn

CELLS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "relu_rnn": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


class Tagger(nn.Module):
    """A class for each step of a sequence; the batch comes first outside, wherever the layer wants it."""

    def __init__(self, cell, layers, bidirectional, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.recurrent = CELLS[cell](4, 5, layers, batch_first=batch_first, bidirectional=bidirectional)
        self.head = nn.Linear(10 if bidirectional else 5, 3)

    def forward(self, x):
        y, _ = self.recurrent(x if self.batch_first else x.transpose(0, 1))
        return self.head(y if self.batch_first else y.transpose(0, 1))


class PackedTagger(Tagger):
    """Sequences of different lengths, the longest first; both the steps and the last states are read."""

    def __init__(self, cell, layers, bidirectional):
        super().__init__(cell, layers, bidirectional, True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        y, state = self.recurrent(packed)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(y) + last.sum((0, 2))[:, None, None]


def make(module, inputs, steps=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (3, steps), generator=generator)
    return networks.finish(module, inputs, labels, seed, optimize=False)


def check(example, exporter, dtype, folder):
    example = test_gradients.reference.to_double(example) if dtype == "float64" else example
    path = folder / "model.onnx"
    export(example.module, example.inputs, path, exporter, example.optimize)
    test_gradients.compare(example, path, "train", dtype, folder)


@pytest.mark.parametrize("exporter, dtype", [("dynamo", "float32"), ("dynamo", "float64"), ("torchscript", "float64")])
@pytest.mark.parametrize("layers, bidirectional, batch_first", [(1, False, False), (2, False, True), (2, True, False)])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_are_those_of_pytorch(cell, layers, bidirectional, batch_first, exporter, dtype, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 4)
    check(make(Tagger(cell, layers, bidirectional, batch_first), {"x": x}), exporter, dtype, tmp_path)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_no_gradient_comes_from_beyond_the_end_of_a_sequence(cell, bidirectional, tmp_path):
    torch.manual_seed(0)
    inputs = {"x": torch.randn(3, 4, 4), "lengths": torch.tensor([4, 3, 1])}
    check(make(PackedTagger(cell, 1, bidirectional), inputs), "torchscript", "float64", tmp_path)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_steps_in_bfloat16_are_those_of_onnx_runtime(cell, bidirectional, tmp_path):
    torch.manual_seed(0)
    example = make(PackedTagger(cell, 2, bidirectional), {"x": torch.randn(3, 4, 4), "lengths": torch.tensor([4, 3, 1])})
    export(example.module, example.inputs, tmp_path / "model.onnx", "torchscript", example.optimize)
    model = tmp_path / "train.onnx"
    tool.run("build", tmp_path / "model.onnx", "-o", model, "--loss", example.loss, "--optimizer", "sgd",
             "--precision", "bf16")  # fmt: skip
    step = runtimes.flatten(model, "step", tmp_path)
    data = reference.repeated(example, 1)
    tool.run("fit", model, "--data", tool.save(tmp_path / "data.npz", data), "--steps", 8, "--batch-size", 3, "--lr", 0.1,
             "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    theirs = tool.run_steps(model, step, data, 3, 8, 0.1)
    np.testing.assert_allclose(tool.losses(tmp_path / "run"), theirs, rtol=1e-3)


# ---- What PyTorch does not write: compared with differences


def weights(cell, directions, peepholes):
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[cell], 3
    shapes = {"w": (directions, gates * hidden, 2), "r": (directions, gates * hidden, hidden),
              "b": (directions, 2 * gates * hidden)}  # fmt: skip
    if peepholes:
        shapes["p"] = (directions, 3 * hidden)
    rng = np.random.default_rng(0)
    return {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}


def model_of(cell, arrays, **attributes):
    """loss = sum of the cosines of Y; X is [3, 2, 2]."""
    peepholes = ["", "", "", "p"] if "p" in arrays else []
    nodes = [
        helper.make_node(cell, ["x", "w", "r", "b", *peepholes], ["y"], hidden_size=3, **attributes),
        helper.make_node("Cos", ["y"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["loss"], keepdims=0),
    ]
    double = TensorProto.DOUBLE
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", double, (3, 2, 2))],
        [helper.make_tensor_value_info("loss", double, ())],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


ATTRIBUTES = {
    "peepholes": ("LSTM", {}, True),
    "input_forget": ("LSTM", {"input_forget": 1}, True),
    "lstm_activations": ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Affine"], "activation_alpha": [0.3, 0.5],
                                  "activation_beta": [0.6, 0.25]}, False),
    "gru_activations": ("GRU", {"activations": ["Sigmoid", "ScaledTanh", "softplus", "Elu"], "direction": "bidirectional",
                                "activation_alpha": [1.5, 0.5], "activation_beta": [0.75]}, False),
    "rnn_leaky_relu": ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}, False),
    "rnn_thresholded_relu": ("RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.3]}, False),
    "lstm_layout": ("LSTM", {"layout": 1, "direction": "reverse"}, False),
    "gru_reset_first": ("GRU", {"layout": 1}, False),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_have_the_gradients_of_differences(name, tmp_path):
    cell, attributes, peepholes = ATTRIBUTES[name]
    arrays = weights(cell, 2 if attributes.get("direction") == "bidirectional" else 1, peepholes)
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (3, 2, 2))
    inputs = tool.save(tmp_path / "x.npz", {"x": x})

    def run(values):
        onnx.save(model_of(cell, values, **attributes), tmp_path / "model.onnx")
        tool.run("grad", tmp_path / "model.onnx", "--inputs", inputs, "--loss", "loss", "-o", tmp_path / "g.npz")
        return tool.load(tmp_path / "g.npz")

    found, h = run(arrays), 1e-4
    for weight, value in arrays.items():
        direction = rng.uniform(-1, 1, value.shape)
        losses = [run({**arrays, weight: value + k * h * direction})["loss"] for k in (-2, -1, 1, 2)]
        difference = (8 * (losses[2] - losses[1]) - (losses[3] - losses[0])) / (12 * h)
        np.testing.assert_allclose(np.sum(found[f"grad/{weight}"] * direction), difference, rtol=1e-6, err_msg=weight)


def test_clip_is_refused_by_name(tmp_path):
    onnx.save(model_of("LSTM", weights("LSTM", 1, False), clip=0.5), tmp_path / "model.onnx")
    message = tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "loss",
                       "--optimizer", "sgd", status=1)  # fmt: skip
    assert "clip" in message and "LSTM" in message
