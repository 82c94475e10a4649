"""Quant, BipolarQuant and Trunc of QONNX: numbers as QONNX defines them, gradients as Brevitas' straight-through ones."""

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import TensorProto as T
from onnx import helper, numpy_helper

RNG = np.random.default_rng(0)
DOMAIN = "qonnx.custom_op.general"


def value(name, shape):
    return helper.make_tensor_value_info(name, T.FLOAT, shape)


def node(op, inputs, outputs, **attributes):
    domain = DOMAIN if op in ("Quant", "IntQuant", "BipolarQuant", "Trunc", "FloatQuant") else ""
    return helper.make_node(op, inputs.split(), [outputs], domain=domain, **attributes)


def save(path, nodes, inputs, outputs, tensors):
    named = [numpy_helper.from_array(np.asarray(t, np.float32), n) for n, t in tensors.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, named)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def straight(x, rounded):
    """The number `rounded` with the gradient of x."""
    return x + (rounded - x).detach()


ROUNDINGS = {
    "ROUND": torch.round, "floor": torch.floor, "CEIL": torch.ceil,
    "UP": lambda u: u.sign() * u.abs().ceil(), "DOWN": torch.trunc,
    "HALF_UP": lambda u: u.sign() * (u.abs() + 0.5).floor(), "HALF_DOWN": lambda u: u.sign() * (u.abs() - 0.5).ceil(),
}  # fmt: skip


def quant(x, scale, zero, bits, signed, narrow, mode):
    u = x / scale + zero
    q = straight(u, ROUNDINGS[mode](u))
    low = (-(2 ** (bits - 1)) + narrow) if signed else 0
    high = (2 ** (bits - 1) - 1) if signed else 2**bits - 1 - narrow
    return (q.clamp(low, high) - zero) * scale


def double(x):
    return torch.tensor(np.asarray(x, np.float64))


def gradient_of_sum(tmp_path, nodes, tensors, x, w):
    """loss = Σ w d, and its gradient by x; the value on ONNX Runtime of what is exported."""
    nodes = [*nodes, node("Mul", "d w", "m"), helper.make_node("ReduceSum", ["m"], ["loss"], keepdims=0)]
    model = save(tmp_path / "m.onnx", nodes, [value("x", x.shape)], [value("loss", [])], tensors | {"w": w})
    tool.save(tmp_path / "x.npz", {"x": x})
    tool.run("grad", model, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "g.npz", "--loss", "loss")
    got = tool.load(tmp_path / "g.npz")
    return got["loss"], got["grad_input/x"]


# bits, signed, narrow, rounding, zero point
QUANTS = [(4, 1, 0, "ROUND", 0), (4, 1, 1, "ROUND", 0), (3, 0, 0, "ROUND", 2), (8, 0, 1, "ROUND", 0), (4, 1, 0, "ROUND", 1),
          (4, 1, 0, "floor", 0), (4, 1, 0, "CEIL", 0), (4, 0, 0, "UP", 0), (4, 1, 0, "DOWN", 0), (4, 1, 0, "HALF_UP", 0),
          (4, 1, 0, "HALF_DOWN", 0), (12, 1, 0, "ROUND", 0), (24, 1, 0, "ROUND", 0)]  # fmt: skip


@pytest.mark.parametrize("case", QUANTS, ids=str)
@pytest.mark.parametrize("channels", [False, True])
def test_quant_rounds_and_its_gradient_goes_straight_through(tmp_path, case, channels):
    bits, signed, narrow, mode, zero = case
    scale = np.float32([[[0.5]], [[0.125]], [[0.25]]]) if channels else np.float32(0.25)
    x = np.round(RNG.normal(size=(2, 3, 4, 5)) * 2 ** (bits - 2) * 16).astype(np.float32) / 64  # some between two integers
    w = RNG.normal(size=x.shape).astype(np.float32)
    attributes = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
    loss, dx = gradient_of_sum(tmp_path, [node("Quant", "x s z b", "d", **attributes)], {"s": scale, "z": zero, "b": bits}, x, w)
    p = double(x).requires_grad_()
    d = quant(p, double(scale), zero, bits, signed, narrow, mode)
    d.backward(double(w))
    terms = (d.detach() * double(w)).numpy()  # whose sum may cancel
    np.testing.assert_allclose(loss, terms.sum(), atol=1e-6 * np.abs(terms).sum())
    np.testing.assert_allclose(dx, p.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("op", ["activation", "weight"])
def test_bipolar_quant_passes_what_brevitas_passes(tmp_path, op):
    """Of a weight, dy scale (BinaryQuant); of an activation, the same where |x| <= scale (ClampedBinaryQuant)."""
    x, w = RNG.normal(size=(4, 6)).astype(np.float32), RNG.normal(size=(6, 3)).astype(np.float32)
    x[0, :2] = 0, -0.0
    quantized = [node("BipolarQuant", "x s", "xq"), node("MatMul", "xq w", "y")] if op == "activation" else [
        node("BipolarQuant", "w s", "wq"), node("MatMul", "x wq", "y")]  # fmt: skip
    model = save(tmp_path / "m.onnx", quantized, [value("x", [4, 6])], [value("y", [4, 3])], {"w": w, "s": np.float32(0.7)})
    labels = RNG.integers(0, 3, 4)
    tool.save(tmp_path / "d.npz", {"x": x, "labels": labels})
    tool.run("grad", model, "--inputs", tmp_path / "d.npz", "-o", tmp_path / "g.npz", "--loss", "cross_entropy")
    got = tool.load(tmp_path / "g.npz")
    p, q = double(x).requires_grad_(), double(w).requires_grad_()
    s = float(np.float32(0.7))
    sign = lambda u: straight(u, torch.where(u >= 0, 1.0, -1.0).double()) * s  # noqa: E731
    y = (sign(p.clamp(-s, s)) @ q) if op == "activation" else (p @ sign(q))
    torch.nn.functional.cross_entropy(y, torch.tensor(labels)).backward()
    np.testing.assert_allclose(got["grad_input/x"], p.grad.numpy(), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(got["grad/w"], q.grad.numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("mode", ["FLOOR", "ROUND", "CEIL"])
def test_trunc_divides_integers_by_a_power_of_two(tmp_path, version, mode):
    scale, k = np.float32(0.1), 3
    x = (RNG.integers(-200, 200, (5, 7)) * scale).astype(np.float32)
    w = RNG.normal(size=x.shape).astype(np.float32)
    names = "x s z before after" if version == 1 else "x s z before out after"
    tensors = {"s": scale, "z": 0, "before": 8, "after": 8 - k} | ({"out": scale * 8} if version == 2 else {})
    loss, dx = gradient_of_sum(tmp_path, [node("Trunc", names, "d", rounding_mode=mode)], tensors, x, w)
    p = double(x).requires_grad_()
    u = straight(p / double(scale), torch.round(p / double(scale))) / 2**k
    d = straight(u, {"FLOOR": torch.floor, "ROUND": torch.round, "CEIL": torch.ceil}[mode](u))
    if version == 2:
        d = d.clamp(-16, 15)
    d = d * double(scale) * (8 if version == 2 else 1)
    d.backward(double(w))
    np.testing.assert_allclose(loss, (d.detach() * double(w)).sum().item(), rtol=1e-4)
    np.testing.assert_allclose(dx, p.grad.numpy(), rtol=1e-5)


def network(path):
    """As Brevitas writes a small classifier: 4 bits by channel, a bias of 32 bits in units of two scales, a binary layer."""
    F = lambda *s: RNG.normal(size=s).astype(np.float32)  # noqa: E731
    tensors = {"W": F(6, 4), "b": F(6), "V": F(3, 6), "c": F(3), "sx": 0.0625, "z": 0, "b8": 8, "b4": 4, "b32": 32,
               "sw": np.abs(F(6, 1)) + 0.1, "sw_row": 0.2, "sh": 0.125, "sv": 0.6}  # fmt: skip
    rounded = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"}
    nodes = [node("Quant", "x sx z b8", "xq", **rounded), node("Quant", "W sw z b4", "Wq", **(rounded | {"narrow": 1})),
             node("Mul", "sx sw_row", "sb"), node("Quant", "b sb z b32", "bq", **rounded),
             node("Gemm", "xq Wq bq", "h", transB=1), node("Relu", "h", "r"),
             node("Quant", "r sh z b4", "hq", **(rounded | {"signed": 0})), node("BipolarQuant", "V sv", "Vq"),
             node("Gemm", "hq Vq c", "y", transB=1)]  # fmt: skip
    return save(path, nodes, [value("x", ["n", 4])], [value("y", ["n", 3])], tensors), tensors


def test_a_network_of_brevitas_trains_and_its_export_runs_on_onnx_runtime(tmp_path):
    model, start = network(tmp_path / "m.onnx")
    data = {"x": RNG.normal(size=(16, 4)).astype(np.float32), "labels": RNG.integers(0, 3, 16)}
    tool.save(tmp_path / "d.npz", data)
    said = tool.run("build", model, "-o", tmp_path / "t.onnx", "--optimizer", "sgd")
    assert "trained         4 tensors" in said, said  # W, b, V and c; no scale
    tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--steps", 5, "--batch-size", 16, "--lr", 0.2,
             "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    P = {n: double(np.float32(start[n])).requires_grad_() for n in "WbVc"}
    s = {n: double(np.float32(a)) for n, a in start.items()}
    optimizer = torch.optim.SGD(P.values(), 0.2)

    def forward():
        x = quant(double(data["x"]), s["sx"], 0, 8, 1, 0, "ROUND")
        w = quant(P["W"], s["sw"], 0, 4, 1, 1, "ROUND")
        h = torch.relu(x @ w.T + quant(P["b"], s["sx"] * s["sw_row"], 0, 32, 1, 0, "ROUND"))
        v = straight(P["V"], torch.where(P["V"] >= 0, 1.0, -1.0).double()) * s["sv"]
        return quant(h, s["sh"], 0, 4, 0, 0, "ROUND") @ v.T + P["c"]

    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward(), torch.tensor(data["labels"])).backward()
        optimizer.step()
    expected = forward().detach().numpy()
    last, exported = tmp_path / "run" / "last.onnx", tmp_path / "e.onnx"
    tool.run("export", last, "-o", exported)
    np.testing.assert_allclose(tool.session(exported).run(None, {"x": data["x"]})[0], expected, atol=1e-4)
    np.testing.assert_allclose(tool.session(exported, optimize=True).run(None, {"x": data["x"]})[0], expected, atol=1e-2)
    graph = onnx.load(exported).graph
    assert {n.domain for n in graph.node} <= {"", "onnx_train"}
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    assert stored["W_quantized"].dtype == np.int8 and np.abs(stored["W_quantized"].astype(int)).max() <= 7
    # The checkpoint and the export train on: what QuantizeLinear cannot say keeps its gradient.
    for source, trained in ((last, 4), (exported, 3)):  # W is in integers there
        said = tool.run("build", source, "-o", tmp_path / "again.onnx")
        assert f"trained         {trained} tensors" in said, said


@pytest.mark.parametrize("attributes, tensors, reason", [
    ({"rounding_mode": "STOCHASTIC"}, {}, "rounding_mode is 'STOCHASTIC'"),
    ({}, {"b": 4.5}, "bit width is 4.5"),
    ({}, {"b": [4, 4]}, "not one constant"),
])  # fmt: skip
def test_what_has_no_form_is_refused_by_name(tmp_path, attributes, tensors, reason):
    nodes = [node("Quant", "x s z b", "y", **({"signed": 1, "narrow": 0} | attributes))]
    model = save(tmp_path / "m.onnx", nodes, [value("x", [2, 3])], [value("y", [2, 3])], {"s": 0.5, "z": 0, "b": 4} | tensors)
    said = tool.run("check", model, status=1)
    assert reason in said and "Quant" in said, said


def test_floats_of_few_bits_are_refused_by_name(tmp_path):
    nodes = [node("FloatQuant", "x s b", "y")]
    model = save(tmp_path / "m.onnx", nodes, [value("x", [2, 3])], [value("y", [2, 3])], {"s": 0.5, "b": 4})
    said = tool.run("check", model, status=1)
    assert "FloatQuant" in said and "integer quantizers" in said, said


def test_one_tensor_may_say_several_bit_widths(tmp_path):
    x = (RNG.integers(-200, 200, (5, 7)) * np.float32(0.125)).astype(np.float32)
    loss, dx = gradient_of_sum(tmp_path, [node("Trunc", "x s z b b", "d")], {"s": 0.125, "z": 0, "b": 8}, x, np.ones_like(x))
    np.testing.assert_allclose(loss, x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(dx, np.ones_like(x))


def test_scales_without_numbers_are_refused(tmp_path):
    nodes = [node("Trunc", "x s z b out b", "y")]
    model = save(tmp_path / "m.onnx", nodes, [value("x", [2, 3])], [value("y", [2, 3])], {"s": 0.5, "z": 0, "b": 8, "out": []})
    assert "scales" in tool.run("check", model, status=1)
