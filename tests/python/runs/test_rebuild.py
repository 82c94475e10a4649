"""A training model that is built anew: what it was trained for stays, unless the user says otherwise."""

import numpy as np
import onnx
import pytest
import tool

import onnx_train

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
LOSS = "cross_entropy(logits, labels, axis=1, label_smoothing=0.1)"


def metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


@pytest.fixture
def trained(tmp_path):
    path = tmp_path / "trained.onnx"
    tool.run("build", MLP, "-o", path, "--loss", "cross_entropy(label_smoothing=0.1)", "--metric", "f1", "--metric",
             "best2=top_k(k=2)")  # fmt: skip
    return path


def test_loss_and_metrics_stay(trained, tmp_path):
    again = tmp_path / "again.onnx"
    printed = tool.run("build", trained, "-o", again, "--optimizer", "sgd")
    assert "the loss is that of the training model; --loss gives another" in printed
    assert "so are the metrics; --metric gives others" in printed
    for key in ("onnx_train.loss", "onnx_train.metrics"):
        assert metadata(again)[key] == metadata(trained)[key]
    assert metadata(again)["onnx_train.loss"] == LOSS
    assert f"--loss '{LOSS}'" in tool.run("check", trained)
    assert onnx_train.build(trained).metadata["onnx_train.loss"] == LOSS


def test_another_loss_leaves_out_the_metrics(trained, tmp_path):
    printed = tool.run("build", trained, "-o", tmp_path / "again.onnx", "--loss", "mse(logits, target)")
    assert "metrics of the training model are left out with another loss: f1(" in printed
    assert "onnx_train.metrics" not in metadata(tmp_path / "again.onnx")
    printed = tool.run("build", trained, "-o", tmp_path / "again.onnx", "--metric", "accuracy")
    assert metadata(tmp_path / "again.onnx")["onnx_train.loss"] == LOSS and "so are the metrics" not in printed


def test_a_loss_that_is_gone_is_named(tmp_path):
    onnx.save(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      l (float[N,3] logits, float[N,3] t) => (float loss) { d = Sub(logits, t) q = Mul(d, d) loss = ReduceMean<keepdims=0>(q) }"""),
              tmp_path / "loss.onnx")  # fmt: skip
    trained = tmp_path / "trained.onnx"
    tool.run("build", MLP, "-o", trained, "--loss", tmp_path / "loss.onnx")
    tool.run("build", trained, "-o", tmp_path / "again.onnx")
    (tmp_path / "loss.onnx").unlink()
    said = tool.run("build", trained, "-o", tmp_path / "again.onnx", status=1)
    assert "loss.onnx, which is not there; give it, or another loss: --loss" in said


def test_a_loss_model_with_a_loss_for_each_sample_is_refused(tmp_path):
    onnx.save(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      l (float[N,3] logits, float[N,3] t) => (float[N] loss) {
        d = Sub(logits, t) q = Mul(d, d) one = Constant<value_ints = [1]>() loss = ReduceMean<keepdims=0>(q, one) }"""),
              tmp_path / "loss.onnx")  # fmt: skip
    said = tool.run("build", MLP, "-o", tmp_path / "train.onnx", "--loss", tmp_path / "loss.onnx", status=1)
    assert "output 'loss' of the loss model" in said and "a loss is one float: end the model with a ReduceMean" in said


def test_controls_of_a_float64_model_are_float64(tmp_path):
    path = tmp_path / "double.onnx"
    tool.run("build", MLP, "-o", path, "--dtype", "float64", "--clip", 0.1, "--optimizer", "sgd(lr=0.1)")
    session = onnx_train.Session(path, threads=1)
    ports = {port.name: port for port in session.inputs("step")}
    for name in ("learning_rate", "clip_norm"):
        assert ports[name].dtype == "float64" and float(ports[name].default) == 0.1
    x, labels = np.eye(4), np.array([0, 1, 2, 0])
    before = session.state["fc2.bias"].copy()
    norm = session.step(x, labels).grad_norm
    assert norm > 0.1
    f = onnx_train.grad(MLP, "cross_entropy", dtype="float64")
    expected = before - 0.1 * (0.1 / (norm + 1e-6)) * f({"x": x, "labels": labels})["fc2.bias"]
    np.testing.assert_allclose(session.state["fc2.bias"], expected, rtol=1e-12, atol=1e-15)
