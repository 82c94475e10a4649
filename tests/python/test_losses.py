"""Each loss and its gradient in float64, by `onnx-train grad` on a network that does nothing, against PyTorch."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from onnx import TensorProto, helper
from torch.nn import functional as F

import onnx_train

TOLERANCE = 1e-12
IGNORED = -100


def identity(path, shape):
    """prediction = x"""
    x, prediction = (helper.make_tensor_value_info(n, TensorProto.DOUBLE, shape) for n in ("x", "prediction"))
    node = helper.make_node("Identity", ["x"], ["prediction"])
    return save(path, helper.make_graph([node], "g", [x], [prediction]))


def save(path, graph):
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def values(*shape, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape)


def labels(*shape, classes, ignored=None):
    chosen = np.random.default_rng(1).integers(0, classes, shape)
    if ignored is not None:
        chosen.reshape(-1)[::3] = ignored
    return chosen


def probabilities(*shape):
    return torch.softmax(torch.from_numpy(values(*shape, seed=2)), 1).numpy()


def ours(model, expression, arrays, folder):
    inputs, out = tool.save(folder / "inputs.npz", arrays), folder / "out.npz"
    tool.run("grad", model, "--inputs", inputs, "--loss", expression, "-o", out)
    return tool.load(out)


def check(model, expression, arrays, theirs, folder):
    """theirs(x, *others) -> loss, from tensors."""
    tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in arrays.items()}
    x = tensors.pop("x").requires_grad_()
    loss = theirs(x, *tensors.values())
    loss.backward()
    found = ours(model, expression, arrays, folder)
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=TOLERANCE)
    np.testing.assert_allclose(found["grad_input/x"], x.grad.numpy(), rtol=TOLERANCE, atol=TOLERANCE)


CLASS_LABELS = dict(labels=labels(6, classes=4, ignored=IGNORED))
WEIGHTED = dict(**CLASS_LABELS, w=values(4, low=0.1, seed=3))
PIXELS = dict(labels=labels(2, 3, 5, classes=4))
TARGET = dict(labels=values(6, 4, low=0, high=1, seed=4))

CASES = {
    "cross_entropy": ((6, 4), CLASS_LABELS, F.cross_entropy),
    "cross_entropy(reduction=sum)": (
        (6, 4), CLASS_LABELS, lambda x, labels: F.cross_entropy(x, labels, reduction="sum")),
    "cross_entropy(label_smoothing=0.1, weight=w)": (
        (6, 4), WEIGHTED, lambda x, labels, w: F.cross_entropy(x, labels, w, label_smoothing=0.1)),
    "cross_entropy(ignore_index=1, weight=w, reduction=sum, label_smoothing=0.3)": (
        (6, 4), dict(labels=labels(6, classes=4), w=WEIGHTED["w"]),
        lambda x, labels, w: F.cross_entropy(x, labels, w, ignore_index=1, label_smoothing=0.3, reduction="sum")),
    "cross_entropy(prediction, labels, label_smoothing=0.1)": (
        (2, 4, 3, 5), PIXELS, lambda x, labels: F.cross_entropy(x, labels, label_smoothing=0.1)),
    "cross_entropy(prediction, words)": (
        (2, 3, 7), dict(words=labels(2, 3, classes=7)), lambda x, words: F.cross_entropy(x.transpose(1, 2), words)),
    "cross_entropy(axis=1)": ((2, 7, 3), dict(labels=labels(2, 3, classes=7)), F.cross_entropy),
    "cross_entropy(probabilities=1, label_smoothing=0.2, weight=w)": (
        (6, 4), dict(labels=probabilities(6, 4), w=WEIGHTED["w"]),
        lambda x, labels, w: F.cross_entropy(x, labels, w, label_smoothing=0.2)),
    "cross_entropy(probabilities=1, reduction=sum)": (
        (2, 4, 3, 5), dict(labels=probabilities(2, 4, 3, 5)),
        lambda x, labels: F.cross_entropy(x, labels, reduction="sum")),
    "nll(weight=w)": ((6, 4), WEIGHTED, lambda x, labels, w: F.nll_loss(x, labels, w)),
    "nll(ignore_index=2, reduction=sum)": (
        (2, 4, 3, 5), PIXELS, lambda x, labels: F.nll_loss(x, labels, ignore_index=2, reduction="sum")),
    "bce_with_logits": ((6, 4), TARGET, F.binary_cross_entropy_with_logits),
    "bce_with_logits(weight=w, pos_weight=p)": (
        (6, 4), dict(**TARGET, w=values(6, 4, low=0.1, seed=5), p=values(4, low=0.5, seed=6)),
        lambda x, labels, w, p: F.binary_cross_entropy_with_logits(x, labels, w, pos_weight=p)),
    "mse": ((6, 4), TARGET, F.mse_loss),
    "mse(reduction=sum)": ((6, 4), TARGET, lambda x, labels: F.mse_loss(x, labels, reduction="sum")),
    "l1": ((6, 4), TARGET, F.l1_loss),
    "huber": ((6, 4), TARGET, F.huber_loss),
    "huber(delta=0.3)": ((6, 4), TARGET, lambda x, labels: F.huber_loss(x, labels, delta=0.3)),
    "0.7*cross_entropy + 0.5*mse(prediction, target) - 2*l1(prediction, target, reduction=sum)": (
        (6, 4), CLASS_LABELS | dict(target=TARGET["labels"]),
        lambda x, labels, target: 0.7 * F.cross_entropy(x, labels) + 0.5 * F.mse_loss(x, target)
        - 2 * F.l1_loss(x, target, reduction="sum")),
}  # fmt: skip


@pytest.mark.parametrize("expression", CASES)
def test_losses_are_those_of_pytorch(tmp_path, expression):
    shape, others, theirs = CASES[expression]
    model = identity(tmp_path / "model.onnx", shape)
    check(model, expression, {"x": values(*shape), **others}, theirs, tmp_path)


def test_extreme_logits(tmp_path):
    """Saturated and masked classes: no overflow, no NaN."""
    x = np.array([[1000.0, -1000.0, 0.0], [-np.inf, 3.0, 1.0], [0.0, 0.0, -np.inf]])
    model = identity(tmp_path / "model.onnx", x.shape)
    check(model, "cross_entropy", {"x": x, "labels": np.array([0, 1, 1])}, F.cross_entropy, tmp_path)
    logits = np.array([[800.0, -800.0, 0.0]])
    model = identity(tmp_path / "model.onnx", logits.shape)
    arrays = {"x": logits, "labels": np.array([[1.0, 1.0, 0.5]])}
    check(model, "bce_with_logits", arrays, F.binary_cross_entropy_with_logits, tmp_path)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_a_loss_that_the_exporter_left_in_the_graph(tmp_path, op, reduction, weighted):
    shape = (2, 4, 3, 5)
    names = ["x", "y", *["w"] * weighted]
    kinds = {"x": (TensorProto.DOUBLE, shape), "y": (TensorProto.INT64, (2, 3, 5)), "w": (TensorProto.DOUBLE, (4,))}
    inputs = [helper.make_tensor_value_info(name, *kinds[name]) for name in names]
    node = helper.make_node(op, names, ["loss"], reduction=reduction, ignore_index=2)
    output = helper.make_tensor_value_info("loss", TensorProto.DOUBLE, ())
    model = save(tmp_path / "model.onnx", helper.make_graph([node], "g", inputs, [output]))
    function = F.cross_entropy if op == "SoftmaxCrossEntropyLoss" else F.nll_loss
    arrays = {"x": values(*shape), "y": labels(2, 3, 5, classes=4), "w": values(4, low=0.1, seed=3)}
    check(
        model, "loss", {name: arrays[name] for name in names},
        lambda x, y, w=None: function(x, y, w, ignore_index=2, reduction=reduction), tmp_path,
    )  # fmt: skip


CLASS_LOSSES = ("cross_entropy", "nll", "focal", "multi_margin", "dice")


@pytest.mark.parametrize("wrong", [-1, 4, -5, 2**62 + 1, -(2**63)])
@pytest.mark.parametrize("loss", CLASS_LOSSES)
def test_a_label_that_is_no_class_is_refused_everywhere(loss, wrong):
    """A negative one would be an index from the end: to us, and to ONNX Runtime for the flattened step."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[N, 3, 2] x) => (float[N, 4, 2] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
        y = MatMul(w, x)
      }""")
    loss = f"{loss}(y, labels, axis=1)"
    batch = {"x": values(2, 3, 2).astype(np.float32), "labels": labels(2, 2, classes=4)}
    wrong_batch = {**batch, "labels": batch["labels"].copy()}
    wrong_batch["labels"][1, 0] = wrong
    training = onnx_train.build(model, loss, "sgd")
    session = onnx_train.Session(training, threads=1)
    vectors = {"w": np.ones((4, 3))}
    calls = {
        "step": session.step,
        "evaluate": session.evaluate,
        "value_and_grad": onnx_train.value_and_grad(model, loss, threads=1),
        "per_sample_grad": onnx_train.per_sample_grad(model, loss, threads=1),
        "hvp": lambda batch: onnx_train.hvp(model, loss, threads=1)(batch, vectors),
    }
    before = session.state["w"].copy()
    limit = max(min(wrong, 2**39), -(2**39))  # of what a message says
    for name, call in calls.items():
        with pytest.raises(onnx_train.DataError, match="is outside the 4 classes 0 to 3; correct the labels") as error:
            call(wrong_batch)
        assert re.search(f"label ({limit}|{wrong}) at position [02] ", str(error.value)), name
    np.testing.assert_array_equal(session.state["w"], before)
    runtime = onnxruntime.InferenceSession(training.flatten("step").to_bytes(), providers=["CPUExecutionProvider"])
    feed = {i.name: wrong_batch[i.name] if i.name in batch else np.asarray(session.state[i.name])
            for i in runtime.get_inputs()}  # fmt: skip
    with pytest.raises(Exception, match="out of data bounds|gather_elements"):
        runtime.run(None, feed)
    feed["labels"] = batch["labels"]
    assert runtime.run(["loss"], feed)[0] == pytest.approx(float(session.step(batch).loss), rel=1e-5)
    with pytest.raises(onnx_train.DataError, match="takes 0 to 3, and ignores -100"):
        onnx_train.fit(onnx_train.Session(training, threads=1), wrong_batch, epochs=1, batch_size=2, progress=False)
