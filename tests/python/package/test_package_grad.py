"""Gradients for numpy."""

import numpy as np
import pytest
import reference
import tool
import torch
import networks

import onnx_train
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_value_and_gradients_are_those_of_pytorch(exported, name):
    example, path = exported(name, double=True)
    batch = reference.arrays(reference.to_double(example))
    expected = reference.gradients(example, "eval")
    value, gradients = onnx_train.value_and_grad(path, example.loss, threads=1)(batch)
    assert value == pytest.approx(expected["loss"], rel=1e-9)
    found = 0
    for key, gradient in {**expected["inputs"], **expected["gradients"]}.items():
        ours = [g for g in gradients.values() for g in (g, g.T) if g.shape == gradient.shape]
        found += any(np.allclose(g, gradient, rtol=1e-6, atol=1e-10) for g in ours)
    assert found == len(expected["inputs"]) + len(expected["gradients"])


def test_weights_of_the_caller_take_the_place_of_the_files():
    rng = np.random.default_rng(0)
    f = onnx_train.value_and_grad(MLP, "cross_entropy", dtype="float64", threads=1)
    batch = rng.normal(size=(5, 4)), rng.integers(0, 3, 5)
    weight = rng.normal(size=(16, 3))
    direction = rng.normal(size=(16, 3))
    value, gradients = f(batch, {"fc2.weight": weight})
    assert value != f(batch)[0]
    h = 1e-6
    above, below = (f(batch, {"fc2.weight": weight + sign * h * direction})[0] for sign in (1, -1))
    quotient = (above - below) / (2 * h)
    assert quotient == pytest.approx(np.sum(gradients["fc2.weight"] * direction), rel=1e-6)
    only = onnx_train.grad(MLP, "cross_entropy", dtype="float64", threads=1)(batch, {"fc2.weight": weight})
    assert all(np.array_equal(only[key], gradients[key]) for key in gradients)


def test_frozen_weights_have_no_gradients_and_are_read():
    batch = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    value, gradients = onnx_train.value_and_grad(MLP, "cross_entropy", threads=1)(batch)
    less, others = onnx_train.value_and_grad(MLP, "cross_entropy", freeze="fc2.weight", threads=1)(batch)
    assert less == value and set(gradients) - set(others) == {"fc2.weight"}
    for name in others:
        np.testing.assert_allclose(others[name], gradients[name], rtol=1e-6, atol=1e-9)
    products = onnx_train.hvp(MLP, "cross_entropy", freeze="fc2.weight", threads=1)(batch, {"fc1.bias": np.ones(16)})
    assert set(products) == set(others)


@pytest.mark.parametrize("everything", ["*", ["*"]])
def test_with_all_weights_frozen_inputs_have_gradients(everything):
    batch = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    expected = onnx_train.grad(MLP, "cross_entropy")(batch)["x"]
    value, gradients = onnx_train.value_and_grad(MLP, "cross_entropy", freeze=everything)(batch)
    assert list(gradients) == ["x"] and value > 0
    np.testing.assert_array_equal(gradients["x"], expected)
    assert onnx_train.verify(MLP, "cross_entropy", batch, freeze=everything)


def test_verify_asks_for_a_batch():
    with pytest.raises(onnx_train.UsageError, match=r"verify\(model, loss, \{'x': ..., 'labels': ...\}\)"):
        onnx_train.verify(MLP, "cross_entropy")


def test_verify_computes_in_float64_where_onnx_names_float32_alone(tmp_path):
    import onnx

    onnx.save(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[N,3] x) => (float[N,3] y)
      <float[3,3] w = {1,2,3,-4,5,-6,7,8,-9}> { h = MatMul(x, w) y = Celu(h) }"""), tmp_path / "celu.onnx")  # fmt: skip
    batch = {"x": np.random.default_rng(0).normal(size=(4, 3)).astype("f4"), "labels": np.ones((4, 3), np.float32)}
    found = onnx_train.verify(str(tmp_path / "celu.onnx"), "mse(y)", batch)
    assert found and max(found.errors.values()) < 1e-8
