"""Weights that exporters keep elsewhere than among the initializers train as if they were there.

A Paddle-style file holds every weight in a Constant node; a Silero-style one holds them in branches of an If that the
sample rate selects. Both are held against the same network with initializers, and against PyTorch in float64.
"""

import numpy as np
import onnx
import pytest
import reference
import tool
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional as F

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def draw(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], name=f"{op}_{output}", **attributes)


def constant(name, array):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))


def save(path, nodes, inputs, output, weights=(), opset=16):
    """A model whose `weights` are initializers; types of inputs are (dtype, shape)."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(*output)],
        [numpy_helper.from_array(v, k) for k, v in dict(weights).items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def gradients(model, folder, batch, *arguments, dtype="float64"):
    data = tool.save(folder / "batch.npz", batch)
    result = folder / f"{model.stem}.npz"
    tool.run("grad", model, "--inputs", data, "--dtype", dtype, "-o", result, *arguments)
    return {k[5:]: v for k, v in tool.load(result).items() if k.startswith("grad/")}


def assert_close(found, expected, tolerance):
    """A bias before a batch norm has a gradient of zero, which is noise in both: relative to the largest gradient."""
    assert set(found) == set(expected)
    floor = 1e-2 * max(np.linalg.norm(value) for value in expected.values())
    for name, value in expected.items():
        error = reference.distance(found[name], value, floor)
        assert error < tolerance, f"{name}: {error}"


# ---- Paddle

PADDLE = draw(
    0, conv2d_0__w_0=(8, 3, 3, 3), conv2d_0__b_0=(1, 8, 1, 1), batch_norm_0__w_0=(8,), batch_norm_0__b_0=(8,),
    linear_0__w_0=(8, 5), linear_0__b_0=(5,),
)  # fmt: skip
STATISTICS = {"batch_norm_0__w_1": np.zeros(8, np.float32), "batch_norm_0__w_2": np.ones(8, np.float32)}


def paddle_nodes():
    return [
        node("Conv", ["x", "conv2d_0__w_0"], "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("Add", ["c", "conv2d_0__b_0"], "d"),
        node("BatchNormalization", ["d", *["batch_norm_0__w_0", "batch_norm_0__b_0"], *STATISTICS], "e"),
        node("Relu", ["e"], "f"),
        node("GlobalAveragePool", ["f"], "p"),
        constant("shape", np.array([-1, 8], np.int64)),
        node("Reshape", ["p", "shape"], "r"),
        node("MatMul", ["r", "linear_0__w_0"], "m"),
        node("Add", ["m", "linear_0__b_0"], "s"),
        constant("temperature", np.float32(0.7)),
        node("Mul", ["s", "temperature"], "y"),
    ]


def paddle_loss(weights, x, labels):
    """The same network in PyTorch."""
    h = F.conv2d(x, weights["conv2d_0__w_0"], padding=1) + weights["conv2d_0__b_0"]
    h = F.batch_norm(h, None, None, weights["batch_norm_0__w_0"], weights["batch_norm_0__b_0"], training=True)
    h = F.relu(h).mean((2, 3)) @ weights["linear_0__w_0"] + weights["linear_0__b_0"]
    return F.cross_entropy(h * float(np.float32(0.7)), labels)


def torch_gradients(loss, weights, x, labels):
    tensors = {k: torch.from_numpy(v).double().requires_grad_() for k, v in weights.items()}
    loss(tensors, torch.from_numpy(x).double(), torch.from_numpy(labels)).backward()
    return {k: v.grad.numpy() for k, v in tensors.items()}


def test_a_paddle_style_file_trains_like_one_with_initializers(tmp_path):
    io = {"x": (FLOAT, ["N", 3, 6, 6])}, ("y", FLOAT, ["N", 5])
    every = PADDLE | STATISTICS
    constants = save(tmp_path / "constants.onnx", [constant(k, v) for k, v in every.items()] + paddle_nodes(), *io)
    initializers = save(tmp_path / "initializers.onnx", paddle_nodes(), *io, every)
    x, labels = draw(1, x=(7, 3, 6, 6))["x"], np.arange(7) % 5
    batch = {"x": x, "labels": labels}
    expected = torch_gradients(paddle_loss, PADDLE, x, labels)
    found = gradients(constants, tmp_path, batch)
    assert_close(found, expected, 1e-9)
    assert_close(found, gradients(initializers, tmp_path, batch), 1e-15)
    assert_close(gradients(constants, tmp_path, batch, dtype="float32"), expected, 1e-4)

    assert "8 weights" in tool.run("check", constants)
    train = tmp_path / "train.onnx"
    tool.run("build", constants, "-o", train, "--optimizer", "sgd(momentum=0.9)")
    many = {"x": draw(2, x=(64, 3, 6, 6))["x"], "labels": np.arange(64) % 5}
    tool.run(
        "fit", train, "--data", tool.save(tmp_path / "many.npz", many), "--epochs", 2, "--batch-size", 16,
        "--lr", 0.1, "--out", tmp_path / "run",
    )  # fmt: skip
    tool.run("export", tmp_path / "run" / "best.onnx", "-o", tmp_path / "out.onnx")
    trained = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert all(not np.array_equal(trained[name], value) for name, value in PADDLE.items())


# ---- Silero

HIDDEN = 6
BRANCHES = {
    16000: draw(3, filters=(4, 1, 8), W=(1, 4 * HIDDEN, 4), R=(1, 4 * HIDDEN, HIDDEN), B=(1, 8 * HIDDEN), head=(HIDDEN, 3)),
    8000: draw(4, filters=(4, 1, 4), W=(1, 4 * HIDDEN, 4), R=(1, 4 * HIDDEN, HIDDEN), B=(1, 8 * HIDDEN), head=(HIDDEN, 3)),
}
STRIDES = {16000: 4, 8000: 2}


def silero_nodes(rate, prefix=""):
    p = prefix
    return [
        node("Conv", ["x", f"{p}filters"], f"{p}c", strides=[STRIDES[rate]]),
        node("Relu", [f"{p}c"], f"{p}r"),
        node("Transpose", [f"{p}r"], f"{p}t", perm=[2, 0, 1]),
        helper.make_node(
            "LSTM", [f"{p}t", f"{p}W", f"{p}R", f"{p}B"], ["", f"{p}h"], name=f"{p}lstm", hidden_size=HIDDEN
        ),
        node("Squeeze", [f"{p}h", f"{p}axis"], f"{p}s"),
        node("MatMul", [f"{p}s", f"{p}head"], f"{p}logits"),
    ]


def silero(path, as_constants):
    """If(sr == 16000) with both branches' weights inside, as initializers of the branch or as Constant nodes."""
    branches = {}
    for rate, weights in BRANCHES.items():
        extra = [constant("axis", np.array([0], np.int64))]
        tensors = [numpy_helper.from_array(v, k) for k, v in weights.items()]
        if as_constants:
            extra, tensors = extra + [constant(k, v) for k, v in weights.items()], []
        branches[rate] = helper.make_graph(
            extra + silero_nodes(rate), f"rate_{rate}", [], [helper.make_tensor_value_info("logits", FLOAT, None)], tensors
        )
    nodes = [
        constant("wide", np.int64(16000)),
        node("Equal", ["sr", "wide"], "is_wide"),
        node("If", ["is_wide"], "y", then_branch=branches[16000], else_branch=branches[8000]),
    ]
    return save(path, nodes, {"x": (FLOAT, ["N", 1, 32]), "sr": (INT64, [])}, ("y", FLOAT, ["N", 3]))


def silero_loss(rate):
    """ONNX orders the gates of an LSTM as input, output, forget, cell; PyTorch as input, forget, cell, output."""
    order = [i * HIDDEN + j for i in (0, 2, 3, 1) for j in range(HIDDEN)]

    def loss(weights, x, labels):
        h = F.relu(F.conv1d(x, weights["filters"], stride=STRIDES[rate])).permute(2, 0, 1)
        zeros = torch.zeros(1, x.shape[0], HIDDEN, dtype=x.dtype)
        bias = weights["B"][0]
        parts = [
            weights["W"][0][order], weights["R"][0][order], bias[: 4 * HIDDEN][order], bias[4 * HIDDEN :][order]
        ]  # fmt: skip
        _, last, _ = torch._VF.lstm(h, (zeros, zeros), parts, True, 1, 0.0, True, False, False)
        return F.cross_entropy(last[0] @ weights["head"], labels)

    return loss


@pytest.mark.parametrize("as_constants", [False, True], ids=["initializers", "constants"])
@pytest.mark.parametrize("rate", [16000, 8000])
def test_an_if_that_selects_by_sample_rate_trains_the_branch_it_takes(rate, as_constants, tmp_path):
    model = silero(tmp_path / "silero.onnx", as_constants)
    x, labels = draw(5, x=(5, 1, 32))["x"], np.arange(5) % 3
    expected = torch_gradients(silero_loss(rate), BRANCHES[rate], x, labels)
    found = gradients(model, tmp_path, {"x": x, "labels": labels}, "--set", f"sr={rate}")
    assert_close(found, expected, 1e-8)

    text = tool.run("check", model, "--set", f"sr={rate}")
    assert f"always takes its {'then' if rate == 16000 else 'else'}_branch" in text
    train = tmp_path / "train.onnx"
    tool.run("build", model, "-o", train, "--set", f"sr={rate}")
    built = onnx.load(train)
    assert [i.name for i in built.graph.input] == ["x"]
    assert not any(n.op_type == "If" for n in built.graph.node)
    assert {t.name for t in built.graph.initializer} >= set(BRANCHES[rate])
    sizes = {t.name: tuple(t.dims) for t in built.graph.initializer}
    assert sizes["filters"] == BRANCHES[rate]["filters"].shape


def test_an_if_that_nothing_decides_is_trained_as_it_is(tmp_path):
    text = tool.run("check", silero(tmp_path / "silero.onnx", False))
    assert "If 1" in text and "It can be trained" in text
