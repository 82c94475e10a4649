"""Second derivatives are PyTorch's in float64, and `verify` tells right gradients from wrong ones."""

import numpy as np
import onnx
import onnxruntime
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


def test_vjp_and_jacobian_are_pytorchs():
    x, _, points, _ = setup()
    u = np.random.default_rng(3).normal(size=(5, 3))
    outputs, products = onnx_train.vjp(MLP, dtype="float64", threads=1)({"x": x}, {"logits": u})
    expected, pull_back = torch.func.vjp(lambda p: mlp(p, p["x"]), points)
    np.testing.assert_allclose(outputs["logits"], expected.detach(), rtol=1e-12)
    jacobians = onnx_train.jacobian(MLP, dtype="float64", threads=1)({"x": x})
    rows = torch.func.jacrev(lambda p: mlp(p, p["x"]))(points)
    assert set(products) == set(points) == set(jacobians["logits"])
    for name, product in pull_back(torch.tensor(u))[0].items():
        np.testing.assert_allclose(products[name], product.detach(), rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(jacobians["logits"][name], rows[name].detach(), rtol=1e-10, atol=1e-13)
    with pytest.raises(onnx_train.DataError, match="the output 'logits' has no vector"):
        onnx_train.vjp(MLP, threads=1)({"x": x.astype("f4")}, {})


def test_gradients_of_each_sample_are_pytorchs():
    x, labels, points, _ = setup()
    weights = {name: value for name, value in points.items() if name != "x"}

    def loss(w, row, label):
        return torch.nn.functional.cross_entropy(mlp(w, row[None]), label[None])

    of_each = torch.func.vmap(torch.func.grad(loss, (0, 1)), (None, 0, 0))
    expected, of_x = of_each(weights, points["x"], torch.tensor(labels))
    f = onnx_train.per_sample_grad(MLP, "cross_entropy", dtype="float64", threads=1)
    for batch in ((x, labels), {"x": x, "labels": labels}):
        losses, gradients = f(batch)
        assert losses.shape == (5,) and set(gradients) == set(points)
        for name, gradient in {**expected, "x": of_x}.items():
            np.testing.assert_allclose(gradients[name], gradient, rtol=1e-9, atol=1e-13, err_msg=name)
    with pytest.raises(onnx_train.DataError, match="arrays of a batch have one length"):
        f((x, labels[:3]))


@pytest.mark.parametrize("model, inputs, weights", [
    (MLP, {"x": (5, 4)}, ["fc1.bias", "fc2.weight"]),
    (CNN, {"image": (3, 1, 8, 8)}, ["features.0.weight", "classifier.1.weight"]),
])  # fmt: skip
def test_the_command_computes_what_the_package_does(tmp_path, model, inputs, weights):
    rng = np.random.default_rng(5)
    batch = {name: rng.normal(size=shape) for name, shape in inputs.items()}
    labels = rng.integers(0, 3, len(next(iter(batch.values()))))
    state = {name: np.shape(value) for name, value in onnx_train.Session(onnx_train.build(model)).state.items()}
    vectors = {name: rng.normal(size=state[name]) for name in weights}
    options = {"dtype": "float64", "threads": 1}
    outputs, derivatives = onnx_train.jvp(model, **options)(batch, vectors)
    (output,) = outputs
    u = {output: rng.normal(size=outputs[output].shape)}
    files = {"in": {**batch, "labels": labels}, "v": vectors, "u": u}
    for name, arrays in files.items():
        tool.save(tmp_path / f"{name}.npz", arrays)

    def grad(*arguments, status=0):
        common = ["grad", model, "--inputs", tmp_path / "in.npz", "--mode", "frozen", "--dtype", "float64", "--threads", 1]
        said = tool.run(*common, "-o", tmp_path / "out.npz", *arguments, status=status)
        return said if status else tool.load(tmp_path / "out.npz")

    np.testing.assert_array_equal(grad("--jvp", tmp_path / "v.npz")[f"jvp/{output}"], derivatives[output])
    _, products = onnx_train.vjp(model, **options)(batch, u)
    found = grad("--vjp", tmp_path / "u.npz")
    assert {key for key in found if key.startswith("vjp/")} == {f"vjp/{name}" for name in products}
    # vᵀ (J' u) = (J v)ᵀ u
    along = sum(np.sum(products[name] * v) for name, v in vectors.items())
    assert along == pytest.approx(np.sum(derivatives[output] * u[output]), rel=1e-9)
    of_loss = onnx_train.hvp(model, "cross_entropy", **options)({**batch, "labels": labels}, vectors)
    found = grad("--hvp", tmp_path / "v.npz")
    for name, product in of_loss.items():
        np.testing.assert_array_equal(found[f"hvp/{name}"], product)
    first = next(iter(vectors))
    of_all = grad("--jacobian", "--train", first)
    rows = of_all[f"jacobian/{output}/{first}"]
    assert rows.shape == (*outputs[output].shape, *state[first])
    np.testing.assert_allclose(np.tensordot(u[output], rows, 2), products[first], rtol=1e-9, atol=1e-12)
    each = grad("--per-sample", "--train", first)[f"grad/{first}"]
    np.testing.assert_allclose(each.mean(0), grad()[f"grad/{first}"], rtol=1e-8, atol=1e-12)
    assert "are one derivative each" in grad("--jacobian", "--per-sample", status=2)
    message = grad("--hvp", tmp_path / "u.npz", status=1)
    assert f"'{output}' takes no vector" in message and first in message


@pytest.mark.parametrize("kind", ["gradient", "vjp", "jvp", "hvp"])
def test_stock_onnx_runtime_runs_the_graph(kind):
    derivative = onnx_train.load(CNN).derivative(kind, "cross_entropy" if kind in ("gradient", "hvp") else None, mode="frozen")
    session = onnx_train.Session(derivative, threads=1)
    rng = np.random.default_rng(0)
    ports = [port for port in session.inputs("predict") if port.default is None]
    shapes = {port.name: tuple(3 if size < 0 else size for size in port.shape) for port in ports}
    arrays = {port.name: rng.integers(0, 10, shapes[port.name]) if port.dtype == "int64" else
              rng.normal(size=shapes[port.name]).astype(port.dtype) for port in ports}  # fmt: skip
    names = [port.name for port in session.outputs("predict")]
    theirs = onnxruntime.InferenceSession(derivative.to_bytes()).run(names, arrays)
    ours = session.run("predict", arrays)
    assert sum(port.role in ("gradient", "derivative") for port in session.outputs("predict")) > 0
    for name, expected in zip(names, theirs):
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-5 * max(np.abs(expected).max(), 1), err_msg=name)


def test_gradients_of_each_sample_refuse_statistics_of_a_batch(tmp_path):
    data = tool.save(tmp_path / "in.npz", {"image": np.zeros((2, 1, 8, 8), np.float32), "labels": [0, 1]})
    said = tool.run("grad", CNN, "--inputs", data, "--per-sample", "-o", tmp_path / "out.npz", status=1)
    assert "add --mode frozen" in said and not (tmp_path / "out.npz").exists()


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


def from_text(body, weight="float[1] w = {2}"):
    text = f'<ir_version: 10, opset_import: ["" : 21]> g (float[N,3,3] x) => (float[M] y) <{weight}> {{ {body} }}'
    return onnx_train.load(onnx.parser.parse_model(text).SerializeToString())


def test_an_input_without_a_derivative_is_named():
    """w and x both reach y, but x through a determinant of matrices of unknown size, too."""
    body = "r = ReduceMax<keepdims = 0>(x, others) mask = Cast<to = 9>(r) q = Compress<axis = 1>(x, mask)" \
        " s = Compress<axis = 2>(q, mask) d = Det(s)" \
        " t = ReduceSum<keepdims = 0>(x, axes) a = Mul(t, w) y = Add(a, d)"
    model = from_text(body, "float[1] w = {2}, int64[2] others = {0, 2}, int64[2] axes = {1, 2}")
    (note,) = model.derivative("vjp", train="w", dtype="float64").notes
    assert note.startswith("no gradient of the input 'x'") and "Det" in note
    assert from_text("d = Det(x) y = Mul(d, w)").derivative("vjp").notes == []


def test_top_k_keeps_the_axes_that_it_does_not_cut():
    """ONNX's inference gives all of them up where the length of its axis is a name."""
    body = "k = Constant<value = int64[1] {2}>() t, i = TopK<axis = 0>(x, k) d = Det(t) y = Mul(d, w)"
    derivative = from_text(body).derivative("vjp", dtype="float64")
    assert {port.of for port in onnx_train.Session(derivative).outputs("predict") if port.role == "gradient"} == {"x"}


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_hvp_of_recurrent_layers_is_pytorchs(cell, tmp_path):
    torch.manual_seed(0)
    layer = getattr(torch.nn, cell)(3, 4)
    x, target = torch.randn(5, 2, 3), torch.randn(5, 2, 4)
    path = tmp_path / "model.onnx"
    torch.onnx.export(layer, (x,), path, dynamo=False, input_names=["x"], output_names=["y", "h", "c"][: 2 + (cell == "LSTM")])
    batch = {"x": x.double().numpy(), "target": target.double().numpy()}
    direction = np.random.default_rng(1).normal(size=x.shape)
    products = onnx_train.hvp(path, "mse(y, target)", dtype="float64", threads=1)(batch, {"x": direction})
    layer = layer.double()

    def gradient(x):
        loss = lambda x: torch.nn.functional.mse_loss(layer(x)[0], target.double())  # noqa: E731
        return torch.autograd.functional.jacobian(loss, x, create_graph=True)

    _, expected = torch.autograd.functional.jvp(gradient, x.double(), torch.tensor(direction))
    np.testing.assert_allclose(products["x"], expected, rtol=1e-7, atol=1e-10)


def test_derivatives_take_the_mode():
    path = tool.ROOT / "models" / "digits_cnn.onnx"
    x = np.random.default_rng(0).normal(size=(4, 1, 8, 8)).astype(np.float32)
    batch = {"image": x, "labels": np.array([1, 2, 3, 4])}
    values = {}
    for mode in ("frozen", "train"):
        derivative = onnx_train.load(path).derivative("gradient", "cross_entropy", mode=mode)
        results = onnx_train.Session(derivative, threads=1).run("predict", batch)
        value, gradients = onnx_train.value_and_grad(path, "cross_entropy", mode=mode, threads=1)(batch)
        values[mode] = value
        assert value == pytest.approx(float(results["loss"]), rel=1e-5)
        for name, gradient in gradients.items():
            key = f"grad/{name}" if f"grad/{name}" in results else f"grad_input/{name}"
            np.testing.assert_allclose(gradient, results[key], rtol=1e-3, atol=1e-5, err_msg=name)
    assert values["frozen"] != values["train"]
