"""Models in the Python package: what the command makes of the same options, byte for byte."""

import onnx
import pytest
import tool
import torch
import networks

import onnx_train
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"


def test_a_model_is_the_same_from_a_path_bytes_and_a_message():
    models = [onnx_train.load(MLP), onnx_train.load(str(MLP)), onnx_train.load(MLP.read_bytes()),
              onnx_train.load(onnx.load(MLP))]  # fmt: skip
    messages = [model.to_onnx() for model in models]
    assert all(message == onnx.load(MLP) for message in messages)
    assert isinstance(messages[0], onnx.ModelProto)


@pytest.mark.parametrize(
    "options, arguments",
    [
        ({}, []),
        ({"loss": "mse(logits, target)", "optimizer": "sgd(momentum=0.9)"},
         ["--loss", "mse(logits, target)", "--optimizer", "sgd(momentum=0.9)"]),
        ({"freeze": ["fc1.*", "fc2.bias"], "mode": "frozen", "dtype": "float64"},
         ["--freeze", "fc1.*,fc2.bias", "--mode", "frozen", "--dtype", "float64"]),
        ({"accumulate": True, "clip": 0.5, "init": "kaiming", "seed": 7},
         ["--accumulate", "--clip", "0.5", "--init", "kaiming", "--seed", "7"]),
        ({"precision": "bf16", "loss_scale": "dynamic"}, ["--precision", "bf16", "--loss-scale", "dynamic"]),
    ],
)  # fmt: skip
def test_build_makes_the_file_of_the_command(tmp_path, options, arguments):
    onnx_train.load(MLP).build(**options).save(tmp_path / "ours.onnx")
    tool.run("build", MLP, "-o", tmp_path / "theirs.onnx", *arguments)
    assert (tmp_path / "ours.onnx").read_bytes() == (tmp_path / "theirs.onnx").read_bytes()


def test_losses_and_optimizers_are_objects_or_texts():
    from onnx_train import losses, optimizers

    text = onnx_train.build(
        MLP, "0.5*cross_entropy(logits, label_smoothing=0.1) + 2*mse(logits, t)",
        "adamw(lr=0.01, beta2=0.99, weight_decay=0.1)",
    )  # fmt: skip
    loss = 0.5 * losses.cross_entropy("logits", label_smoothing=0.1) + 2 * losses.mse("logits", "t")
    objects = onnx_train.build(MLP, loss, optimizers.AdamW(lr=0.01, beta2=0.99, weight_decay=0.1))
    assert objects.to_bytes() == text.to_bytes()
    assert str(optimizers.SGD(momentum=0.9, nesterov=True)) == "sgd(momentum=0.9, nesterov=1)"
    with pytest.raises(TypeError, match="prediction"):
        losses.cross_entropy(label_smoothing=0.1)


def test_check_prints_what_the_command_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(MLP.read_bytes())
    report = onnx_train.check("model.onnx")
    assert report and report.loss == "cross_entropy" and not report.obstacles
    assert str(report).split() == tool.run("check", "model.onnx").split()  # the package wraps lines


def test_check_gives_obstacles_as_data():
    graph = onnx.parser.parse_model(
        """<ir_version: 12, opset_import: ["" : 26]>
        g (float[N, 4] x) => (float[N, 4] y, float c) <float[4, 4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
        { h = MatMul(x, w)  b = BitCast <to = 1> (w)  d = ReduceMax <keepdims = 0> (b)  y = Hardmax(h)  c = Mul(d, d) }"""
    )
    report = onnx_train.check(graph, loss="mse(y, target) + c")
    assert not report
    assert report.obstacles and all(o.subject and o.what for o in report.obstacles), report
    for obstacle in report.obstacles:
        assert obstacle.what in str(report)
    assert "cannot be trained" in report.failure and report.failure in str(report)


def test_export_and_flatten_are_plain_models():
    training = onnx_train.build(MLP, optimizer="sgd")
    flat = training.flatten("step").to_onnx()
    onnx.checker.check_model(flat, full_check=True)
    assert {"fc1.weight", "x", "labels"} <= {value.name for value in flat.graph.input}
    inference = training.export().to_onnx()
    assert not inference.training_info
    assert [value.name for value in inference.graph.output] == ["logits"]


@pytest.mark.parametrize(
    "attempt, error, kind, code, text",
    [
        (lambda: onnx_train.load("missing.onnx"), onnx_train.FileError, "file", "OT1001", "missing.onnx: No such file"),
        (lambda: onnx_train.load(b"no model"), onnx_train.FileError, "file", "OT1002", "not an ONNX model"),
        (lambda: onnx_train.build(MLP, "mse("), ValueError, "usage", "OT6004", "column 5"),
        (lambda: onnx_train.build(MLP, clip=-1.0), onnx_train.UsageError, "usage", "OT6001", "out of range"),
        (lambda: onnx_train.build(MLP, freeze="fc9.*"), onnx_train.Error, "unsupported", "OT6005", "fc9"),
        (lambda: onnx_train.Session(MLP, "abacus"), onnx_train.DeviceError, "device", "OT8003", "abacus"),
        (lambda: onnx_train.Session(MLP, threads=0), onnx_train.UsageError, "usage", "OT6001", "threads"),
    ],
)
def test_errors_have_a_kind_a_code_and_the_line_of_the_command(attempt, error, kind, code, text):
    with pytest.raises(error) as raised:
        attempt()
    assert isinstance(raised.value, onnx_train.Error) and isinstance(raised.value, RuntimeError)
    assert raised.value.kind == kind and raised.value.code == code
    assert text in str(raised.value) and "\n" not in str(raised.value)
