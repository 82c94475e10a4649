"""Losses of many classes, whose logits a step never holds at once, in float64 against PyTorch."""

import numpy as np
import onnx
import onnx_train
import pytest
import tool
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


def network_of_bits(path, classes, zero_points):
    """x -> tanh(x w) -> its MatMulNBits with a head of 4 bits; the head as floats."""
    rng = np.random.default_rng(classes)
    width, block = 32, 16
    codes = rng.integers(0, 16, (classes, width)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (classes, width // block)).astype(np.float32)
    zeros = rng.integers(0, 16, (classes, width // block)).astype(np.uint8) if zero_points else np.full((classes, 2), 8, np.uint8)
    w = rng.normal(size=(5, width)).astype(np.float32)
    initializers = [numpy_helper.from_array(w, "w"), numpy_helper.from_array((codes[:, ::2] | codes[:, 1::2] << 4).reshape(classes, 2, 8), "bits"),
                    numpy_helper.from_array(scales.ravel(), "scales")]  # fmt: skip
    initializers += [numpy_helper.from_array(zeros[:, 0] | zeros[:, 1] << 4, "zeros")] if zero_points else []
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Tanh", ["xw"], ["h"]),
             helper.make_node("MatMulNBits", ["h", *(t.name for t in initializers[1:])], ["logits"], domain="com.microsoft", K=width, N=classes,
                              bits=4, block_size=block)]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])], initializers)  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10), path)
    steps = codes.astype(np.float64) - np.repeat(zeros, block, axis=1)
    return w, steps * np.repeat(scales, block, axis=1).astype(np.float64)


@pytest.mark.parametrize("classes, zero_points", [(1030, True), (2048, False), (150_000, True)])
def test_a_head_in_integers_is_computed_in_chunks(tmp_path, classes, zero_points):
    w, head = network_of_bits(tmp_path / "model.onnx", classes, zero_points)
    rng = np.random.default_rng(1)
    rows = 512
    x, labels = rng.normal(size=(rows, 5)), rng.integers(0, classes, rows)
    labels[rng.random(rows) < 0.2] = -100
    want = {"w": torch.from_numpy(w.astype(np.float64)).requires_grad_()}
    logits = torch.tanh(torch.from_numpy(x) @ want["w"]) @ torch.from_numpy(head).T
    loss = F.cross_entropy(logits, torch.from_numpy(labels))
    loss.backward()
    for dtype, tolerance in (("float64", 1e-9), ("float32", 2e-5)):
        session = onnx_train.Session(onnx_train.build(tmp_path / "model.onnx", "cross_entropy", "sgd(lr=1)", dtype=dtype))
        plan = session.plan("step", batch=rows)
        assert any(node.op == "LinearCrossEntropy" for node in plan.nodes)
        if classes > 10_000:  # the logits of a half, and the floats of the head
            assert plan.arena_bytes < (rows // 2 + 3 * 32) * classes * np.dtype(dtype).itemsize
        result = session.step({"x": x.astype(dtype), "labels": labels})
        np.testing.assert_allclose(result.loss, loss.item(), rtol=tolerance)
        gradient = w - np.asarray(session.state["w"])
        assert np.linalg.norm(gradient - want["w"].grad.numpy()) / np.linalg.norm(want["w"].grad.numpy()) < tolerance, dtype
    # The step without the pass.
    data = tool.save(tmp_path / "data.npz", {"x": x.astype("f4"), "labels": labels})
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--optimizer", "sgd")
    steps = []
    for out, lowering in (("with", ()), ("without", ("--lowering", "-linear_cross_entropy"))):
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--batch-size", rows, "--steps", 1, "--lr", 1, "--out", tmp_path / out, *lowering)
        steps.append((tool.losses(tmp_path / out), w - tool.state_of(onnx.load(tmp_path / out / "last.onnx"))["w"]))
    np.testing.assert_allclose(steps[0][0], steps[1][0], rtol=1e-6)
    assert np.linalg.norm(steps[0][1] - steps[1][1]) / np.linalg.norm(steps[1][1]) < 1e-6
