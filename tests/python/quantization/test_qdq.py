"""Models with QuantizeLinear and DequantizeLinear: gradients against PyTorch's fake quantization, and training them."""

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import TensorProto as T
from onnx import helper, numpy_helper

RNG = np.random.default_rng(0)
TYPES = {"int8": (np.int8, -128, 127), "uint8": (np.uint8, 0, 255), "int4": (T.INT4, -8, 7), "uint4": (T.UINT4, 0, 15)}


def value(name, shape):
    return helper.make_tensor_value_info(name, T.FLOAT, shape)


def save(path, nodes, inputs, outputs, tensors, opset=21):
    named = [t if isinstance(t, onnx.TensorProto) else numpy_helper.from_array(t, n) for n, t in tensors.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, named)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def zero_tensor(kind, values):
    dtype = TYPES[kind][0]
    if kind.endswith("4"):
        return helper.make_tensor("z", dtype, np.shape(values), np.ravel(values).tolist())
    return numpy_helper.from_array(np.asarray(values, dtype), "z")


def pair(**attributes):
    return [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], **attributes)]  # fmt: skip


def gradients(folder, model, x, *options):
    """What the command computes of sum(w d)²/2-like losses: the loss is the model's own output."""
    tool.save(folder / "x.npz", {"x": x})
    tool.run("grad", model, "--inputs", folder / "x.npz", "-o", folder / "g.npz", "--loss", "loss", *options)
    return tool.load(folder / "g.npz")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("per", ["tensor", "axis"])
def test_gradients_are_those_of_pytorchs_fake_quantization(tmp_path, kind, per):
    low, high = TYPES[kind][1:]
    # Powers of two, so that dividing by a scale and multiplying by its inverse are the same number.
    scale = np.float32([0.5, 0.125, 0.25]) if per == "axis" else np.float32(0.25)
    zero = (np.asarray([0, 2, 5]) if per == "axis" else np.asarray(3)) + (low + high + 1) // 2
    zero = np.clip(zero, low, high)
    x = (RNG.normal(size=(4, 3, 5)) * (high - low) * 0.2).astype(np.float32)
    w = RNG.normal(size=(4, 3, 5)).astype(np.float32)
    nodes = pair(**({"axis": 1} if per == "axis" else {})) + [
        helper.make_node("Mul", ["d", "w"], ["m"]), helper.make_node("ReduceSum", ["m"], ["loss"], keepdims=0)]  # fmt: skip
    tensors = {"s": scale, "z": zero_tensor(kind, zero), "w": w}
    model = save(tmp_path / "m.onnx", nodes, [value("x", [4, 3, 5])], [value("loss", [])], tensors)
    got = gradients(tmp_path, model, x)
    xt = torch.tensor(x, requires_grad=True)
    if per == "axis":
        d = torch.fake_quantize_per_channel_affine(xt, torch.tensor(scale), torch.tensor(zero, dtype=torch.int32), 1, low, high)
    else:
        d = torch.fake_quantize_per_tensor_affine(xt, float(scale), int(zero), low, high)
    loss = (d * torch.tensor(w)).sum()
    loss.backward()
    assert 0.02 < (xt.grad == 0).float().mean() < 0.98  # some are clipped, some are not
    np.testing.assert_array_equal(got["grad_input/x"], xt.grad.numpy())
    np.testing.assert_allclose(got["loss"], loss.item(), rtol=1e-5)


def test_scales_are_trained_where_they_are_named(tmp_path):
    """Against PyTorch's learnable fake quantization (LSQ with a factor of 1)."""
    x, w = (RNG.normal(size=(6, 8)) * 40).astype(np.float32), RNG.normal(size=(6, 8)).astype(np.float32)
    nodes = pair() + [helper.make_node("Mul", ["d", "w"], ["m"]), helper.make_node("ReduceSum", ["m"], ["loss"], keepdims=0)]
    tensors = {"s": np.float32(0.25), "z": np.int8(7), "w": w}
    model = save(tmp_path / "m.onnx", nodes, [value("x", [6, 8])], [value("loss", [])], tensors)
    got = gradients(tmp_path, model, x, "--train", "s")
    xt, st, zt = torch.tensor(x, requires_grad=True), torch.tensor([0.25], requires_grad=True), torch.tensor([7.0])
    d = torch._fake_quantize_learnable_per_tensor_affine(xt, st, zt, -128, 127)
    (d * torch.tensor(w)).sum().backward()
    np.testing.assert_allclose(got["grad/s"], st.grad.item(), rtol=1e-5)
    np.testing.assert_array_equal(got["grad_input/x"], xt.grad.numpy())


@pytest.mark.parametrize("rows", [64, 60])
def test_blocks_of_stored_weights_are_what_onnx_runtime_reads(tmp_path, rows):
    """[rows, 6] in blocks of 16 along axis 0; the last block of 60 is not whole. int8 and int4."""
    for kind in ("int8", "int4"):
        low, high = TYPES[kind][1:]
        q = RNG.integers(low, high + 1, (rows, 6))
        stored = (helper.make_tensor("q", T.INT4, q.shape, q.ravel().tolist()) if kind == "int4"
                  else numpy_helper.from_array(q.astype(np.int8), "q"))  # fmt: skip
        tensors = {"q": stored, "s": RNG.uniform(0.1, 1, ((rows + 15) // 16, 6)).astype(np.float32)}
        nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=16),
                 helper.make_node("MatMul", ["x", "w"], ["y"])]  # fmt: skip
        model = save(tmp_path / f"{kind}.onnx", nodes, [value("x", ["n", rows])], [value("y", ["n", 6])], tensors)
        x = RNG.normal(size=(3, rows)).astype(np.float32)
        tool.save(tmp_path / "x.npz", {"x": x})
        tool.run("predict", model, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
        np.testing.assert_allclose(tool.load(tmp_path / "y.npz")["y"], tool.session(model).run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)


def qdq_classifier(path, opset):
    """As ONNX Runtime's quantizer writes it: int8 weights behind DequantizeLinear, pairs around activations."""
    w, v = RNG.normal(size=(4, 6)), RNG.normal(size=(6, 3)).astype(np.float32)
    scale = np.float32(np.abs(w).max() / 127)
    tensors = {
        "w_quantized": np.clip(np.round(w / scale), -128, 127).astype(np.int8), "w_scale": scale, "w_zero_point": np.int8(0),
        "xs": np.float32(0.03), "xz": np.uint8(128), "rs": np.float32(0.05), "rz": np.int8(-128),
        "b": RNG.normal(size=6).astype(np.float32), "v": v, "c": RNG.normal(size=3).astype(np.float32),
    }  # fmt: skip
    nodes = [helper.make_node(op, i.split(), [o]) for op, i, o in (
        ("QuantizeLinear", "x xs xz", "xq"), ("DequantizeLinear", "xq xs xz", "xd"),
        ("DequantizeLinear", "w_quantized w_scale w_zero_point", "wd"), ("Gemm", "xd wd b", "a"), ("Relu", "a", "r"),
        ("QuantizeLinear", "r rs rz", "rq"), ("DequantizeLinear", "rq rs rz", "rd"), ("Gemm", "rd v c", "y"))]  # fmt: skip
    return save(path, nodes, [value("x", ["n", 4])], [value("y", ["n", 3])], tensors, opset), tensors


@pytest.mark.parametrize("opset", [13, 21])
def test_a_quantized_classifier_trains_with_frozen_integers_or_a_float_master(tmp_path, opset):
    model, tensors = qdq_classifier(tmp_path / "m.onnx", opset)
    data = {"x": RNG.normal(size=(16, 4)).astype(np.float32), "labels": RNG.integers(0, 3, 16)}
    tool.save(tmp_path / "d.npz", data)
    tool.run("predict", model, "--inputs", tmp_path / "d.npz", "-o", tmp_path / "p.npz")
    before = tool.session(model).run(None, {"x": data["x"]})[0]
    np.testing.assert_allclose(tool.load(tmp_path / "p.npz")["y"], before, rtol=1e-5, atol=1e-5)
    said = tool.run("check", model)
    assert "2 pairs of QuantizeLinear and DequantizeLinear" in said and "--train NAME" in said

    def train(*options):
        tool.run("build", model, "-o", tmp_path / "t.onnx", "--optimizer", "sgd", *options)
        tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--steps", 3, "--batch-size", 16, "--lr", 0.5,
                 "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run", "--overwrite")  # fmt: skip
        tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "e.onnx")
        graph = onnx.load(tmp_path / "e.onnx").graph
        return graph, {t.name: numpy_helper.to_array(t) for t in graph.initializer}

    def torch_weights(names):
        t = {n: torch.tensor(np.asarray(a, np.float32)) for n, a in tensors.items()}
        w = t["w_quantized"] * t["w_scale"]
        trained = {"w": w, "b": t["b"], "v": t["v"], "c": t["c"]}
        for n in names:
            trained[n].requires_grad_()
        x, labels = torch.tensor(data["x"]), torch.tensor(data["labels"])
        for _ in range(3):
            xd = torch.fake_quantize_per_tensor_affine(x, float(t["xs"]), 128, 0, 255)
            wd = torch.fake_quantize_per_tensor_affine(trained["w"], float(t["w_scale"]), 0, -128, 127)
            r = torch.relu(xd @ wd + trained["b"])
            rd = torch.fake_quantize_per_tensor_affine(r, float(t["rs"]), -128, -128, 127)
            loss = torch.nn.functional.cross_entropy(rd @ trained["v"] + trained["c"], labels)
            grads = torch.autograd.grad(loss, [trained[n] for n in names])
            for n, g in zip(names, grads):
                trained[n] = (trained[n] - 0.5 * g).detach().requires_grad_()
        return {n: a.detach().numpy() for n, a in trained.items()}

    graph, weights = train()
    expected = torch_weights(["b", "v", "c"])
    np.testing.assert_array_equal(weights["w_quantized"], tensors["w_quantized"])
    for n in ("v", "c"):
        np.testing.assert_allclose(weights[n], expected[n], rtol=1e-4, atol=1e-5)
    assert sum(n.op_type == "QuantizeLinear" for n in graph.node) == 2

    graph, weights = train("--train", "w,b,v,c")
    expected = torch_weights(["w", "b", "v", "c"])
    steps = np.clip(np.round(expected["w"] / tensors["w_scale"]), -128, 127)
    assert np.abs(weights["w_quantized"].astype(int) - steps).max() <= 1 and (steps != tensors["w_quantized"]).any()
    np.testing.assert_allclose(weights["v"], expected["v"], rtol=1e-4, atol=1e-5)


def test_dynamic_quantization_goes_straight_through(tmp_path):
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
             helper.make_node("Mul", ["d", "w"], ["m"]), helper.make_node("ReduceSum", ["m"], ["loss"], keepdims=0)]  # fmt: skip
    w = RNG.normal(size=(3, 5)).astype(np.float32)
    model = save(tmp_path / "m.onnx", nodes, [value("x", [3, 5])], [value("loss", [])], {"w": w})
    x = RNG.normal(size=(3, 5)).astype(np.float32)
    got = gradients(tmp_path, model, x)
    np.testing.assert_array_equal(got["grad_input/x"], w)
    np.testing.assert_allclose(got["loss"], tool.session(model).run(None, {"x": x})[0], rtol=1e-5)


def test_integers_that_nothing_takes_back_are_an_obstacle(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("QuantizeLinear", ["h", "s", "z"], ["q"]),
             helper.make_node("Cast", ["q"], ["c"], to=T.FLOAT), helper.make_node("ReduceSum", ["c"], ["loss"], keepdims=0)]  # fmt: skip
    tensors = {"w": RNG.normal(size=(3, 5)).astype(np.float32), "s": np.float32(0.1), "z": np.int8(0)}
    model = save(tmp_path / "m.onnx", nodes, [value("x", [3, 5])], [value("loss", [])], tensors)
    said = tool.run("build", model, "-o", tmp_path / "t.onnx", "--loss", "loss", status=1)
    assert "QuantizeLinear" in said and "QDQ" in said
