"""A Qwen2.5 of 0.5, 1.5 or 3 billion weights, drawn at random, as ONNX Runtime GenAI's builder writes the trained ones.

    python bench/qwen/shape.py qwen.onnx --shape 0.5b
    python bench/qwen/shape.py qwen4.onnx --shape 1.5b --type int4
    python bench/qwen/shape.py small.onnx --shape 0.5b --layers 2 --vocabulary 1000

Weights have the names of transformers and are external data beside the model: 2.0, 6.2 and 12.3 GB in float32, half of that in
bfloat16. With int4 products are MatMulNBits of blocks of 32 and the embedding is float16. Beside the model goes an .npz, 8
texts of random tokens with the next one at each place as label.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"
BLOCK = 32  # weights with one scale


@dataclass
class Shape:
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int = 151936
    context: int = 32768


# As their configurations say; all three have one matrix for the embedding and the head.
SHAPES = {
    "0.5b": Shape(24, 896, 4864, 14, 2),
    "1.5b": Shape(28, 1536, 8960, 12, 2),
    "3b": Shape(36, 2048, 11008, 16, 2),
}


class Data:
    """The file of weights, written as they are drawn: none of them stays in memory."""

    def __init__(self, path, seed=0):
        self.path, self.file, self.random = path, open(path, "wb"), np.random.default_rng(seed)

    def tensor(self, name, kind, dims, pieces):
        tensor = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
        start = self.file.tell()
        for piece in pieces:
            piece.tofile(self.file)
        for key, value in ("location", self.path.name), ("offset", start), ("length", self.file.tell() - start):
            tensor.external_data.add(key=key, value=str(value))
        self.file.write(bytes(-self.file.tell() % 4096))
        return tensor

    def normal(self, rows, columns, std=0.02):
        """Blocks of rows of float32, about 64 MB each."""
        step = max(1, (1 << 24) // columns)
        for row in range(0, rows, step):
            yield self.random.standard_normal((min(step, rows - row), columns), np.float32) * np.float32(std)

    def bytes(self, count):
        for start in range(0, count, 1 << 26):
            yield self.random.integers(0, 256, min(1 << 26, count - start), np.uint8)


def as_bfloat16(piece):
    return (piece.view(np.uint32) >> 16).astype(np.uint16)


class Decoder:
    def __init__(self, shape, kind, data):
        self.shape, self.kind, self.data = shape, kind, data
        self.nodes, self.weights = [], []
        self.float = TensorProto.BFLOAT16 if kind == "bf16" else TensorProto.FLOAT

    def op(self, name, kind, *inputs, outputs=1, domain="", **attributes):
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, domain=domain, **attributes))
        return name if outputs == 1 else names

    def constant(self, name, value, kind):
        self.weights.append(helper.make_tensor(name, kind, np.shape(value), np.asarray(value).ravel()))
        return name

    def matrix(self, name, rows, columns):
        pieces = self.data.normal(rows, columns)
        if self.kind == "bf16":
            self.weights.append(self.data.tensor(name, TensorProto.BFLOAT16, [rows, columns], map(as_bfloat16, pieces)))
        else:
            self.weights.append(self.data.tensor(name, TensorProto.FLOAT, [rows, columns], pieces))
        return name

    def product(self, name, x, inputs, outputs, bias=False):
        if self.kind == "int4":
            blocks = inputs // BLOCK
            self.weights += [
                self.data.tensor(f"{name}.weight_q4", TensorProto.UINT8, [outputs, blocks, BLOCK // 2],
                                 self.data.bytes(outputs * inputs // 2)),
                self.data.tensor(f"{name}.weight_scale", TensorProto.FLOAT, [outputs, blocks],
                                 [np.full(outputs * blocks, 0.02 / 4, np.float32)]),
            ]  # fmt: skip
            y = self.op(f"{name}/product", "MatMulNBits", x, f"{name}.weight_q4", f"{name}.weight_scale", domain=MICROSOFT,
                        K=inputs, N=outputs, bits=4, block_size=BLOCK)  # fmt: skip
        else:
            y = self.op(f"{name}/product", "MatMul", x, self.matrix(f"{name}.weight", inputs, outputs))
        return self.op(f"{name}/sum", "Add", y, self.constant(f"{name}.bias", np.zeros(outputs), self.float)) if bias else y

    def norm(self, name, x):
        scale = self.constant(f"{name}.weight", np.ones(self.shape.width), self.float)
        return self.op(name, "SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-6, stash_type=1)

    def layer(self, i, x):
        s, name = self.shape, f"model.layers.{i}"
        size = s.width // s.heads
        h = self.norm(f"{name}.input_layernorm", x)
        q, k, v = (self.product(f"{name}.self_attn.{part}_proj", h, s.width, heads * size, bias=True)
                   for part, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)))  # fmt: skip
        past, present = ([f"{when}.{i}.{part}" for part in ("key", "value")] for when in ("past_key_values", "present"))
        self.nodes.append(helper.make_node(
            "GroupQueryAttention", [q, k, v, *past, "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"],
            [f"{name}.attention", *present], name=f"{name}.attention", domain=MICROSOFT, num_heads=s.heads,
            kv_num_heads=s.kv_heads, do_rotary=1, rotary_interleaved=0, scale=size**-0.5))  # fmt: skip
        attended = self.product(f"{name}.self_attn.o_proj", f"{name}.attention", s.width, s.width)
        x = self.op(f"{name}.residual1", "Add", x, attended)
        h = self.norm(f"{name}.post_attention_layernorm", x)
        gate = self.product(f"{name}.mlp.gate_proj", h, s.width, s.inner)
        silu = self.op(f"{name}.mlp.silu", "Mul", gate, self.op(f"{name}.mlp.sigmoid", "Sigmoid", gate))
        gated = self.op(f"{name}.mlp.gated", "Mul", silu, self.product(f"{name}.mlp.up_proj", h, s.width, s.inner))
        return self.op(f"{name}.residual2", "Add", x, self.product(f"{name}.mlp.down_proj", gated, s.inner, s.width))

    def embedding(self):
        s, name = self.shape, "model.embed_tokens.weight"
        if self.kind != "int4":
            return self.op("embedded", "Gather", self.matrix(name, s.vocabulary, s.width), "input_ids")
        halves = (piece.astype(np.float16) for piece in self.data.normal(s.vocabulary, s.width))
        self.weights.append(self.data.tensor(name, TensorProto.FLOAT16, [s.vocabulary, s.width], halves))
        return self.op("embedded", "Cast", self.op("embedded/half", "Gather", name, "input_ids"), to=TensorProto.FLOAT)

    def lengths(self):
        """seqlens_k and total_sequence_length of the mask."""
        ints = lambda name, value: self.constant(name, value, TensorProto.INT64)
        count = self.op("mask/count", "ReduceSum", "attention_mask", ints("one_axis", [1]), keepdims=0)
        last = self.op("mask/last", "Sub", count, ints("one", [1]))
        self.op("seqlens_k", "Cast", last, to=TensorProto.INT32)
        total = self.op("mask/total", "Gather", self.op("mask/shape", "Shape", "attention_mask"), ints("second", 1))
        self.op("total_sequence_length", "Cast", total, to=TensorProto.INT32)

    def model(self):
        s = self.shape
        size = s.width // s.heads
        angles = np.outer(np.arange(s.context), 1e6 ** -(np.arange(0, size, 2) / size)).astype(np.float32)
        for name, function in ("cos_cache", np.cos), ("sin_cache", np.sin):
            table = function(angles)
            table = as_bfloat16(table) if self.kind == "bf16" else table
            self.weights.append(self.data.tensor(name, self.float, angles.shape, [table]))
        self.lengths()
        x = self.embedding()
        for i in range(s.layers):
            x = self.layer(i, x)
        x = self.norm("model.norm", x)
        if self.kind == "int4":
            self.op("logits", "Identity", self.product("lm_head", x, s.width, s.vocabulary))
        else:
            self.op("logits", "MatMul", x, self.op("lm_head/transposed", "Transpose", "model.embed_tokens.weight", perm=[1, 0]))
        value = helper.make_tensor_value_info
        inputs = [value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
                  value("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])]  # fmt: skip
        outputs = [value("logits", self.float, ["batch_size", "sequence_length", s.vocabulary])]
        for values, when, length in (inputs, "past_key_values", "past_sequence_length"), (outputs, "present", "total_sequence_length"):
            values += [value(f"{when}.{i}.{part}", self.float, ["batch_size", s.kv_heads, length, size])
                       for i in range(s.layers) for part in ("key", "value")]  # fmt: skip
        graph = helper.make_graph(self.nodes, "qwen2", inputs, outputs, self.weights)
        self.data.file.close()
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--type", choices=["float32", "bf16", "int4"], default="float32")
    parser.add_argument("--block-size", type=int, default=512, help="tokens of a text [512]")
    for name in Shape.__dataclass_fields__:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="[of the shape]")
    a = parser.parse_args()
    shape = Shape(**{name: getattr(a, name) or size for name, size in vars(SHAPES[a.shape]).items()})
    data = Data(a.model.with_name(a.model.name + ".data"))
    model = Decoder(shape, a.type, data).model()
    onnx.save(model, a.model)
    text = np.random.default_rng(0).integers(0, shape.vocabulary, (8, a.block_size + 1))
    mask = np.ones((8, a.block_size), np.int64)
    np.savez(a.model.with_suffix(".npz"), input_ids=text[:, :-1], attention_mask=mask, labels=text[:, 1:])
    stored = data.path.stat().st_size
    print(f"{a.model}: {len(model.graph.node)} nodes, {stored / 1e9:.2f} GB of weights in {data.path.name}")


if __name__ == "__main__":
    main()
