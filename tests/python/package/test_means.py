"""Means over batches with different numbers of labels, in float64, against PyTorch's over the whole batch."""

import json

import numpy as np
import onnx
import onnx_train
import pytest
import tool
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional as F

N = 10
CUTS = (slice(0, 4), slice(4, 7), slice(7, 9), slice(9, 10))  # the second one has no label, the last one is short


def values(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


LABELS = np.array([0, -100, 2, 1, -100, -100, -100, 3, -100, 1])
WORDS = np.random.default_rng(1).integers(0, 5, (N, 4))
WORDS[0, 1:] = WORDS[4:7] = WORDS[9, 2:] = -100
TARGET = np.random.default_rng(2).uniform(size=(N, 4))
CLASS_WEIGHT = np.array([0.2, 1.0, 3.0, 0.5])
POSITIVE = np.array([0.5, 2.0, 1.0, 4.0])

# loss: shape of x, arrays, PyTorch's
CASES = {
    "cross_entropy": ((N, 3), dict(labels=LABELS), F.cross_entropy),
    "cross_entropy(weight=c, label_smoothing=0.1)": (
        (N, 3), dict(labels=LABELS, c=CLASS_WEIGHT), lambda y, t, c: F.cross_entropy(y, t, c, label_smoothing=0.1)),
    "cross_entropy(y, words)": (
        (N, 4, 3), dict(words=WORDS % 4 * (WORDS >= 0) - 100 * (WORDS < 0)),
        lambda y, t: F.cross_entropy(y.transpose(1, 2), t)),
    "nll(weight=c)": ((N, 3), dict(labels=LABELS, c=CLASS_WEIGHT), F.nll_loss),
    "bce_with_logits(pos_weight=p)": (
        (N, 3), dict(labels=TARGET, p=POSITIVE),
        lambda y, t, p: F.binary_cross_entropy_with_logits(y, t, pos_weight=p)),
    "mse": ((N, 3), dict(labels=TARGET), F.mse_loss),
    "cross_entropy(y, labels) + 0.5*mse(y, target)": (
        (N, 3), dict(labels=LABELS, target=TARGET), lambda y, t, u: F.cross_entropy(y, t) + 0.5 * F.mse_loss(y, u)),
}  # fmt: skip


def model(path, shape, w):
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", *shape[1:]])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["batch", *shape[1:-1], 4])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def theirs(case, x, w):
    """The loss and its gradient over all samples."""
    _, arrays, function = CASES[case]
    weight = torch.from_numpy(w).requires_grad_()
    loss = function(torch.from_numpy(x) @ weight, *(torch.from_numpy(a) for a in arrays.values()))
    loss.backward()
    return loss.item(), weight.grad.numpy()


@pytest.mark.parametrize("case", CASES)
def test_batches_of_any_size_are_one_mean(tmp_path, case):
    shape, arrays, _ = CASES[case]
    x, w = values(*shape, seed=3), values(3, 4, seed=4)
    loss, gradient = theirs(case, x, w)
    path = model(tmp_path / "model.onnx", shape, w)
    built = onnx_train.build(path, case, "sgd(lr=1)", accumulate=True, train="w", dtype="float64")

    session = onnx_train.Session(built)
    for rows in CUTS:
        session.accumulate({"x": x[rows], **{n: a[rows] if len(a) == N else a for n, a in arrays.items()}})
    session.apply()
    np.testing.assert_allclose(w - np.asarray(session.state["w"]), gradient, rtol=1e-10, atol=1e-12)

    built.save(tmp_path / "train.onnx")
    data = tool.save(tmp_path / "data.npz", {"x": x, **arrays})
    for size in (10, 4, 1):
        text = tool.run(
            "eval", tmp_path / "train.onnx", "--data", data, "--batch-size", size, "--dtype", "float64", "--json"
        )
        np.testing.assert_allclose(json.loads(text)["loss"], loss, rtol=1e-12)


def test_batches_without_labels_are_said(tmp_path):
    path = model(tmp_path / "model.onnx", (N, 3), values(3, 4, seed=4))
    built = onnx_train.build(path, "cross_entropy", "sgd(lr=0)", dtype="float64")
    data = {"x": values(N, 3, seed=3), "labels": LABELS}
    nothing = {"x": data["x"], "labels": np.full(N, -100)}
    with pytest.warns(UserWarning) as warned:
        history = onnx_train.fit(built, data, epochs=1, batch_size=2, shuffle=False, eval_data=nothing)
    said = [str(w.message) for w in warned]
    assert len(said) == 2 and "step 3: nothing counts" in said[0] and "evaluation: nothing counts" in said[1]
    assert history.losses[2] == 0 and np.isnan(history.evaluations[-1].loss) and not history.evaluations[-1].best
