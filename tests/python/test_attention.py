"""ONNX's Attention: outputs and gradients against its formula in float64 PyTorch, over masks, cached keys, grouped heads,
soft caps and the scores as an output. A query that sees no key gives 0, and has gradient 0.

ONNX Runtime agrees with the formula where it takes a case. ONNX's reference implementation does not in two: with a soft
cap it gives capped scores as mode 0, which is the plain product, and with a mask of one row it takes the causal frontier
of the first query for all."""

import itertools

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import TensorProto, helper

BATCH, HEADS, QUERIES, KEYS, PAST, WIDTH, VALUE_WIDTH = 2, 4, 3, 5, 2, 16, 6  # the standard takes 1 / sqrt(width) in float32
TOLERANCE = 1e-12


def formula(q, k, v, mask=None, past_key=None, past_value=None, *, causal, softcap, mode):
    """y and the output of scores, both from float64 tensors with heads as their second axis."""
    if past_key is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
    products = q @ k.transpose(2, 3) / WIDTH**0.5
    capped = softcap * torch.tanh(products / softcap) if softcap else products
    bias = torch.zeros(products.shape, dtype=torch.float64)
    if mask is not None:
        bias = bias + (torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask)
    if causal:
        offset = 0 if past_key is None else past_key.shape[2]
        hidden = torch.ones(products.shape[2:], dtype=torch.bool).triu(1 + offset)
        bias = bias.masked_fill(hidden, -torch.inf)
    blind = (bias == -torch.inf).all(-1, keepdim=True)
    scores = capped + bias
    weights = torch.where(blind, 0.0, torch.softmax(torch.where(blind, 0.0, scores), -1))
    return weights @ v, (products, capped, scores, weights)[mode]


def masks(kind, keys):
    """Masks of all shapes that broadcast to [batch, heads, queries, keys]; the second query of some sees nothing."""
    random = np.random.default_rng(3)
    for shape in [(QUERIES, keys), (BATCH, 1, 1, keys), (1, HEADS, QUERIES, keys), (BATCH, HEADS, QUERIES, keys)]:
        seen = random.random(shape) > 0.4
        seen[..., 0] = True
        if shape[-2] > 1:
            seen[..., 1, :] = False
        yield seen if kind == "bool" else np.where(seen, random.normal(size=shape), -np.inf)


def cases():
    for kind, causal, cached, heads in itertools.product(("none", "bool", "float"), (0, 1), (0, 1), (HEADS, 2)):
        for i, mask in enumerate([None] if kind == "none" else masks(kind, KEYS + PAST * cached)):
            mode, softcap = (i + causal + 2 * cached) % 4, (0.0, 0.75)[(i + heads // 2) % 2]
            name = f"{kind}{i}-causal{causal}-cached{cached}-heads{heads}-mode{mode}-cap{softcap}"
            yield pytest.param(mask, causal, cached, heads, mode, softcap, id=name)


def model(path, arrays, mask, outputs, causal, mode, softcap, opset):
    """y and scores, and a loss that reads both where they are finite."""
    total = KEYS + (PAST if "past_key" in arrays else 0)
    inputs = ["q", "k", "v", "mask" if mask is not None else "", *(("past_key", "past_value") if total > KEYS else ())]
    while not inputs[-1]:
        inputs.pop()
    present = ("present_key", "present_value") if total > KEYS else ("", "")
    attributes = dict(is_causal=causal, qk_matmul_output_mode=mode) | (dict(softcap=softcap) if softcap else {})
    nodes = [
        helper.make_node("Attention", inputs, ["y", *present, "scores"], **attributes),
        helper.make_node("IsInf", ["scores"], ["infinite"]),
        helper.make_node("Where", ["infinite", "zero", "scores"], ["finite"]),
        helper.make_node("Mul", ["y", "y_weight"], ["y_part"]),
        helper.make_node("Mul", ["finite", "scores_weight"], ["scores_part"]),
        helper.make_node("ReduceSum", ["y_part"], ["y_sum"], keepdims=0),
        helper.make_node("ReduceSum", ["scores_part"], ["scores_sum"], keepdims=0),
        helper.make_node("Add", ["y_sum", "scores_sum"], ["total"]),
    ]
    double, boolean = TensorProto.DOUBLE, TensorProto.BOOL
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info(n, boolean if a.dtype == bool else double, a.shape) for n, a in arrays.items()],
        [helper.make_tensor_value_info(n, double, outputs[n]) for n in ("total", "y", "scores")],
        [onnx.numpy_helper.from_array(np.float64(0), "zero")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11), path)


@pytest.mark.parametrize("mask, causal, cached, heads, mode, softcap", cases())
def test_outputs_and_gradients_are_those_of_the_formula(mask, causal, cached, heads, mode, softcap, tmp_path):
    random, total = np.random.default_rng(1), KEYS + PAST * cached
    arrays = dict(q=random.normal(size=(BATCH, HEADS, QUERIES, WIDTH)), k=random.normal(size=(BATCH, heads, KEYS, WIDTH)),
                  v=random.normal(size=(BATCH, heads, KEYS, VALUE_WIDTH)))  # fmt: skip
    if cached:
        arrays |= dict(past_key=random.normal(size=(BATCH, heads, PAST, WIDTH)),
                       past_value=random.normal(size=(BATCH, heads, PAST, VALUE_WIDTH)))  # fmt: skip
    differentiated = {n: torch.from_numpy(a).requires_grad_() for n, a in arrays.items()}
    tensors = dict(differentiated) | ({} if mask is None else {"mask": torch.from_numpy(mask)})
    y, scores = formula(**tensors, causal=causal, softcap=softcap, mode=mode)
    weights = dict(y_weight=random.normal(size=y.shape), scores_weight=random.normal(size=scores.shape))
    finite = torch.where(torch.isinf(scores), 0.0, scores)
    loss = (y * torch.from_numpy(weights["y_weight"])).sum() + (finite * torch.from_numpy(weights["scores_weight"])).sum()
    loss.backward()

    fed = arrays | weights | ({} if mask is None else {"mask": mask})
    shapes = dict(total=(), y=y.shape, scores=scores.shape)
    model(tmp_path / "model.onnx", fed, mask, shapes, causal, mode, softcap, (23, 24, 25)[(mode + causal) % 3])
    # Inputs are no samples of a batch: what has another first size than the first goes whole.
    inputs = tool.save(tmp_path / "inputs.npz", fed)
    tool.run("predict", tmp_path / "model.onnx", "--inputs", inputs, "-o", tmp_path / "out.npz", "--dtype", "float64")
    tool.run("grad", tmp_path / "model.onnx", "--inputs", inputs, "--loss", "total", "-o", tmp_path / "grad.npz",
             "--dtype", "float64")  # fmt: skip
    found, gradients = tool.load(tmp_path / "out.npz"), tool.load(tmp_path / "grad.npz")
    np.testing.assert_allclose(found["y"], y.detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(found["scores"], scores.detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE)
    assert scores.shape[-1] == total
    for name, tensor in differentiated.items():
        np.testing.assert_allclose(gradients[f"grad_input/{name}"], tensor.grad.numpy(), rtol=1e-10, atol=1e-12)
