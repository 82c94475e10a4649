"""A loss that is another ONNX model: the numbers of the built-in loss of the same formula, and PyTorch's."""

import numpy as np
import onnx
import pytest
import tool
import torch
from torch.nn import functional as F

import onnx_train
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
rng = np.random.default_rng(0)
X = rng.normal(size=(6, 4)).astype(np.float32)
TARGET, LABELS = rng.normal(size=(6, 3)).astype(np.float32), rng.integers(0, 3, 6)

# The prediction's name joins it to the model; sizes have another name than the model's.
MSE = """loss (float[M, 3] logits, float[M, 3] target) => (float mse)
    { d = Sub(logits, target)  s = Mul(d, d)  mse = ReduceMean<keepdims = 0>(s) }"""
CROSS_ENTROPY = """loss (float[M, 3] logits, int64[M] labels) => (float y)
    { y = SoftmaxCrossEntropyLoss<reduction = "mean">(logits, labels) }"""


def model(text, opset=21):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


CASES = {
    "mse": (MSE, "mse(logits, target)", {"x": X, "target": TARGET}, lambda y: F.mse_loss(y, torch.tensor(TARGET))),
    "cross entropy": (CROSS_ENTROPY, "cross_entropy(logits, labels)", {"x": X, "labels": LABELS},
                      lambda y: F.cross_entropy(y, torch.tensor(LABELS))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_built_in_loss_and_of_pytorch(name):
    text, expression, batch, theirs = CASES[name]
    loss, gradients = onnx_train.value_and_grad(MLP, model(text), threads=1)(batch)
    expected_loss, expected = onnx_train.value_and_grad(MLP, expression, threads=1)(batch)
    assert loss == pytest.approx(expected_loss, rel=1e-6)

    weights = {i.name: torch.tensor(onnx.numpy_helper.to_array(i)) for i in onnx.load(MLP).graph.initializer}
    weights = {key: value.clone().requires_grad_() for key, value in weights.items()}
    h = torch.tanh(torch.tensor(X) @ weights["fc1.weight"] + weights["fc1.bias"])
    theirs(h @ weights["fc2.weight"] + weights["fc2.bias"]).backward()
    for key in weights:
        np.testing.assert_allclose(gradients[key], expected[key], rtol=1e-5, atol=1e-7, err_msg=key)
        np.testing.assert_allclose(gradients[key], weights[key].grad, rtol=1e-4, atol=1e-6, err_msg=key)
    assert onnx_train.verify(MLP, model(text), batch, threads=1)


@pytest.mark.parametrize("options", [{}, {"accumulate": True}, {"dtype": "float64"}, {"precision": "bf16"}], ids=str)
def test_training_makes_the_steps_of_the_built_in_loss(options):
    results = []
    for loss in (model(MSE), "mse(logits, target)"):
        session = onnx_train.Session(onnx_train.build(MLP, loss, "adamw(lr=0.01)", **options), threads=1)
        batch = {"x": X, "target": TARGET}
        for _ in range(3):
            if "accumulate" in options:
                losses = [session.accumulate(batch).loss, session.accumulate(batch).loss]
                session.apply()
            else:
                losses = [session.step(batch).loss]
        results.append([*losses, session.evaluate(batch).loss, session.state["fc1.weight"].sum()])
        assert session.predict(X).logits.shape == (6, 3), "the inference model has no targets"
    np.testing.assert_allclose(results[0], results[1], rtol=1e-3 if "precision" in options else 1e-5)


def test_inputs_of_the_loss_become_inputs_of_the_training_model_with_its_sizes():
    session = onnx_train.Session(onnx_train.build(MLP, model(CROSS_ENTROPY), "sgd"), threads=1)
    ports = {port.name: port for port in session.inputs("step")}
    assert list(ports)[:2] == ["x", "labels"] and ports["labels"].dtype == "int64"
    flat = onnx_train.build(MLP, model(CROSS_ENTROPY), "sgd").flatten("step").to_onnx()
    dims = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in flat.graph.input}
    assert dims["labels"] == dims["x"][:1]
    onnx.checker.check_model(flat, full_check=True)
    export, named = (onnx_train.build(MLP, loss, "sgd").export().to_onnx() for loss in (model(CROSS_ENTROPY), "cross_entropy"))
    assert {entry.key for entry in named.metadata_props} == {"onnx_train.scores"} and not export.metadata_props
    del named.metadata_props[:]  # what the predictions are, which a loss model does not say
    assert export.SerializeToString() == named.SerializeToString()


def test_a_path_bytes_a_message_and_the_command_give_one_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(model(MSE), "loss.onnx")
    tool.run("build", MLP, "-o", "theirs.onnx", "--loss", "loss.onnx")
    from_path = onnx_train.build(MLP, tmp_path.joinpath("loss.onnx").relative_to(tmp_path))
    assert from_path.to_bytes() == onnx_train.build(MLP, "loss.onnx").to_bytes() == open("theirs.onnx", "rb").read()
    in_memory = onnx_train.build(MLP, model(MSE))
    assert in_memory.to_bytes() == onnx_train.build(MLP, open("loss.onnx", "rb").read()).to_bytes()
    assert in_memory.to_bytes() == onnx_train.build(MLP, onnx_train.load("loss.onnx")).to_bytes()
    assert "can be trained" in tool.run("check", MLP, "--loss", "loss.onnx")
    assert onnx_train.check(MLP, loss=tmp_path / "loss.onnx")
    tool.save("batch.npz", {"x": X, "target": TARGET})
    for loss, out in (("loss.onnx", "a.npz"), ("mse(logits, target)", "b.npz")):
        tool.run("grad", MLP, "--inputs", "batch.npz", "--loss", loss, "-o", out)
    np.testing.assert_allclose(tool.load("a.npz")["grad/fc1.weight"], tool.load("b.npz")["grad/fc1.weight"], rtol=1e-5)


def test_a_loss_has_weights_that_stay_and_reads_weights_and_inputs_of_the_model():
    """A distance of features, a penalty on a weight, and the model's own input as what is to be reconstructed."""
    text = """loss (float[M, 3] logits, float[M, 4] x, float[4, 16] weight) => (float[1] loss)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float c = {0.25}>
        { a = MatMul(logits, w)  starts = Constant<value_ints = [0]>()  ends = Constant<value_ints = [2]>()
          axes = Constant<value_ints = [1]>()  b = Slice(x, starts, ends, axes)  d = Sub(a, b)  e = Abs(d)
          m = ReduceMean(e)  p = Mul(weight, weight)  q = ReduceSum<keepdims = 0>(p)  r = Mul(q, c)
          s = Add(m, r)  shape = Constant<value_ints = [1]>()  loss = Reshape(s, shape) }"""
    loss = model(text)
    training = onnx_train.build(MLP, loss, "sgd(lr=0.1)")
    assert "weight" in [port.name for port in onnx_train.Session(training).inputs("step")], "a new input"
    loss.graph.input[2].name = "fc1.weight"
    for node in loss.graph.node:
        node.input[:] = ["fc1.weight" if name == "weight" else name for name in node.input]
    session = onnx_train.Session(onnx_train.build(MLP, loss, "sgd(lr=0.1)"), threads=1)
    assert list(session.state) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "state/step"]
    weight, logits = session.state["fc1.weight"].copy(), session.predict(X).logits
    difference = logits @ np.array([[1, 2], [3, 4], [5, 6]]) - X[:, :2]
    assert session.step(X).loss == pytest.approx(np.abs(difference).mean() + np.sum(weight**2) / 4, rel=1e-5)
    assert onnx_train.verify(MLP, loss, {"x": X}, threads=1)
    _, gradients = onnx_train.value_and_grad(MLP, loss, threads=1)({"x": X})
    assert set(gradients) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "x"}
    products = onnx_train.hvp(MLP, loss, threads=1)({"x": X}, {"fc1.weight": np.ones((4, 16))})
    assert set(products) == set(gradients)


def test_a_loss_exported_by_pytorch_with_a_later_opset(tmp_path):
    class Loss(torch.nn.Module):
        def forward(self, logits, target):
            return torch.log1p(torch.abs(logits - target)).mean()

    path = tmp_path / "loss.onnx"
    example = (torch.zeros(6, 3), torch.zeros(6, 3))
    torch.onnx.export(Loss(), example, path, input_names=["logits", "target"], dynamo=False, opset_version=20,
                      dynamic_axes={"logits": {0: "n"}, "target": {0: "n"}})  # fmt: skip
    later = onnx.load(path)
    later.opset_import[0].version = 23
    for loss in (path, later):
        training = onnx_train.build(MLP, loss, "sgd")
        session = onnx_train.Session(training, threads=1)
        expected = Loss()(torch.tensor(session.predict(X).logits), torch.tensor(TARGET))
        training.flatten("evaluate").save(tmp_path / "flat.onnx")  # for other runtimes
        inputs = {"x": X, "target": TARGET, **{key: session.state[key] for key in session.state if key[:2] == "fc"}}
        assert tool.session(tmp_path / "flat.onnx").run(["loss"], inputs)[0] == pytest.approx(expected.item(), rel=1e-5)
        assert session.step(X, TARGET).loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    "text, message",
    [
        (MSE.replace("logits", "y"), "inputs of the loss model 'loss' are 'y', 'target', and the model's outputs 'logits': "
         "give the input that is the prediction the name of an output"),
        (MSE.replace("M, 3", "M, 5"), "input 'logits' of the loss model 'loss' is float[M,5], and the model's value of that "
         "name is float[batch,3]: change one of them"),
        (MSE.replace("float[M, 3] logits", "int64[M, 3] logits"), "the loss model 'loss'"),
        (MSE.replace("<keepdims = 0>(s)", "<keepdims = 0>(s, axis)").replace("=> (float mse)",
         "=> (float[3] mse) <int64[1] axis = {0}>"), "output 'mse' of the loss model 'loss' is float[3]; a loss is one float"),
        (MSE.replace("=> (float mse)", "=> (float mse, float[M, 3] d)"), "has 2 outputs; its one output must be the loss"),
        ("loss (float[M, 3] logits, float[M, 2] target) => (float y) { d = Sub(logits, target)"
         "  y = ReduceMean<keepdims = 0>(d) }", "the loss model 'loss'"),
        ("loss (float[M, 3] logits) => (float y) { s = Shape(logits)  f = Cast<to = 1>(s)"
         "  y = ReduceMean<keepdims = 0>(f) }", "depends on none of the 4"),
    ],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_named(text, message):
    with pytest.raises(onnx_train.UnsupportedError) as error:
        onnx_train.build(MLP, model(text))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_losses_that_are_no_models(tmp_path):
    with pytest.raises(onnx_train.FileError, match="missing.onnx: No such file"):
        onnx_train.build(MLP, "missing.onnx")
    with pytest.raises(onnx_train.FileError, match="not an ONNX model"):
        onnx_train.build(MLP, b"no model")
    with pytest.raises(onnx_train.UsageError, match="save it first"):
        onnx_train.check(MLP, loss=model(MSE))
    assert "missing.onnx: No such file" in tool.run("build", MLP, "-o", tmp_path / "t.onnx", "--loss", "missing.onnx", status=1)
