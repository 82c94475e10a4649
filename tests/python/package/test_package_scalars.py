"""Derivatives of models without weights, and of scalars, are those of torch.func in float64."""

import numpy as np
import pytest
import tool
import torch
from onnx import parser

import onnx_train

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
SCALARS = HEADER + "g (float a, float b) => (float c) { p = Mul(a, b) s = Sin(a) q = Mul(s, a) c = Add(p, q) }"
VECTORS = HEADER + """g (float[N, 3] x, float k) => (float[N, 3] y, float m) {
    h = Tanh(x) p = Softmax<axis = 1>(h) y = Mul(p, k) m = ReduceMean<keepdims = 0>(h)
}"""
OPTIONS = {"dtype": "float64", "threads": 1}


def scalars(p):
    return p["a"] * p["b"] + torch.sin(p["a"]) * p["a"]


def vectors(p):
    h = torch.tanh(p["x"])
    return h.softmax(1) * p["k"], h.mean()


def mse(p):
    return ((vectors(p)[0] - p["target"]) ** 2).mean()


def same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.shape(found[name]) == tuple(value.shape), name
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


def tensors(arrays):
    return {name: torch.tensor(array) for name, array in arrays.items()}


def batch_of(samples=4):
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(samples, 3)), "k": np.array(1.5), "target": rng.normal(size=(samples, 3))}


def test_value_and_gradients_of_scalars():
    arrays = {"a": np.array(1.5), "b": np.array(-2.0)}
    expected, value = torch.func.grad_and_value(scalars)(tensors(arrays))
    loss, found = onnx_train.value_and_grad(parser.parse_model(SCALARS), "c", **OPTIONS)(arrays)
    assert loss == pytest.approx(value.item(), rel=1e-12)
    same(found, expected)
    same(onnx_train.grad(parser.parse_model(SCALARS), "c", **OPTIONS)(arrays), expected)
    same(onnx_train.jacobian(parser.parse_model(SCALARS), **OPTIONS)(arrays)["c"], expected)
    assert onnx_train.verify(parser.parse_model(SCALARS), "c", arrays, threads=1)
    losses, rows = onnx_train.per_sample_grad(parser.parse_model(SCALARS), "c", **OPTIONS)(arrays)
    assert losses.shape == (1,) and losses[0] == pytest.approx(value.item(), rel=1e-12)
    same(rows, {name: gradient[None] for name, gradient in expected.items()})


def test_second_derivatives_of_scalars():
    arrays, along = {"a": np.array(1.5), "b": np.array(-2.0)}, {"a": np.array(0.5), "b": np.array(2.0)}
    _, expected = torch.func.jvp(torch.func.grad(scalars), (tensors(arrays),), (tensors(along),))
    same(onnx_train.hvp(parser.parse_model(SCALARS), "c", **OPTIONS)(arrays, along), expected)
    _, derivative = torch.func.jvp(scalars, (tensors(arrays),), (tensors(along),))
    same(onnx_train.jvp(parser.parse_model(SCALARS), **OPTIONS)(arrays, along)[1], {"c": derivative})


def test_a_model_without_weights_with_a_loss_that_has_a_target():
    batch = batch_of()
    expected, value = torch.func.grad_and_value(mse)(tensors(batch))
    loss, found = onnx_train.value_and_grad(parser.parse_model(VECTORS), "mse(y, target)", **OPTIONS)(batch)
    assert loss == pytest.approx(value.item(), rel=1e-12)
    same(found, expected)
    assert onnx_train.verify(parser.parse_model(VECTORS), "mse(y, target)", batch, threads=1)
    jacobians = onnx_train.jacobian(parser.parse_model(VECTORS), **OPTIONS)({"x": batch["x"], "k": batch["k"]})
    point = tensors({"x": batch["x"], "k": batch["k"]})
    y, m = torch.func.jacrev(vectors)(point)
    same(jacobians["y"], y)
    np.testing.assert_allclose(jacobians["m"]["x"], m["x"], rtol=1e-10)


def test_each_sample_of_a_model_with_a_scalar():
    batch = batch_of(3)
    losses, rows = onnx_train.per_sample_grad(parser.parse_model(VECTORS), "mse(y, target)", **OPTIONS)(batch)
    for i in range(3):
        sample = tensors(batch) | {name: torch.tensor(batch[name][i : i + 1]) for name in ("x", "target")}
        expected, value = torch.func.grad_and_value(mse)(sample)
        assert losses[i] == pytest.approx(value.item(), rel=1e-12)
        for name in ("x", "target"):
            np.testing.assert_allclose(rows[name][i], expected[name][0], rtol=1e-10, atol=1e-13)
        assert rows["k"][i] == pytest.approx(expected["k"].item(), rel=1e-10)


def test_the_command_takes_scalars(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(parser.parse_model(VECTORS).SerializeToString())
    batch = batch_of(3)
    data = tool.save(tmp_path / "d.npz", batch)
    for option, key in (("--jacobian", "jacobian/y/k"), ("--per-sample", "grad_input/k")):
        loss = ["--loss", "mse(y, target)"] if option == "--per-sample" else []
        tool.run("grad", model, "--inputs", data, "-o", tmp_path / "g.npz", "--dtype", "float64", option, *loss)
        assert key in tool.load(tmp_path / "g.npz")
    samples = [torch.func.grad(mse)(tensors(batch) | {n: torch.tensor(batch[n][i : i + 1]) for n in ("x", "target")})
               for i in range(3)]  # fmt: skip
    found = tool.load(tmp_path / "g.npz")
    np.testing.assert_allclose(found["grad_input/k"], [s["k"] for s in samples], rtol=1e-10)
    np.testing.assert_allclose(found["grad_input/x"], np.stack([s["x"][0] for s in samples]), rtol=1e-10)

