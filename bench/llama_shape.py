"""A Llama of any shape without its weights: the graph of a model of 70 billion takes a few megabytes.

    python bench/llama_shape.py llama2-7b.onnx --shape llama2-7b
    python bench/llama_shape.py mine.onnx --layers 48 --width 6144 --inner 16384 --heads 48 --kv-heads 8 --vocabulary 128256

The weights are external data in a file that does not exist: `onnx-train scale --tflops` plans a step and reads none of them. Beside
the model goes an .npz, 2 texts of random tokens with the next one at each place as label.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from gpt_shape import Graph
from onnx import helper

# Layers, width, inner width, heads, heads of keys and values, vocabulary, tokens of a text: as their papers say.
SHAPES = {
    "llama2-7b": (32, 4096, 11008, 32, 32, 32000, 4096),
    "llama2-70b": (80, 8192, 28672, 64, 8, 32000, 4096),
    "llama3-8b": (32, 4096, 14336, 32, 8, 128256, 8192),
    "llama3-70b": (80, 8192, 28672, 64, 8, 128256, 8192),
}
OPTIONS = "layers", "width", "inner", "heads", "kv-heads", "vocabulary", "context"


def product(g, name, x, inputs, outputs):
    return g.op(name, "MatMul", x, g.weight(f"{name}.weight", inputs, outputs))


def norm(g, name, x, width):
    return g.op(name, "RMSNormalization", x, g.weight(f"{name}.weight", width), epsilon=1e-5)


def heads_of(g, name, x, heads, size):
    split = g.op(f"{name}/split", "Reshape", x, g.constant(f"{name}/shape", [0, 0, heads, size]))
    return g.op(f"{name}/heads", "Transpose", split, perm=[0, 2, 1, 3])


def rotated(g, name, x):
    """x·cos + [-x2, x1]·sin, where x = [x1, x2]."""
    low, high = g.op(f"{name}/half", "Split", x, outputs=2, axis=3, num_outputs=2)
    turned = g.op(f"{name}/turned", "Concat", g.op(f"{name}/negative", "Neg", high), low, axis=3)
    return g.op(name, "Add", g.op(f"{name}/straight", "Mul", x, "cos"), g.op(f"{name}/crossed", "Mul", turned, "sin"))


def repeated(g, name, x, heads, kv_heads, size):
    """Each head of keys or values for all heads of queries that share it."""
    if heads == kv_heads:
        return x
    apart = g.op(f"{name}/apart", "Reshape", x, g.constant(f"{name}/split", [0, kv_heads, 1, -1, size]))
    many = g.op(f"{name}/many", "Expand", apart, g.constant(f"{name}/times", [1, 1, heads // kv_heads, 1, 1]))
    return g.op(name, "Reshape", many, g.constant(f"{name}/merged", [0, heads, -1, size]))


def layer(g, name, x, width, inner, heads, kv_heads):
    size = width // heads
    h = norm(g, f"{name}.input_norm", x, width)
    q, k, v = (heads_of(g, f"{name}.{part}", product(g, f"{name}.{part}_proj", h, width, n * size), n, size)
               for part, n in (("q", heads), ("k", kv_heads), ("v", kv_heads)))  # fmt: skip
    q, k = rotated(g, f"{name}.q_rotated", q), rotated(g, f"{name}.k_rotated", k)
    k, v = (repeated(g, f"{name}.{part}_repeated", of, heads, kv_heads, size) for part, of in (("k", k), ("v", v)))
    scores = g.op(f"{name}.scores", "MatMul", q, g.op(f"{name}.k_transposed", "Transpose", k, perm=[0, 1, 3, 2]))
    masked = g.op(f"{name}.masked", "Where", "seen", g.op(f"{name}.scaled", "Mul", scores, "scale"), "hidden")
    attended = g.op(f"{name}.attention", "MatMul", g.op(f"{name}.softmax", "Softmax", masked, axis=-1), v)
    merged = g.op(f"{name}.merged", "Transpose", attended, perm=[0, 2, 1, 3])
    flat = g.op(f"{name}.flat", "Reshape", merged, g.constant(f"{name}/width", [0, 0, width]))
    x = g.op(f"{name}.residual1", "Add", x, product(g, f"{name}.o_proj", flat, width, width))
    h = norm(g, f"{name}.post_norm", x, width)
    gate = product(g, f"{name}.gate_proj", h, width, inner)
    gated = g.op(f"{name}.gated", "Mul", g.op(f"{name}.silu", "Mul", gate, g.op(f"{name}.sigmoid", "Sigmoid", gate)),
                 product(g, f"{name}.up_proj", h, width, inner))  # fmt: skip
    return g.op(f"{name}.residual2", "Add", x, product(g, f"{name}.down_proj", gated, inner, width))


def llama(layers, width, inner, heads, kv_heads, vocabulary, context, data):
    g = Graph(data)
    angles = np.outer(np.arange(context), 1 / 10000 ** (np.arange(0, width // heads, 2) / (width // heads)))
    for name, function in ("cos", np.cos), ("sin", np.sin):
        g.constant(name, function(np.concatenate([angles, angles], axis=1)), np.float32)
    g.constant("scale", (width / heads) ** -0.5, np.float32)
    g.constant("hidden", -np.inf, np.float32)
    g.op("seen", "LessOrEqual", g.constant("columns", np.arange(context)[None]), g.constant("rows", np.arange(context)[:, None]))
    x = g.op("embedded", "Gather", g.weight("embed_tokens.weight", vocabulary, width), "tokens")
    for i in range(layers):
        x = layer(g, f"layers.{i}", x, width, inner, heads, kv_heads)
    product(g, "logits", norm(g, "norm", x, width), width, vocabulary)
    tokens = helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, ["batch", context])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", context, vocabulary])
    graph = helper.make_graph(g.nodes, "llama", [tokens], [logits], g.weights)
    count = sum(int(np.prod(w.dims)) for w in g.weights if w.external_data)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama2-7b")
    for name in OPTIONS:
        parser.add_argument(f"--{name}", type=int, help="[of the shape]")
    a = parser.parse_args()
    sizes = [getattr(a, name.replace("-", "_")) or size for name, size in zip(OPTIONS, SHAPES[a.shape])]
    model, count = llama(*sizes, a.model.with_suffix(".weights").name)
    onnx.save(model, a.model)
    vocabulary, context = sizes[-2:]
    text = np.random.default_rng(0).integers(0, vocabulary, (2, context + 1))
    np.savez(a.model.with_suffix(".npz"), tokens=text[:, :-1], labels=text[:, 1:])
    print(f"{a.model}: {count / 1e6:.0f} million weights")


if __name__ == "__main__":
    main()
