"""Losses of many classes, whose logits a step never holds at once, in float64 against PyTorch."""

import numpy as np
import onnx
import onnx_train
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional as F

WIDTH = 6


def network(path, classes, transposed, after):
    """x -> tanh(x w) -> its product with `head`, with a bias."""
    rng = np.random.default_rng(classes)
    weights = {"w": rng.normal(size=(5, WIDTH)), "bias": rng.normal(size=classes),
               "head": rng.normal(size=(classes, WIDTH) if transposed else (WIDTH, classes))}  # fmt: skip
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Tanh", ["xw"], ["h"])]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["head"], ["head_t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["h", "head_t" if transposed else "head"], ["product"]))
    nodes.append(helper.make_node("Add", ["product", "bias"], ["sum" if after else "logits"]))
    if after:
        nodes += [helper.make_node("Div", ["sum", "cap"], ["small"]), helper.make_node("Tanh", ["small"], ["bounded"]),
                  helper.make_node("Mul", ["bounded", "cap"], ["logits"])]  # fmt: skip
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    initializers += [numpy_helper.from_array(np.float64(2.5), "cap")] if after else []
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", 5])
    logits = helper.make_tensor_value_info("logits", TensorProto.DOUBLE, ["batch", classes])
    graph = helper.make_graph(nodes, "g", [x], [logits], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return weights


def theirs(weights, x, labels, transposed, after, label_smoothing):
    """What PyTorch computes, by rows of a few positions: loss, the means of metrics, and gradients."""
    w = {name: torch.from_numpy(value).requires_grad_() for name, value in weights.items()}
    counted = int((labels != -100).sum())
    loss, sums = 0.0, {"accuracy": 0, "top5": 0, "log_loss": 0.0}
    for begin in range(0, len(x), 64):
        rows, target = torch.from_numpy(x[begin : begin + 64]), torch.from_numpy(labels[begin : begin + 64])
        logits = torch.tanh(rows @ w["w"]) @ (w["head"].T if transposed else w["head"]) + w["bias"]
        if after:
            logits = 2.5 * torch.tanh(logits / 2.5)
        part = F.cross_entropy(logits, target, reduction="sum", label_smoothing=label_smoothing) / counted
        part.backward()
        loss += part.item()
        right = logits.detach().topk(5).indices == target[:, None]
        sums["accuracy"] += right[:, 0].sum().item()
        sums["top5"] += right.sum().item()
        sums["log_loss"] += F.cross_entropy(logits.detach(), target, reduction="sum").item()
    return loss, {name: value / counted for name, value in sums.items()}, {k: v.grad.numpy() for k, v in w.items()}


@pytest.mark.parametrize("classes, transposed, after, smoothing", [
    (5, True, True, 0.1), (1030, True, False, 0.0), (1030, False, True, 0.0), (2048, True, True, 0.1),
    (30_000, False, False, 0.0), (150_000, True, False, 0.0)])  # fmt: skip
def test_gradients_are_those_of_pytorch(tmp_path, classes, transposed, after, smoothing):
    weights = network(tmp_path / "model.onnx", classes, transposed, after)
    loss = f"cross_entropy(label_smoothing={smoothing})"
    built = onnx_train.build(tmp_path / "model.onnx", loss, "sgd(lr=1)", train=[*weights], dtype="float64",
                             metric=["perplexity", "top5=top_k(k=5)"])  # fmt: skip
    for rows in (512, 700) if classes < 10_000 else (512,):  # sizes of one dynamic batch
        session = onnx_train.Session(built)
        rng = np.random.default_rng(rows)
        x, labels = rng.normal(size=(rows, 5)), rng.integers(0, classes, rows)
        labels[rng.random(rows) < 0.2] = -100
        for entry in ("step", "evaluate"):
            plan = session.plan(entry, batch=rows)
            in_chunks = [node for node in plan.nodes if node.op == "LinearCrossEntropy"]
            assert len(in_chunks) == (classes > 5)
            if classes >= 30_000:  # a chunk of half of the rows, and the gradients of the weights
                assert plan.arena_bytes < (rows // 2 + 3 * WIDTH) * classes * 8
        found = session.evaluate({"x": x, "labels": labels})
        result = session.step({"x": x, "labels": labels})
        want_loss, metrics, gradients = theirs(weights, x, labels, transposed, after, smoothing)
        np.testing.assert_allclose(result.loss, want_loss, rtol=1e-9)
        np.testing.assert_allclose(result.accuracy, metrics["accuracy"], rtol=1e-6)
        np.testing.assert_allclose(found["perplexity"], np.exp(metrics["log_loss"]), rtol=1e-9)
        np.testing.assert_allclose(found["top5"], metrics["top5"], rtol=1e-9)
        for name, gradient in gradients.items():
            ours = weights[name] - np.asarray(session.state[name])
            error = np.linalg.norm(ours - gradient) / np.linalg.norm(gradient)
            assert error < 1e-9, name


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_logits_that_are_cast_are_computed_in_chunks(dtype):
    """A model of float16 computes its loss in float32, as transformers' `logits.float()` does."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.normal(size=(5, WIDTH)), "head": rng.normal(size=(WIDTH, 1200))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "head"], ["product"]),
             helper.make_node("Cast", ["product"], ["logits"], to=TensorProto.FLOAT)]  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, ["batch", 5])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1200])],
                              [numpy_helper.from_array(value.astype(dtype), name) for name, value in weights.items()])  # fmt: skip
    model = onnx_train.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    for precision in ("float32", "bf16", "fp16"):
        session = onnx_train.Session(onnx_train.build(model, "cross_entropy", "sgd", precision=precision))
        for entry in ("step", "evaluate"):
            assert any(node.op == "LinearCrossEntropy" for node in session.plan(entry, batch=600).nodes), precision
