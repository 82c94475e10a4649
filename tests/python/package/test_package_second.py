"""Second derivatives are PyTorch's in float64, and `verify` tells right gradients from wrong ones."""

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import helper

import onnx_train

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
CNN = tool.ROOT / "models" / "digits_cnn.onnx"


def weights_of(path):
    return {i.name: onnx.numpy_helper.to_array(i).astype(np.float64) for i in onnx.load(path).graph.initializer}


def mlp(w, x):
    h = torch.tanh(x @ w["fc1.weight"] + w["fc1.bias"])
    return h @ w["fc2.weight"] + w["fc2.bias"]


def setup():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(5, 4)), rng.integers(0, 3, 5)
    points = {name: torch.tensor(value) for name, value in weights_of(MLP).items()} | {"x": torch.tensor(x)}
    vectors = {name: rng.normal(size=tuple(value.shape)) for name, value in points.items()}
    return x, labels, points, vectors


def test_jvp_is_pytorchs():
    x, _, points, vectors = setup()
    expected, derivative = torch.func.jvp(
        lambda p: mlp(p, p["x"]), (points,), ({n: torch.tensor(v) for n, v in vectors.items()},)
    )
    outputs, derivatives = onnx_train.jvp(MLP, dtype="float64", threads=1)({"x": x}, vectors)
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-12)
    np.testing.assert_allclose(derivatives["logits"], derivative, rtol=1e-10, atol=1e-13)


def test_hvp_is_pytorchs():
    x, labels, points, vectors = setup()

    def gradient(p):
        return torch.func.grad(lambda q: torch.nn.functional.cross_entropy(mlp(q, q["x"]), torch.tensor(labels)))(p)

    _, expected = torch.func.jvp(gradient, (points,), ({n: torch.tensor(v) for n, v in vectors.items()},))
    f = onnx_train.hvp(MLP, "cross_entropy", dtype="float64", threads=1)
    products = f((x, labels), vectors)
    assert set(products) == set(expected)
    for name, product in products.items():
        np.testing.assert_allclose(product, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
    other = f((x, labels), vectors, {"fc1.bias": np.ones(16)})
    assert not np.allclose(other["fc1.weight"], products["fc1.weight"])


def test_hvp_of_a_convolutional_model_is_the_difference_of_its_gradients():
    rng = np.random.default_rng(1)
    batch = {"image": rng.normal(size=(3, 1, 8, 8)), "labels": rng.integers(0, 10, 3)}
    weight = weights_of(CNN)["classifier.1.weight"]
    v = rng.normal(size=weight.shape) / weight.size**0.5
    products = onnx_train.hvp(CNN, "cross_entropy", dtype="float64", threads=1)(batch, {"classifier.1.weight": v})
    gradient = onnx_train.grad(CNN, "cross_entropy", dtype="float64", threads=1)
    h = 1e-5
    above, below = (gradient(batch, {"classifier.1.weight": weight + s * h * v}) for s in (1, -1))
    assert set(products) == set(above)
    for name, product in products.items():
        difference = (above[name] - below[name]) / (2 * h)
        assert np.linalg.norm(product - difference) <= 1e-6 * max(np.linalg.norm(difference), 1e-3), name


def test_directions_that_fit_nothing_are_errors():
    x, labels, _, _ = setup()
    f = onnx_train.hvp(MLP, "cross_entropy", dtype="float64", threads=1)
    with pytest.raises(onnx_train.DataError, match="'fc9' has no derivative"):
        f((x, labels), {"fc9": np.ones(3)})
    with pytest.raises(onnx_train.DataError, match=r"'fc2.bias' has the shape \(4,\)"):
        f((x, labels), {"fc2.bias": np.ones(4)})


def test_verify_accepts_right_gradients():
    x, labels, _, _ = setup()
    found = onnx_train.verify(MLP, "cross_entropy", (x, labels), threads=1)
    assert found and set(found.errors) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "x"}
    assert max(found.errors.values()) < 1e-8


def test_verify_finds_a_gradient_that_is_not_the_slope():
    """y = round(8 w x) / 8 has gradient zero and a slope that is not: its steps are as small as those of `verify`."""
    node = [("Mul", ["x", "w"], "a"), ("Mul", ["a", "k"], "b"), ("Round", ["b"], "c"), ("Div", ["c", "k"], "d"),
            ("Add", ["d", "a"], "y")]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [output]) for op, inputs, output in node], "steps",
        [helper.make_tensor_value_info("x", 1, [4])], [helper.make_tensor_value_info("y", 1, [4])],
        [helper.make_tensor("w", 1, [4], [0.3, 0.5, 0.7, 0.9]), helper.make_tensor("k", 1, [], [1e6])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    batch = {"x": np.array([1.0, 2.0, 3.0, 4.0]), "labels": np.zeros(4)}
    assert not onnx_train.verify(model, "mse", batch, train="w", threads=1)
