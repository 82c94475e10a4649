"""Operators of com.microsoft and ai.onnx.ml: values are ONNX Runtime's, gradients agree with differences in float64."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)
MS, ML = "com.microsoft", "ai.onnx.ml"


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def ints(high, *shape, dtype=np.int64):
    return RNG.integers(0, high, shape).astype(dtype)


def element_type(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def save_node(path, op, domain, inputs, constants, outputs, attributes):
    """A model of one node. `inputs` may hold None for absent ones; the first of floats is multiplied by a gain before."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    first = next((i for i, x in enumerate(inputs) if x is not None and x.dtype == np.float32 and i not in constants), None)
    nodes = [] if first is None else [helper.make_node("Mul", [names[first], "gain"], ["z"])]
    read = [("z" if i == first else name) for i, name in enumerate(names)]
    nodes.append(helper.make_node(op, read, outputs, domain=domain, name="node", **attributes))
    given = {name: x for name, x in zip(names, inputs) if name}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, element_type(x), x.shape) for i, (name, x) in enumerate(zip(names, inputs))
         if name and i not in constants],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [numpy_helper.from_array(inputs[i], names[i]) for i in constants] + [numpy_helper.from_array(np.float32([1.25]), "gain")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1), helper.make_opsetid(ML, 3)]
    if domain not in ("", MS, ML):
        opsets.append(helper.make_opsetid(domain, 1))
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return {name: x for i, (name, x) in enumerate(zip(names, inputs)) if name and i not in constants}


def gradients(path, given, targets, folder):
    loss = " + ".join(f"mse({name}, target_{name})" for name in targets)
    batch = given | {f"target_{name}": target for name, target in targets.items()}
    tool.run("grad", path, "--inputs", tool.save(folder / "batch.npz", batch), "-o", folder / "grad.npz", "--dtype", "float64",
             "--loss", loss, "--train", "gain")  # fmt: skip
    return tool.load(folder / "grad.npz")


def compare(folder, op, inputs, *, domain=MS, constants=(), outputs=("y",), tolerance=2e-6, expected=None, **attributes):
    """Values are ONNX Runtime's; the gradients by all float inputs and by the gain agree with differences."""
    path = folder / "model.onnx"
    given = save_node(path, op, domain, inputs, constants, outputs, attributes)
    names = [name for name in outputs if name]
    gain = np.float32(1.25)
    values = expected(gain * inputs[0], *inputs[1:]) if expected else tool.session(path).run(names, given)
    values = dict(zip(names, values))
    reached = {name: y for name, y in values.items() if y.dtype == np.float32}
    scale = max(np.abs(y).max() for y in reached.values())
    assert scale > 0.01 and gradients(path, given, reached, folder)["loss"] < (tolerance * scale) ** 2
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in given.items()}
    targets = {name: y + RNG.normal(size=y.shape) for name, y in reached.items()}
    found = gradients(path, wide, targets, folder)
    checked = [name for name in wide if wide[name].dtype == np.float64]
    assert checked
    for name in checked:
        gradient, direction = found[f"grad_input/{name}"], RNG.normal(size=wide[name].shape)
        moved = [gradients(path, wide | {name: wide[name] + h * direction}, targets, folder)["loss"] for h in (-1e-5, 1e-5)]
        size = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert size > 0
        assert (moved[1] - moved[0]) / 2e-5 == pytest.approx((gradient * direction).sum(), rel=1e-5, abs=1e-6 * size), name
    return path


def run_case(folder, case):
    op, inputs, *rest = case
    compare(folder, op, inputs, **(rest[0] if rest else {}))


B, S, N, H = 2, 5, 2, 4
D = N * H
X, W3, B3 = floats(B, S, D), floats(D, 3 * D) / 3, floats(3 * D)
MASK = np.int32([[1] * S, [1, 1, 1, 0, 0]])
LENGTHS = np.int32([5, 3])
COS, SIN = np.cos(floats(8, H // 2)), np.sin(floats(8, H // 2))


def decoded(q, k, v, keys, values, lengths, total):
    """GroupQueryAttention of one token after caches of lengths of their own. ONNX Runtime leaves the caches out where it
    writes none."""
    rows = []
    for i, before in enumerate(lengths):
        k_all = np.concatenate([keys[i][:, :before], k[i].reshape(2, 1, G)], 1).repeat(2, 0)
        v_all = np.concatenate([values[i][:, :before], v[i].reshape(2, 1, G)], 1).repeat(2, 0)
        weights = np.exp(np.einsum("nh,nth->nt", q[i].reshape(4, G), k_all) / np.sqrt(G))
        rows.append(np.einsum("nt,nth->nh", weights / weights.sum(1, keepdims=True), v_all).reshape(1, -1))
    return np.stack(rows).astype(np.float32)


GQA = {"num_heads": 4, "kv_num_heads": 2}
G = 16  # a head's size, of which ONNX Runtime takes multiples of 16 there
Q4, K2, V2 = floats(B, S, 4 * G), floats(B, S, 2 * G), floats(B, S, 2 * G)
ANGLES = floats(8, G // 2)
FULL = (None, None, np.int32([S - 1] * B), np.array(S, np.int32))
IMAGE, FILTERS, BIAS = floats(2, 3, 6, 7), floats(4, 3, 3, 2), floats(4)
NORM = {"epsilon": 1e-5}
EMBED = [floats(11, D), floats(8, D), floats(3, D), floats(D), floats(D)]

CASES = {
    "Gelu": ("Gelu", [floats(3, 4)]),
    "BiasGelu": ("BiasGelu", [floats(3, 4), floats(4)]),
    "FastGelu": ("FastGelu", [floats(3, 4)]),
    "FastGelu_bias": ("FastGelu", [floats(3, 4), floats(4)]),
    "QuickGelu": ("QuickGelu", [floats(3, 4)]),
    "QuickGelu_alpha": ("QuickGelu", [floats(3, 4)], {"alpha": 0.5}),
    "FusedMatMul": ("FusedMatMul", [floats(2, 3, 4), floats(2, 4, 5)], {"alpha": 0.25}),
    "FusedMatMul_transposed": ("FusedMatMul", [floats(2, 4, 3), floats(2, 5, 4)], {"transA": 1, "transB": 1}),
    "FusedMatMul_batches": ("FusedMatMul", [floats(3, 2, 4), floats(4, 2, 5)], {"transBatchA": 1, "transBatchB": 1}),
    "FusedMatMul_all": ("FusedMatMul", [floats(4, 2, 3), floats(5, 2, 4)],
                        {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1, "alpha": 2.0}),
    "FusedMatMul_3_batches": ("FusedMatMul", [floats(3, 2, 6, 4), floats(4, 2, 6, 5)], {"transBatchA": 1, "transBatchB": 1}),
    "TransposeMatMul": ("TransposeMatMul", [floats(4, 3), floats(4, 5)], {"transA": 1}),
    "Inverse": ("Inverse", [floats(2, 3, 3) + 3 * np.eye(3, dtype=np.float32)]),
    "Inverse_1": ("Inverse", [1 + RNG.random((4, 1, 1), np.float32)]),
    "Inverse_7": ("Inverse", [floats(7, 7) + 5 * np.eye(7, dtype=np.float32)]),
    "CDist": ("CDist", [floats(3, 4), floats(5, 4)]),
    "CDist_euclidean": ("CDist", [floats(3, 4), floats(5, 4)], {"metric": "euclidean"}),
    "FusedGemm": ("FusedGemm", [floats(3, 4), floats(5, 4), floats(5)],
                  {"transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "LeakyRelu", "activation_alpha": 0.2}),
    "FusedGemm_tanh": ("FusedGemm", [floats(3, 4), floats(4, 5)], {"activation": "Tanh"}),
    "FusedConv": ("FusedConv", [IMAGE, FILTERS, BIAS], {"activation": "Relu", "pads": [1, 0, 1, 0], "strides": [1, 2]}),
    "FusedConv_sum": ("FusedConv", [IMAGE, FILTERS, BIAS, floats(2, 4, 4, 6)], {"activation": "LeakyRelu", "activation_params": [0.1]}),
    "FusedConv_clip": ("FusedConv", [IMAGE, FILTERS], {"activation": "Clip", "activation_params": [-1.0, 2.0]}),
    "FusedConv_hard_sigmoid": ("FusedConv", [IMAGE, FILTERS / 9], {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
    "SkipLayerNormalization": ("SkipLayerNormalization", [X, floats(B, S, D), floats(D), floats(D), floats(D)], NORM),
    "SkipLayerNormalization_sum": ("SkipLayerNormalization", [X, floats(1, S, D), floats(D)], NORM | {"outputs": ("y", "", "", "sum")}),
    "SkipSimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", [X, floats(B, S, D), floats(D), floats(D)],
                                         NORM | {"outputs": ("y", "", "", "sum")}),
    "SimplifiedLayerNormalization": ("SimplifiedLayerNormalization", [X, floats(D)], {"domain": "", "axis": -1, "stash_type": 1} | NORM),
    "EmbedLayerNormalization": ("EmbedLayerNormalization", [ints(11, B, S, dtype=np.int32), ints(3, B, S, dtype=np.int32), *EMBED],
                                NORM | {"outputs": ("y", "mask_index")}),
    "EmbedLayerNormalization_mask": (
        "EmbedLayerNormalization", [ints(11, B, S, dtype=np.int32), None, *EMBED[:2], None, *EMBED[3:], MASK, ints(8, B, S, dtype=np.int32)],
        NORM | {"outputs": ("y", "mask_index", "sum")}),
    "Attention": ("Attention", [X, W3, B3], {"num_heads": N}),
    "Attention_causal": ("Attention", [X, W3, B3], {"num_heads": N, "unidirectional": 1, "scale": 0.3}),
    "Attention_mask": ("Attention", [X, W3, B3, MASK], {"num_heads": N, "mask_filter_value": -50.0}),
    "Attention_mask_3d": ("Attention", [X, W3, B3, np.tril(np.ones((B, S, S), np.int32))], {"num_heads": N}),
    "Attention_lengths": ("Attention", [X, W3, B3, LENGTHS, None, floats(B, N, S, S)], {"num_heads": N}),
    "Attention_sizes": ("Attention", [X, floats(D, 2 * D + 6), floats(2 * D + 6)], {"num_heads": N, "qkv_hidden_sizes": [D, D, 6]}),
    "Attention_present": ("Attention", [X, W3, B3], {"num_heads": N, "outputs": ("y", "present")}),
    "MultiHeadAttention": ("MultiHeadAttention", [X, floats(B, 3, D), floats(B, 3, 6)], {"num_heads": N}),
    "MultiHeadAttention_bias": ("MultiHeadAttention", [X, floats(B, S, D), floats(B, S, D), B3, MASK, floats(1, N, S, S)],
                                {"num_heads": N, "scale": 0.4}),
    "MultiHeadAttention_causal": ("MultiHeadAttention", [X, floats(B, S, D), floats(B, S, D)],
                                  {"num_heads": N, "unidirectional": 1, "outputs": ("y", "k", "v")}),
    "MultiHeadAttention_cross": ("MultiHeadAttention", [X, floats(B, N, 3, H), floats(B, N, 3, H)], {"num_heads": N}),
    "GroupQueryAttention": ("GroupQueryAttention", [Q4, K2, V2, *FULL], GQA | {"outputs": ("y", "k", "v")}),
    "GroupQueryAttention_packed": ("GroupQueryAttention", [floats(B, S, 8 * G), None, None, *FULL], GQA | {"outputs": ("y", "k", "v")}),
    "GroupQueryAttention_rotary": ("GroupQueryAttention", [Q4, K2, V2, *FULL, np.cos(ANGLES), np.sin(ANGLES)],
                                   GQA | {"do_rotary": 1, "outputs": ("y", "k", "v"), "constants": (7, 8)}),
    "GroupQueryAttention_interleaved": ("GroupQueryAttention", [Q4, K2, V2, *FULL, np.cos(ANGLES), np.sin(ANGLES)],
                                        GQA | {"do_rotary": 1, "rotary_interleaved": 1, "outputs": ("y", "k", "v"), "constants": (7, 8)}),
    "GroupQueryAttention_window": ("GroupQueryAttention", [Q4, K2, V2, *FULL],
                                   GQA | {"local_window_size": 2, "softcap": 3.0, "scale": 0.7, "outputs": ("y", "k", "v")}),
    "GroupQueryAttention_cache": (
        "GroupQueryAttention",
        [floats(1, S, 4 * G), floats(1, S, 2 * G), floats(1, S, 2 * G), floats(1, 2, 3, G), floats(1, 2, 3, G), np.int32([S + 2]),
         np.array(S + 3, np.int32)],
        GQA | {"outputs": ("y", "k", "v")},
    ),
    "GroupQueryAttention_cache_window": (
        "GroupQueryAttention",
        [floats(1, S, 4 * G), floats(1, S, 2 * G), floats(1, S, 2 * G), floats(1, 2, 3, G), floats(1, 2, 3, G), np.int32([S + 2]),
         np.array(S + 3, np.int32), np.cos(ANGLES), np.sin(ANGLES)],
        GQA | {"do_rotary": 1, "local_window_size": 4, "outputs": ("y", "k", "v"), "constants": (7, 8)},
    ),
    "GroupQueryAttention_cache_lengths": (  # a place of the cache is not in use
        "GroupQueryAttention",
        [floats(B, 1, 4 * G), floats(B, 1, 2 * G), floats(B, 1, 2 * G), floats(B, 2, 3, G), floats(B, 2, 3, G), np.int32([2, 3]),
         np.array(4, np.int32)],
        GQA | {"expected": lambda *inputs: [decoded(*inputs)]},
    ),
    "RotaryEmbedding": ("RotaryEmbedding", [floats(B, N, S, H), ints(8, B, S), COS, SIN], {"constants": (2, 3)}),
    "RotaryEmbedding_flat": ("RotaryEmbedding", [X, np.int64([2]), COS, SIN], {"interleaved": 1, "constants": (2, 3)}),
    "RotaryEmbedding_part": ("RotaryEmbedding", [floats(B, S, N * 6), ints(8, B, S), COS, SIN],
                             {"num_heads": N, "rotary_embedding_dim": H, "constants": (2, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_com_microsoft(name, tmp_path):
    run_case(tmp_path, CASES[name])


def numbers(formula):
    return lambda *inputs: [formula(*map(torch.from_numpy, inputs)).numpy()]


def split_gelu(x, bias):
    left, right = (x + bias).chunk(2, -1)
    return left * torch.nn.functional.gelu(right)


def channels_last(x, w, bias):
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), bias, padding=(1, 0))
    return y.permute(0, 2, 3, 1)


# ONNX Runtime runs these on GPUs alone; its optimizer for transformers writes filters [out, height, width, in].
BY_FORMULA = {
    "BiasSplitGelu": ([floats(2, 3, 8), floats(8)], split_gelu, {}),
    "BiasAdd": ([floats(2, 3, 4), floats(4), floats(2, 3, 4)], lambda x, bias, skip: x + bias + skip, {}),
    "NhwcConv": ([floats(2, 6, 7, 3), floats(4, 3, 2, 3), floats(4)], channels_last, {"pads": [1, 0, 1, 0], "kernel_shape": [3, 2]}),
}


@pytest.mark.parametrize("op", BY_FORMULA)
def test_com_microsoft_of_gpus(op, tmp_path):
    inputs, formula, attributes = BY_FORMULA[op]
    compare(tmp_path, op, inputs, expected=numbers(formula), **attributes)


def packed(values, bits):
    """Integers in bytes, the first in the low bits; rows end with a byte."""
    per_byte = 8 // bits
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per_byte)])
    groups = padded.reshape(*values.shape[:-1], -1, per_byte).astype(np.uint8)
    return (groups << (bits * np.arange(per_byte, dtype=np.uint8))).sum(-1).astype(np.uint8)


@pytest.mark.parametrize("bits,k,zeros", [(4, 32, False), (4, 40, True), (8, 32, True), (2, 48, True), (4, 48, True)])
def test_weights_of_a_few_bits(bits, k, zeros, tmp_path):
    n, block = 6, 16
    blocks = -(-k // block)
    q = packed(ints(1 << bits, n, blocks, block), bits)
    z = packed(ints(1 << bits, n, blocks), bits).reshape(-1) if zeros else None
    path = compare(tmp_path, "MatMulNBits", [floats(3, 4, k), q, np.abs(floats(n * blocks)) / 8] + ([z] if zeros else []),
                   constants=(1, 2) + ((3,) if zeros else ()), tolerance=2e-5,
                   K=k, N=n, bits=bits, block_size=block)  # fmt: skip
    assert "integers: 'x1'; frozen" in tool.run("check", path, "--train", "gain")
    if k % block == 0:  # rounded in every step, like any stored weight
        tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "mse(y)", "--train", "x1")
        weights = onnx.load(tmp_path / "train.onnx").graph.initializer
        assert [list(w.dims) for w in weights if w.name == "x1"] == [[n, k]]


def table_of_bits(path, bits, zeros, words=9, size=64, block=16):
    """A table of `words` rows in a few bits, and the product of its rows with a weight. Of 4 bits in bytes it is the head, too, in the
    form of MatMulNBits. A type of 4 bits has one integer an element."""
    rng, blocks = np.random.default_rng(3), size // block
    if isinstance(bits, str):
        kind, low = {"int4": (TensorProto.INT4, -8), "uint4": (TensorProto.UINT4, 0)}[bits]
        tensor = lambda name, *shape: helper.make_tensor(name, kind, shape, rng.integers(low, low + 16, shape).ravel())  # noqa: E731
    else:
        tensor = lambda name, *shape: numpy_helper.from_array(packed(rng.integers(0, 1 << bits, shape), bits), name)  # noqa: E731
    held = [tensor("table", words, size), numpy_helper.from_array(floats(size, 3), "w"),
            numpy_helper.from_array(np.abs(floats(words, blocks)) / 8, "scales")]  # fmt: skip
    held += [tensor("zeros", words, blocks)] if zeros else []
    of_rows, tail = "table", ["scales"] + ["zeros"] * zeros
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if bits == 4:
        of_rows = "rows"
        held[0].dims[:] = [words, blocks, block // 2]
        held.append(numpy_helper.from_array(np.int64([words, size // 2]), "sizes"))
        nodes = [helper.make_node("MatMulNBits", ["x", "table", *tail], ["y"], domain=MS, K=size, N=words, bits=4, block_size=block)]
    how = dict(block_size=block, gather_axis=0, quantize_axis=1) | ({} if isinstance(bits, str) else {"bits": bits})
    nodes.insert(0, helper.make_node("GatherBlockQuantized", [of_rows, "ids", *tail], ["x"], "node", domain=MS, **how))
    if bits == 4:
        nodes.insert(0, helper.make_node("Reshape", ["table", "sizes"], ["rows"]))
        nodes += [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Concat", ["y", "z"], ["all"], axis=2)]
    out = "all" if bits == 4 else "y"
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "t"])],
                              [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)], held)  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return out, {"ids": rng.integers(0, words, (2, 5))}


@pytest.mark.parametrize("bits,zeros", [(2, True), (4, False), (4, True), (8, True), (8, False), ("uint4", True), ("int4", False)])
def test_rows_of_a_table_in_a_few_bits(bits, zeros, tmp_path):
    path = tmp_path / "model.onnx"
    out, given = table_of_bits(path, bits, zeros)
    expected = tool.session(path).run(None, given)[0]
    tool.run("predict", path, "--inputs", tool.save(tmp_path / "ids.npz", given), "-o", tmp_path / "y.npz")
    np.testing.assert_allclose(tool.load(tmp_path / "y.npz")[out], expected, rtol=1e-5, atol=1e-5)
    data = tool.save(tmp_path / "data.npz", given | {"labels": np.zeros_like(expected)})
    tool.run("fit", path, "--data", data, "--loss", f"mse({out})", "--steps", 3, "--lr", 0.1, "--out", tmp_path / "run")
    losses = tool.losses(tmp_path / "run")
    assert losses[0] == pytest.approx((expected**2).mean(), rel=1e-4) and losses[-1] < losses[0]
    if bits == 4:
        text = tool.run("build", path, "-o", tmp_path / "t.onnx", "--loss", f"mse({out})", "--train", "table", status=1)
        assert "reads, too: the two would be one weight no more" in text


LINEAR = {"coefficients": [0.1 * i - 0.5 for i in range(12)], "intercepts": [0.3, -0.2, 0.1]}
ONE = {"coefficients": [0.5, -0.25, 1.0, 0.75], "intercepts": [0.125]}
LEARNING = {
    "LinearRegressor": ("LinearRegressor", [floats(5, 4)], LINEAR | {"targets": 3}),
    "LinearRegressor_plain": ("LinearRegressor", [floats(5, 4)], {"coefficients": [1.0, 2.0, -1.0, 0.5]}),
    "LinearClassifier": ("LinearClassifier", [floats(5, 4)], LINEAR | {"classlabels_ints": [3, 1, 2], "post_transform": "SOFTMAX"}),
    "LinearClassifier_logistic": ("LinearClassifier", [floats(5, 4)], LINEAR | {"classlabels_ints": [0, 1, 2], "post_transform": "LOGISTIC"}),
    "LinearClassifier_two": ("LinearClassifier", [floats(5, 4)], ONE | {"classlabels_ints": [0, 1], "post_transform": "LOGISTIC"}),
    "LinearClassifier_raw": ("LinearClassifier", [floats(5, 4)], ONE | {"classlabels_ints": [4, 7]}),
    "Normalizer_L1": ("Normalizer", [floats(5, 4)], {"norm": "L1"}),
    "Normalizer_L2": ("Normalizer", [floats(5, 4)], {"norm": "L2"}),
    "Normalizer_MAX": ("Normalizer", [floats(5, 4) + 2], {"norm": "MAX"}),
    "Scaler": ("Scaler", [floats(5, 4)], {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [1.0, 2.0, 3.0, 4.0]}),
    "Scaler_one": ("Scaler", [floats(5, 4)], {"offset": [0.1], "scale": [2.0]}),
    "Imputer": ("Imputer", [floats(5, 4)], {"imputed_value_floats": [1.0], "replaced_value_float": 0.5}),
    "ArrayFeatureExtractor": ("ArrayFeatureExtractor", [floats(5, 4), np.int64([2, 0, 2])], {"constants": (1,)}),
    "FeatureVectorizer": ("FeatureVectorizer", [floats(5, 2), floats(5, 3)], {"inputdimensions": [2, 3]}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNING)
def test_ai_onnx_ml(name, tmp_path):
    op, inputs, options = LEARNING[name]
    outputs = ("label", "y") if op == "LinearClassifier" else ("y",)
    run_case(tmp_path, (op, inputs, {"domain": ML, "outputs": outputs, "tolerance": 1e-6} | options))


def test_weights_of_a_linear_classifier_are_weights(tmp_path):
    path = tmp_path / "model.onnx"
    attributes = LINEAR | {"classlabels_ints": [0, 1, 2], "post_transform": "SOFTMAX"}
    save_node(path, "LinearClassifier", ML, [floats(5, 4)], (), ("label", "y"), attributes)
    data = tool.save(tmp_path / "data.npz", {"x0": floats(60, 4), "target": np.eye(3, dtype=np.float32)[ints(3, 60)]})
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "mse(y, target)")
    assert "2 parameters agree" in tool.run("verify", tmp_path / "train.onnx")
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--epochs", "2", "--batch-size", "5", "--out", tmp_path / "run")
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "trained.onnx")
    labels, scores = tool.session(tmp_path / "trained.onnx").run(None, {"x0": floats(5, 4)})
    assert list(labels) == list(scores.argmax(1))


def pipeline(path, labels=None, unknown=False):
    """A scikit-learn pipeline of three columns, one of integers, as its converter writes it; returns its numbers."""
    coef, bias, offset, scale = np.float32([0.8, -0.5, 0.3]), np.float32(0.2), np.float32([40, 3, 5]), np.float32([0.1, 0.5, 0.25])
    names = {"classlabels_ints": [0, 1]} if labels is None else {"classlabels_strings": labels}
    maps = {"classlabels_int64s": [0, 1]} if labels is None else {"classlabels_strings": labels}
    node = lambda op, inputs, outputs, **attributes: helper.make_node(op, inputs, outputs, domain=ML, **attributes)  # noqa: E731
    nodes = [
        helper.make_node("Cast", ["visits"], ["visits_f"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["age", "income", "visits_f"], ["x"], axis=1),
        node("Scaler", ["x"], ["scaled"], offset=offset.tolist(), scale=scale.tolist()),
        node("LinearClassifier", ["scaled"], ["label", "scores"], coefficients=[*(-coef).tolist(), *coef.tolist()],
             intercepts=[-float(bias), float(bias)], multi_class=1, post_transform="LOGISTIC", **names),
        node("Normalizer", ["scores"], ["p"], norm="L1"),
        node("ZipMap", ["p"], ["probability"], **maps),
    ]  # fmt: skip
    key = TensorProto.INT64 if labels is None else TensorProto.STRING
    map_type = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    outputs = [
        helper.make_tensor_value_info("label", key, [None]),
        helper.make_value_info("probability", helper.make_sequence_type_proto(map_type)),
    ]
    if unknown:
        nodes.append(node("CastMap", ["probability"], ["vector"]))
        outputs[1] = helper.make_tensor_value_info("vector", TensorProto.FLOAT, [None, 2])
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in ("age", "income")]
    inputs.append(helper.make_tensor_value_info("visits", TensorProto.INT64, [None, 1]))
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15), helper.make_opsetid(ML, 1)], ir_version=8)
    onnx.save(model, path)
    return coef, bias, offset, scale


def customers(count=48):
    rng = np.random.default_rng(0)
    columns = {"age": rng.normal(40, 9, (count, 1)).astype(np.float32), "income": rng.gamma(3, 1, (count, 1)).astype(np.float32),
               "visits": rng.integers(0, 12, (count, 1))}  # fmt: skip
    return columns, rng.integers(0, 2, count)


@pytest.mark.parametrize("labels", [None, ["no", "yes"]])
def test_a_pipeline_of_scikit_learn_trains_and_serves_as_before(labels, tmp_path):
    """One-vs-rest probabilities are compared by their logarithms, the scaler is none of the weights, and maps are maps again."""
    path = tmp_path / "model.onnx"
    coef, bias, offset, scale = pipeline(path, labels)
    columns, classes = customers()
    data = tool.save(tmp_path / "data.npz", columns | {"labels": classes})
    w = torch.tensor(np.stack([-coef, coef]), dtype=torch.float64, requires_grad=True)
    b = torch.tensor([-bias, bias], dtype=torch.float64, requires_grad=True)
    x = (torch.tensor(np.concatenate(list(columns.values()), 1), dtype=torch.float64) - torch.tensor(offset)) * torch.tensor(scale)

    def probabilities():
        s = torch.sigmoid(x @ w.T + b)
        return s / s.sum(1, keepdim=True)

    said = tool.run("build", path, "-o", tmp_path / "train.onnx", "--optimizer", "sgd")
    assert "nll(p" in said or "nll(probability" in said
    assert "trained         2 tensors, 8 elements" in said and "probability: maps from classes to numbers" in said
    assert ("label: no tensor of numbers" in said) == (labels is not None)
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 20, "--batch-size", 48, "--lr", 0.1, "--no-shuffle",
             "--out", tmp_path / "run")  # fmt: skip
    optimizer = torch.optim.SGD([w, b], lr=0.1)
    expected = []
    for _ in range(20):
        loss = torch.nn.functional.nll_loss(probabilities().log(), torch.tensor(classes))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(tool.losses(tmp_path / "run"), expected, rtol=1e-4)
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "trained.onnx")
    served = tool.session(tmp_path / "trained.onnx").run(["probability"], columns)[0]
    keys = labels or [0, 1]
    np.testing.assert_allclose([[row[key] for key in keys] for row in served], probabilities().detach(), rtol=1e-3, atol=1e-4)


def test_a_cut_comes_before_operators_are_judged(tmp_path):
    path = tmp_path / "model.onnx"
    pipeline(path, unknown=True)
    assert "CastMap" in tool.run("build", path, "-o", tmp_path / "train.onnx", status=1)
    text = tool.run("build", path, "-o", tmp_path / "train.onnx", "--cut", "p")
    assert "nll(p, labels" in text and "the model ends at 'p'" in text


REFUSED = {
    "DynamicQuantizeMatMul": (MS, "computes in integers that it makes of its inputs, which have no gradient"),
    "QLinearAdd": (MS, "computes with integers alone, which have no gradient; take the float model"),
    "TreeEnsembleClassifier": (ML, "decisions of trees have no gradient"),
    "CastMap": (ML, "no tensors of numbers"),
    "SVMRegressor": (ML, "support vectors are not trained"),
    "FusedThing": (MS, "export without its fusions"),
    "Conv": ("com.microsoft.nchwc", "laid this model out for one processor"),
}


@pytest.mark.parametrize("op", REFUSED)
def test_what_has_no_standard_operators_is_refused_by_name(op, tmp_path):
    domain, reason = REFUSED[op]
    path = tmp_path / "model.onnx"
    save_node(path, op, domain, [floats(3, 4)], (), ["y", "z2"] if op.endswith("Classifier") else ["y"], {})
    text = tool.run("check", path, status=1)
    assert f"operator {op} of domain {domain} (node 'node') is not known here" in text and reason in text


def test_what_a_rewrite_cannot_do_is_refused_with_its_node(tmp_path):
    path = tmp_path / "model.onnx"
    past = floats(2, B, N, 3, H)
    for op, inputs, attributes, reason in [
        ("Attention", [X, W3, B3, None, past], {"num_heads": N}, "a cache of keys and values"),
        ("Attention", [X, W3, B3], {}, "'num_heads' is 0"),
        ("GroupQueryAttention", [Q4, K2, V2, floats(B, 2, 3, G), floats(B, 2, 3, G), *FULL[2:]], GQA | {"causal": 0},
         "a cache without a causal mask"),
        ("GroupQueryAttention", [Q4, K2, V2, floats(B, 2, 3, G), None, *FULL[2:]], GQA, "input 4 is missing"),
        ("Inverse", [floats(2, 3)], {}, "matrices of 2 x 3; they must be square"),
        ("CDist", [floats(3, 4), floats(5, 4)], {"metric": "cosine"}, "metric 'cosine' is not known"),
        ("FusedGemm", [floats(3, 4), floats(4, 5)], {"activation": "Mystery"}, "activation 'Mystery' is not known"),
        ("MatMulNBits", [floats(3, 32), ints(9, 4, 2, 8, dtype=np.uint8), floats(8)], {"K": 32, "N": 4, "block_size": 16},
         "weights are no constants"),
        ("MatMulNBits", [floats(3, 32)], {"K": 1 << 60, "N": 4, "block_size": 16}, "K 1152921504606846976"),
    ]:  # fmt: skip
        caches = {"Attention": (4,), "GroupQueryAttention": (3, 4)}.get(op, ())  # as inputs of the model they are left out
        save_node(path, op, MS, inputs, [i for i in caches if i < len(inputs) and inputs[i] is not None], ["y"], attributes)
        text = tool.run("check", path, status=1)
        assert f"node 'node' ({MS}.{op})" in text and reason in text, text
    save_node(path, "Inverse", MS, [floats(2, 0, 0)], (0,), ["y"], {})  # sizes of 0 are known of constants alone
    assert "matrices of 0 x 0; they must be square, and of 1 to 256 rows" in tool.run("check", path, status=1)


MALFORMED = {
    "nothing": ([], {}),
    "scalar": ([np.float32(1)] * 3, {"num_heads": 2, "kv_num_heads": 1}),
    "vectors": ([floats(4)] * 9, {"num_heads": 1 << 40, "kv_num_heads": -1}),
    "integers": ([ints(4, 2, 3)] * 6, {"num_heads": 1, "kv_num_heads": 1, "axis": -(1 << 60)}),
    "odd": ([floats(2, 0, 3)] * 6, {"num_heads": 2, "kv_num_heads": 2, "do_rotary": 1, "N": -1, "activation_params": [1.0]}),
    "absent": ([floats(2, 3, 4), None, floats(4), None, floats(4)], {"num_heads": 2, "transA": 1, "bits": 3}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_nodes_that_do_not_fit_are_refused(what, tmp_path):
    path, (inputs, attributes) = tmp_path / "model.onnx", MALFORMED[what]
    for op in sorted({case[0] for case in CASES.values()} | {"MatMulNBits", "GatherBlockQuantized", "NhwcConv", "BiasSplitGelu", "BiasAdd"}):
        save_node(path, op, MS, inputs, (), ["y"], attributes)
        process = tool.start("check", path)
        output = "".join(process.communicate(timeout=tool.PATIENCE))
        assert process.returncode in (0, 1) and output.strip(), f"{op}: {process.returncode}"


def transformer(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                         intermediate_size=64, max_position_embeddings=16, attn_implementation="eager")  # fmt: skip
        return transformers.BertModel(config, add_pooling_layer=False).eval()
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16, use_cache=False, bos_token_id=0,
                                     eos_token_id=0, attn_implementation="eager")  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


class FirstOutput(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]


def optimized(path, level, target):
    """What ONNX Runtime makes of a model offline; returns the operators of other domains."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return {(node.domain, node.op_type) for node in onnx.load(target).graph.node if node.domain not in ("", "ai.onnx")}


def loss_and_gradients(path, batch, folder):
    """Elements of gradients in order of size: an optimizer renames weights, transposes them and joins them."""
    assert "in the way" not in tool.run("check", path, "--loss", "mse(y, target)").lower()
    tool.run("grad", path, "--inputs", batch, "-o", folder / "g.npz", "--loss", "mse(y, target)", "--dtype", "float64", "--mode", "frozen")
    found = tool.load(folder / "g.npz")
    return found.pop("loss"), np.sort(np.concatenate([np.abs(g).ravel() for g in found.values()]))


def expect_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_what_onnx_runtime_optimized_has_the_gradients_of_the_model(kind, tmp_path):
    from onnxruntime.transformers import optimizer

    path, fused, extended = (tmp_path / f"{name}.onnx" for name in ("model", "fused", "extended"))
    model = transformer(kind)
    for parameter in model.parameters():  # exporters merge equal weights
        parameter.data += 0.05 * torch.randn_like(parameter)
    ids = torch.from_numpy(ints(50, 2, 8))
    torch.onnx.export(FirstOutput(model), (ids, torch.ones_like(ids)), path, dynamo=False, opset_version=17,
                      input_names=["input_ids", "attention_mask"], output_names=["y"],
                      dynamic_axes={"input_ids": {0: "batch"}, "attention_mask": {0: "batch"}, "y": {0: "batch"}})  # fmt: skip
    made = optimizer.optimize_model(str(path), model_type=kind, num_heads=4, hidden_size=32, opt_level=0)
    made.save_model_to_file(str(fused))
    by_fusion = {node.op_type for node in made.model.graph.node if node.domain == MS}
    by_level = optimized(path, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, extended)
    assert "SkipLayerNormalization" in by_fusion and (MS, "FusedMatMul") in by_level
    width = 32 if kind == "bert" else 50
    batch = tool.save(tmp_path / "batch.npz", {"input_ids": ids.numpy(), "attention_mask": np.int64([[1] * 8, [1] * 5 + [0] * 3]),
                                               "target": RNG.normal(size=(2, 8, width))})  # fmt: skip
    expected = loss_and_gradients(path, batch, tmp_path)
    for other in (fused, extended):
        expect_same(loss_and_gradients(other, batch, tmp_path), expected)


def test_a_convolutional_network_of_the_level_extended_trains_and_of_all_is_refused(tmp_path):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.LeakyReLU(0.1),
                                  torch.nn.Flatten(), torch.nn.Linear(256, 5), torch.nn.Tanh())  # fmt: skip
    path = tmp_path / "model.onnx"
    torch.onnx.export(network, torch.zeros(2, 3, 8, 8), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"])
    levels = onnxruntime.GraphOptimizationLevel
    assert (MS, "FusedConv") in optimized(path, levels.ORT_ENABLE_EXTENDED, tmp_path / "extended.onnx")
    batch = tool.save(tmp_path / "batch.npz", {"x": floats(2, 3, 8, 8), "target": floats(2, 5)})
    expect_same(loss_and_gradients(tmp_path / "extended.onnx", batch, tmp_path), loss_and_gradients(path, batch, tmp_path))
    if any(domain == "com.microsoft.nchwc" for domain, _ in optimized(path, levels.ORT_ENABLE_ALL, tmp_path / "all.onnx")):
        assert "laid this model out for one processor" in tool.run("check", tmp_path / "all.onnx", status=1)
