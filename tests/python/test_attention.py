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
from export import quiet
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


class Guarded(torch.nn.Module):
    """Attention whose probabilities are 0 for a query that its mask hides from every key. Returns a loss and, as models
    do that show their attention, what the softmax gave."""

    guards = {
        "where": lambda p, blind: torch.where(torch.isnan(p), 0.0, p),
        "masked_fill": lambda p, blind: p.masked_fill(torch.isnan(p), 0.0),
        "nan_to_num": lambda p, blind: torch.nan_to_num(p, 0.0),
        "rows": lambda p, blind: p.masked_fill(blind, 0.0),
        "float": lambda p, blind: torch.where(torch.isnan(p.float()), 0.0, p.float()).to(p.dtype),
        "log": lambda p, blind: torch.where(torch.isnan(p), -1e4, p).exp(),
    }

    def __init__(self, guard):
        super().__init__()
        torch.manual_seed(2)
        self.guard = guard
        self.q, self.k, self.v = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x, mask):
        q, k, v = (layer(x).unflatten(2, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        hidden = ~mask[:, None, None, :]
        scores = q @ k.transpose(2, 3) / 2 + torch.where(hidden, -torch.inf, 0.0).to(x.dtype)
        p = (torch.log_softmax if self.guard == "log" else torch.softmax)(scores, -1)
        kept = self.guards[self.guard](p, hidden.all(-1, keepdim=True))
        return (torch.sin(3 * kept @ v) * q).sum(), p


@pytest.mark.parametrize("guard", Guarded.guards)
@pytest.mark.parametrize("precision, dtype, tolerance", [("fp32", "float64", 1e-12), ("bf16", "float32", 0.1), ("fp16", "float32", 0.01)])
def test_hidden_rows_have_no_gradient_whatever_the_axes_are_called(guard, precision, dtype, tolerance, tmp_path):
    """A serving export names the axis of the mask after all tokens, and that of keys after the queries. A step of SGD
    gives the gradients."""
    module = Guarded(guard).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1, 0], [0] * 5, [1] * 5]).bool()
    loss = module(x, mask)[0]
    # In PyTorch, too, a hidden row has the gradient NaN: 0 times NaN. The other samples hide no query; what the hidden
    # ones do not give is 0, since the loss of them is sin(0) q.
    module(x[[0, 2]], mask[[0, 2]])[0].backward()
    expected = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    module, x = (part.to(getattr(torch, dtype)) for part in (module, x))
    with quiet():
        torch.onnx.export(module, (x, mask), str(tmp_path / "model.onnx"), dynamo=False, do_constant_folding=False,
                          opset_version=17, input_names=["x", "mask"], output_names=["loss", "p"],
                          dynamic_axes={"x": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "total"}})  # fmt: skip
    data = tool.save(tmp_path / "data.npz", {"x": x, "mask": mask})
    options = ("--dtype", dtype) if dtype == "float64" else ("--precision", precision, "--loss-scale", 8)
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "loss", "--optimizer", "sgd", *options)
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 1, "--batch-size", 3, "--lr", 1, "--schedule",
             "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    before, after = (tool.state_of(onnx.load(path)) for path in (tmp_path / "train.onnx", tmp_path / "run/last.onnx"))
    tolerance = max(tolerance, 1e-6 if guard == "float" else 0)
    np.testing.assert_allclose(tool.losses(tmp_path / "run"), [loss.item()], rtol=tolerance, atol=tolerance)
    for name, gradient in expected.items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(before[name] - after[name], gradient, rtol=0, atol=tolerance * scale, err_msg=name)
        assert scale > 0
