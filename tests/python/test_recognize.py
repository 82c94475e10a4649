"""What PyTorch's exporters spell out is recognized: the rewritten model computes the same on ONNX Runtime, and has one
Gelu, LayerNormalization, ... for each that the module has."""

import collections
import math

import numpy as np
import onnx
import pytest
import torch
import networks
from export import quiet
from test_import import outputs, run_pass
from torch import nn

import onnx_train

WIDTH = 16


class Spelled(nn.Module):
    """Layer norm and softmax as papers write them."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.bias = nn.Parameter(torch.linspace(-1, 1, WIDTH))

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        variance = (centered * centered).mean(-1, keepdim=True)
        x = centered * torch.rsqrt(variance + 1e-6) * self.scale + self.bias
        e = torch.exp(x - x.amax(1, keepdim=True))
        return e / e.sum(1, keepdim=True)


class HalfOfErf(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Cubed(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


class Normalized(nn.Module):
    """As ONNX exporters wrote it before opset 17."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        deviation = torch.sqrt(torch.pow(centered, 2).mean(-1, keepdim=True) + self.norm.eps)
        return centered / deviation * self.norm.weight + self.norm.bias


class RmsNorm(nn.Module):
    """LLaMA's."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


class QuickGelu(nn.Module):
    """CLIP's."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, x):
        return self.norm(x.reshape(x.shape[0], 8, 5, -1)).flatten(1)


class Attention(nn.Module):
    """PyTorch's own scores: exporters scale queries and keys alike."""

    def forward(self, x):
        heads = x.reshape(*x.shape[:2], 2, WIDTH // 2).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


# Module, and the operators it is to be recognized as.
MODULES = {
    "gelu": (nn.GELU, {"Gelu": 1}),
    "gelu_tanh": (lambda: nn.GELU("tanh"), {"Gelu": 1}),
    "gelu_new": (networks.TanhGelu, {"Gelu": 1}),
    "gelu_erf": (HalfOfErf, {"Gelu": 1}),
    "gelu_fast": (Cubed, {"Gelu": 1}),
    "layer_norm": (lambda: nn.LayerNorm(WIDTH), {"LayerNormalization": 1}),
    "layer_norm_parts": (Normalized, {"LayerNormalization": 1}),
    "spelled": (Spelled, {"LayerNormalization": 1, "Softmax": 1}),
    "layer_norm_alone": (lambda: nn.LayerNorm(WIDTH, elementwise_affine=False), {"LayerNormalization": 1}),
    "rms_norm": (RmsNorm, {"RMSNormalization": 1}),
    "quick_gelu": (QuickGelu, {"Swish": 1}),
    "silu": (nn.SiLU, {"Swish": 1}),
    "group_norm": (Groups, {"GroupNormalization": 1, "InstanceNormalization": 0}),
    "hardswish": (nn.Hardswish, {"HardSwish": 1}),
    "hardsigmoid": (nn.Hardsigmoid, {"HardSigmoid": 1}),
    "mish": (nn.Mish, {"Mish": 1}),
    "softplus": (nn.Softplus, {"Softplus": 1}),
    "attention": (Attention, {"Softmax": 1, "MatMul": 2, "Mul": 1}),
    "linear_3d": (lambda: nn.Linear(WIDTH, WIDTH), {"MatMul": 1, "Add": 1}),
}
EXPORTS = [("torchscript", 14), ("torchscript", 17), ("torchscript", 20), ("dynamo", 18), ("dynamo", 20)]


def export(module, inputs, path, exporter, opset):
    module.eval()
    arguments, names = tuple(inputs.values()), {"input_names": list(inputs), "output_names": ["y"]}
    with quiet(), torch.no_grad():
        if exporter == "dynamo":
            shapes = tuple({0: torch.export.Dim("batch")} for _ in inputs)
            torch.onnx.export(module, arguments, str(path), dynamo=True, opset_version=opset, external_data=False,
                              verbose=False, dynamic_shapes=shapes, **names)  # fmt: skip
        else:
            torch.onnx.export(module, arguments, str(path), dynamo=False, opset_version=opset,
                              dynamic_axes={name: {0: "batch"} for name in (*inputs, "y")}, **names)  # fmt: skip


def recognized(module, inputs, folder, exporter, opset, tolerance=2e-6):
    """The operators of the exported model once it is recognized; fails unless it computes the same."""
    before, after = folder / "before.onnx", folder / "after.onnx"
    export(module, inputs, before, exporter, opset)
    assert run_pass("recognize", before, after) == ""
    model = onnx.load(after)
    ours = {node.op_type for node in model.graph.node if node.domain}
    assert ours <= {"RMSNormalization", "Swish"}  # ONNX has these from opset 23 and 24 on
    assert {function.name for function in model.functions} == ours
    feeds = {name: value.numpy() for name, value in inputs.items()}
    for a, b in zip(outputs(before, feeds), outputs(after, feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * np.abs(a).max())
    return collections.Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("exporter,opset", EXPORTS)
@pytest.mark.parametrize("name", MODULES)
def test_modules(tmp_path, name, exporter, opset):
    module, expected = MODULES[name]
    torch.manual_seed(0)
    x = torch.randn(3, 5, WIDTH)
    counts = recognized(module(), {"x": x}, tmp_path, exporter, opset)
    assert {op: counts[op] for op in expected} == expected, counts
    for op in ("Erf", "Pow", "Sqrt", "Reciprocal"):
        assert counts[op] == 0, counts


@pytest.mark.parametrize("name", ["hardswish", "layer_norm_alone", "group_norm", "silu"])
def test_older_spellings(tmp_path, name):
    """Before opset 14 there is no HardSwish."""
    test_modules(tmp_path, name, "torchscript", 13)


# Two blocks each: BERT has five layer norms and, in the head of a masked language model, a sixth; GPT-2 five.
TRANSFORMERS = {
    "bert": {"Gelu": 2, "LayerNormalization": 5, "Softmax": 2},
    "masked_lm": {"Gelu": 3, "LayerNormalization": 6, "Softmax": 2},
    "gpt2": {"Gelu": 2, "LayerNormalization": 5, "Softmax": 2},
}


@pytest.mark.parametrize("exporter,opset", [("torchscript", 14), ("torchscript", 17), ("dynamo", 18), ("dynamo", 20)])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(tmp_path, name, exporter, opset):
    example = networks.EXAMPLES[name]()
    try:
        counts = recognized(example.module, example.inputs, tmp_path, exporter, opset, tolerance=1e-5)
    except (TypeError, RuntimeError, ValueError) as error:
        if exporter == "torchscript":
            pytest.skip(f"the older exporter cannot write it: {type(error).__name__}: {str(error).splitlines()[0]}")
        raise
    expected = TRANSFORMERS[name]
    assert {op: counts[op] for op in expected} == expected, counts
    for op in ("Erf", "Pow"):
        assert counts[op] == 0, counts


@pytest.mark.parametrize("equation, shapes, gone", [
    ("btd,de->bte", ((2, 3, 4), (4, 5)), True),
    ("de,btd->bte", ((4, 5), (2, 3, 4)), True),
    ("btd,ed->ebt", ((2, 3, 4), (5, 4)), True),
    ("bte,bse->bts", ((2, 3, 5), (2, 4, 5)), True),
    ("bqhd,bkhd->bhqk", ((2, 3, 2, 5), (2, 4, 2, 5)), True),
    ("bhqk,bkhd->bqhd", ((2, 2, 3, 4), (2, 4, 2, 5)), True),
    ("ij,jk", ((3, 4), (4, 5)), True),
    ("...d,de->...e", ((2, 3, 4), (4, 5)), True),
    ("...ij,...jk->...ik", ((2, 3, 4), (1, 4, 5)), True),
    ("ij,ij->ij", ((3, 4), (3, 4)), False),
    ("ijj,jk->ik", ((3, 4, 4), (4, 5)), False),
    ("i,j->ij", ((3,), (4,)), False),
    ("ijk,jk->i", ((2, 3, 4), (3, 4)), False),
    ("ijm,jk->ik", ((2, 3, 6), (3, 4)), False),
])  # fmt: skip
def test_products_that_an_einsum_spells(equation, shapes, gone):
    """It runs as MatMul, so that it is as fast, and rounded with --precision."""
    a, b = (np.random.default_rng(i).normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes))
    expected = torch.einsum(equation, torch.tensor(a), torch.tensor(b)).numpy()
    node = onnx.helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in
            (("x", [f"s{i}" for i in range(a.ndim)] if gone and "..." not in equation else a.shape), ("y", None)))  # fmt: skip
    graph = onnx.helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(b, "w")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    training = onnx_train.build(model, "mse(y, target)", "sgd", precision="gemm-bf16")
    assert ("Einsum" not in {n.op_type for n in onnx.load_from_string(training.to_bytes()).graph.node}) == gone
    assert (training.metadata["onnx_train.rounded"] == "1") == gone
    training = onnx_train.build(model, "mse(y, target)", "sgd", dtype="float64")
    session = onnx_train.Session(training, threads=1)
    np.testing.assert_allclose(session.predict(a.astype(np.float64)).y, expected, rtol=1e-5, atol=1e-5)
    assert onnx_train.verify(model, "mse(y, target)", {"x": a, "target": np.zeros_like(expected)}, threads=1)
