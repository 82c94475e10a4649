"""QuantizeLinear, Clip, DequantizeLinear, as Brevitas exports few bits: gradients against float64, training, exports."""

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import TensorProto as T
from onnx import helper, numpy_helper

RNG = np.random.default_rng(0)
N = helper.make_node


def value(name, shape):
    return helper.make_tensor_value_info(name, T.FLOAT, shape)


def save(path, nodes, inputs, outputs, tensors, opset=17):
    named = [numpy_helper.from_array(np.asarray(t), n) for n, t in tensors.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, named)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


class Straight(torch.autograd.Function):
    """Rounds to low .. high; the gradient passes where the rounded number is one of them."""

    @staticmethod
    def forward(ctx, x, scale, zero, low, high):
        q = torch.round(x / scale) + zero
        ctx.save_for_backward((q >= low) & (q <= high))
        return (q.clamp(low, high) - zero) * scale

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0], None, None, None, None


def double(x, **kwargs):
    return torch.tensor(np.asarray(x, np.float64), **kwargs)


# What is between the two, on integers of which type, the range that is left.
BETWEEN = {
    "clip": ([N("Clip", ["q", "low", "high"], ["c"])], np.int8, -3, 3),
    "only a lower bound": ([N("Clip", ["q", "low"], ["c"])], np.int8, -5, 127),
    "only an upper bound": ([N("Clip", ["q", "", "high"], ["c"])], np.uint8, 0, 15),
    "no bound": ([N("Clip", ["q"], ["c"])], np.int8, -128, 127),
    "max and min": ([N("Max", ["q", "low"], ["m"]), N("Min", ["high", "m"], ["c"])], np.uint8, 2, 14),
    "two clips": ([N("Clip", ["q", "low"], ["m"]), N("Clip", ["m", "", "high"], ["c"])], np.int8, -7, 7),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("channels", [False, True])
def test_the_gradient_passes_where_the_rounded_number_is_in_the_narrower_range(tmp_path, between, channels):
    nodes, dtype, low, high = BETWEEN[between]
    # Powers of two: x / scale is then one number in float32 and in float64.
    scale = np.float32([0.5, 0.125, 0.25]) if channels else np.float32(0.25)
    zero = dtype(np.array([3, 4, 6]) if channels else 5)
    axis = {"axis": 1} if channels else {}
    nodes = [N("QuantizeLinear", ["x", "s", "z"], ["q"], **axis), *nodes, N("DequantizeLinear", ["c", "s", "z"], ["d"], **axis),
             N("Mul", ["d", "w"], ["m2"]), N("ReduceSum", ["m2"], ["loss"], keepdims=0)]  # fmt: skip
    x = (RNG.normal(size=(4, 3, 5)) * 3).astype(np.float32)
    w = RNG.normal(size=(4, 3, 5)).astype(np.float32)
    model = save(tmp_path / "m.onnx", nodes, [value("x", x.shape)], [value("loss", [])],
                 {"s": scale, "z": zero, "low": dtype(low), "high": dtype(high), "w": w})  # fmt: skip
    tool.save(tmp_path / "x.npz", {"x": x})
    tool.run("grad", model, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "g.npz", "--loss", "loss")
    got = tool.load(tmp_path / "g.npz")
    p = double(x, requires_grad=True)
    by_channel = (lambda a: double(a).reshape(-1, 1)) if channels else double
    d = Straight.apply(p, by_channel(scale), by_channel(zero), low, high)
    d.backward(double(w))
    expected, loss = p.grad.numpy(), d.detach().numpy() * w
    if between != "no bound":
        assert 0.02 < (expected == 0).mean() < 0.98  # some are clipped, some are not
    np.testing.assert_array_equal(got["grad_input/x"], expected.astype(np.float32))
    np.testing.assert_allclose(got["loss"], loss.sum(), rtol=1e-5)
    np.testing.assert_allclose(got["loss"], tool.session(model).run(None, {"x": x})[0], rtol=1e-5)


def layer(tensors, weight_nodes, path):
    nodes = [N("QuantizeLinear", ["x", "xs", "xz"], ["xq"]), N("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]), *weight_nodes,
             N("Gemm", ["xd", "wd", "b"], ["y"])]  # fmt: skip
    tensors = {"xs": np.float32(0.0625), "xz": np.uint8(128), "b": RNG.normal(size=3).astype(np.float32)} | tensors
    return save(path, nodes, [value("x", ["n", 4])], [value("y", ["n", 3])], tensors)


def trained(tmp_path, model, data, *options, steps=4):
    tool.save(tmp_path / "d.npz", data)
    tool.run("build", model, "-o", tmp_path / "t.onnx", "--optimizer", "sgd", *options)
    tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--steps", steps, "--batch-size", 16, "--lr", 0.5,
             "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run", "--overwrite")  # fmt: skip
    said = tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "e.onnx")
    return tmp_path / "run" / "last.onnx", tmp_path / "e.onnx", said


def test_stored_weights_behind_a_clip_keep_their_range_in_training_and_in_the_export(tmp_path):
    """Brevitas stores weights so by default: int8, Clip, DequantizeLinear."""
    w = np.int8([[-7, 7, 7], [-7, 6, -7], [7, -7, -6], [6, 7, -7]])
    clipped = [N("Clip", ["w", "low", "high"], ["wc"]), N("DequantizeLinear", ["wc", "ws"], ["wd"])]
    tensors = {"w": w, "ws": np.float32(0.125), "low": np.int8(-7), "high": np.int8(7)}
    model = layer(tensors, clipped, tmp_path / "m.onnx")
    data = {"x": RNG.normal(size=(16, 4)).astype(np.float32), "labels": RNG.integers(0, 3, 16)}
    start = numpy_helper.to_array(next(t for t in onnx.load(model).graph.initializer if t.name == "b"))

    def expected(train_w, steps):
        weight, bias = double(w * 0.125, requires_grad=train_w), double(start, requires_grad=True)
        optimizer = torch.optim.SGD([bias, weight] if train_w else [bias], 0.5)
        for _ in range(steps):
            xd = Straight.apply(double(data["x"]), 0.0625, 128, 0, 255)
            y = xd @ Straight.apply(weight, 0.125, 0, -7, 7) + bias
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(y, torch.tensor(data["labels"])).backward()
            optimizer.step()
        return torch.round(weight / 0.125).clamp(-7, 7).detach().numpy(), y.detach().numpy()

    said = tool.run("check", model)
    assert "1 stored weight: integers: 'w'" in said, said
    exported = {}
    for train in (False, True):
        last, path, _ = trained(tmp_path, model, data, *(["--train", "w,b"] if train else []))
        exported[train] = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    np.testing.assert_array_equal(exported[False]["w"], w)
    steps, _ = expected(True, 4)
    assert (steps != w).any()
    np.testing.assert_array_equal(exported[True]["w_quantized"], steps)
    # What was exported trains on in the same range, and so does the checkpoint.
    for source in (path, last):
        _, again, _ = trained(tmp_path, source, data, "--train", "w*,b", steps=8)
        numbers = {t.name: numpy_helper.to_array(t) for t in onnx.load(again).graph.initializer}
        assert np.abs(next(a for n, a in numbers.items() if n.startswith("w_quantized")).astype(int)).max() <= 7


def test_biases_of_few_bits_stay_floats_in_the_export_and_it_says_so(tmp_path):
    """A unit of the product of two scales of 4 bits is coarse: with the bias in it, the export gives other numbers."""
    nodes = [N("QuantizeLinear", ["w", "ws", "wz"], ["wq"]), N("Clip", ["wq", "low", "high"], ["wc"]), N("DequantizeLinear", ["wc", "ws", "wz"], ["wd"])]
    tensors = {"w": RNG.normal(size=(4, 3)).astype(np.float32), "ws": np.float32(0.3), "wz": np.int8(0), "low": np.int8(-7), "high": np.int8(7)}
    model = layer(tensors, nodes, tmp_path / "m.onnx")
    data = {"x": RNG.normal(size=(16, 4)).astype(np.float32), "labels": RNG.integers(0, 3, 16)}
    last, path, said = trained(tmp_path, model, data)
    assert "they stay floats: bias 'b'" in said and "fewer than 8 bits" in said, said
    tool.run("predict", last, "--inputs", tmp_path / "d.npz", "-o", tmp_path / "p.npz")
    np.testing.assert_allclose(tool.session(path).run(None, {"x": data["x"]})[0], tool.load(tmp_path / "p.npz")["y"], atol=1e-5)


def test_a_bias_in_int32_trains_and_is_int32_in_the_export(tmp_path):
    w, b = np.int8(RNG.integers(-127, 128, (4, 3))), np.int32([300, -200, 100])
    nodes = [N("DequantizeLinear", ["w", "ws"], ["wd"]), N("DequantizeLinear", ["b_quantized", "bs"], ["bd"])]
    model = layer({"w": w, "ws": np.float32(0.01), "b_quantized": b, "bs": np.float32(0.000625)}, nodes, tmp_path / "m.onnx")
    graph = onnx.load(model)
    graph.graph.node[-1].input[2] = "bd"
    graph.graph.initializer.remove(next(t for t in graph.graph.initializer if t.name == "b"))
    onnx.save(graph, model)
    data = {"x": RNG.normal(size=(16, 4)).astype(np.float32), "labels": RNG.integers(0, 3, 16)}
    # What was trained trains on: the checkpoint, whose bias is a float that is rounded, and the export, in integers.
    for source in (model, tmp_path / "run" / "last.onnx", tmp_path / "e.onnx"):
        last, path, _ = trained(tmp_path, source, data, "--train", "b")
        stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
        assert stored["b_quantized"].dtype == np.int32 and (stored["b_quantized"] != b).any()
        tool.run("predict", last, "--inputs", tmp_path / "d.npz", "-o", tmp_path / "p.npz")
        np.testing.assert_allclose(tool.session(path).run(None, {"x": data["x"]})[0], tool.load(tmp_path / "p.npz")["y"], atol=1e-5)
        b = stored["b_quantized"]


def test_a_bound_that_is_computed_is_an_obstacle_and_not_a_frozen_weight(tmp_path):
    nodes = [N("Cast", ["limit"], ["high"], to=T.INT8), N("QuantizeLinear", ["w", "ws", "wz"], ["wq"]),
             N("Clip", ["wq", "", "high"], ["wc"]), N("DequantizeLinear", ["wc", "ws", "wz"], ["wd"]), N("MatMul", ["x", "wd"], ["y"])]  # fmt: skip
    tensors = {"w": RNG.normal(size=(4, 3)).astype(np.float32), "ws": np.float32(0.3), "wz": np.int8(0)}
    model = save(tmp_path / "m.onnx", nodes, [value("x", ["n", 4]), value("limit", [])], [value("y", ["n", 3])], tensors)
    said = tool.run("build", model, "-o", tmp_path / "t.onnx", status=1)
    assert "QuantizeLinear" in said and "Clips to constants" in said, said
