"""A GPT of any shape without its weights: a model of 7 billion takes no more than its graph on the disk.

    python bench/gpt_shape.py gpt7b.onnx --layers 32 --width 4096 --heads 32 --vocabulary 50368 --context 2048

The weights are holes in a sparse file, which read as zeros: `onnx-train scale --compute` plans a step and reads none of them.
Beside the model goes an .npz, 16 texts of random tokens with the next one at each place as label.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper


class Graph:
    def __init__(self, data):
        self.nodes, self.weights, self.data, self.bytes = [], [], data, 0

    def weight(self, name, *shape):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        size = 4 * int(np.prod(shape))
        for key, value in ("location", self.data), ("offset", self.bytes), ("length", size):
            tensor.external_data.add(key=key, value=str(value))
        self.bytes += -(-size // 4096) * 4096
        self.weights.append(tensor)
        return name

    def constant(self, name, value, dtype=np.int64):
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, name, kind, *inputs, outputs=1, **attributes):
        names = [name] if outputs == 1 else [f"{name}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return name if outputs == 1 else names

    def linear(self, name, x, inputs, outputs):
        return self.op(f"{name}/add", "Add", self.op(name, "MatMul", x, self.weight(f"{name}.weight", inputs, outputs)),
                       self.weight(f"{name}.bias", outputs))  # fmt: skip

    def norm(self, name, x, width):
        return self.op(name, "LayerNormalization", x, self.weight(f"{name}.weight", width), self.weight(f"{name}.bias", width))


def block(g, name, x, width, heads):
    shape = g.constant(f"{name}/heads", [0, 0, heads, width // heads])
    qkv = g.op(f"{name}.split", "Split", g.linear(f"{name}.qkv", g.norm(f"{name}.norm1", x, width), width, 3 * width),
               outputs=3, axis=2, num_outputs=3)  # fmt: skip
    q, k, v = (g.op(f"{name}.{part}", "Transpose", g.op(f"{name}.{part}/heads", "Reshape", of, shape), perm=perm)
               for part, of, perm in zip("qkv", qkv, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])))  # fmt: skip
    scores = g.op(f"{name}.scaled", "Mul", g.op(f"{name}.scores", "MatMul", q, k), "scale")
    weights = g.op(f"{name}.softmax", "Softmax", g.op(f"{name}.masked", "Add", scores, "mask"), axis=-1)
    merged = g.op(f"{name}.merged", "Transpose", g.op(f"{name}.attention", "MatMul", weights, v), perm=[0, 2, 1, 3])
    attended = g.op(f"{name}.flat", "Reshape", merged, g.constant(f"{name}/width", [0, 0, width]))
    x = g.op(f"{name}.residual1", "Add", x, g.linear(f"{name}.project", attended, width, width))
    up = g.op(f"{name}.gelu", "Gelu", g.linear(f"{name}.up", g.norm(f"{name}.norm2", x, width), width, 4 * width))
    return g.op(f"{name}.residual2", "Add", x, g.linear(f"{name}.down", up, 4 * width, width))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name, default in ("layers", 12), ("width", 768), ("heads", 12), ("vocabulary", 50304), ("context", 1024):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    g = Graph(a.model.with_suffix(".weights").name)
    g.constant("scale", (a.width / a.heads) ** -0.5, np.float32)
    g.constant("mask", np.triu(np.full((a.context, a.context), -np.inf), 1), np.float32)
    x = g.op("embedded", "Add", g.op("token", "Gather", g.weight("token.weight", a.vocabulary, a.width), "tokens"),
             g.weight("position.weight", a.context, a.width))  # fmt: skip
    for i in range(a.layers):
        x = block(g, f"blocks.{i}", x, a.width, a.heads)
    g.op("logits", "MatMul", g.norm("norm", x, a.width), g.op("head", "Transpose", "token.weight", perm=[1, 0]))  # tied
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", a.context])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", a.context, a.vocabulary])
    graph = helper.make_graph(g.nodes, "gpt", [tokens], [logits], g.weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), a.model)
    with open(a.model.with_suffix(".weights"), "wb") as file:
        file.truncate(g.bytes)
    text = np.random.default_rng(0).integers(0, a.vocabulary, (16, a.context + 1))
    np.savez(a.model.with_suffix(".npz"), tokens=text[:, :-1], labels=text[:, 1:])
    print(f"{a.model}: {sum(int(np.prod(w.dims)) for w in g.weights if w.external_data) / 1e6:.0f} million weights")


if __name__ == "__main__":
    main()
