"""Blocks that compute (random_blocks.py says what blocks are): element by element, along axes, products."""

import math

import numpy as np
from random_graph import Rejected

# operator -> points at which the slope jumps
UNARY = {"Relu": [0], "Sigmoid": [], "Tanh": [], "Neg": [], "Abs": [0], "Exp": [], "Sqrt": [], "Log": [], "Erf": [],
         "Softplus": [], "Softsign": [0], "Gelu": [], "HardSwish": [-3, 3], "HardSigmoid": [-2.5, 2.5], "Elu": [0],
         "Selu": [0], "Celu": [0], "LeakyRelu": [0], "ThresholdedRelu": [1], "Mish": [], "Sin": [], "Cos": [],
         "Reciprocal": [], "Identity": [], "Sign": [0], "Floor": []}  # fmt: skip
REDUCTIONS = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2", "ReduceL1",
              "ReduceLogSumExp", "ReduceProd"]  # fmt: skip


def axis_of(g, shape):
    return g.rng.randrange(-len(shape), len(shape))


def some_axes(g, rank, least=1):
    axes = g.rng.sample(range(rank), g.rng.randint(least, rank))
    return [a - rank if g.rng.random() < 0.5 else a for a in axes]


def broadcastable(g, shape):
    """A shape that broadcasts to `shape`."""
    kept = [n if g.rng.random() < 0.6 else 1 for n in shape]
    return kept[g.rng.randrange(len(kept) + 1) :] if g.rng.random() < 0.5 else kept


# ---- element by element


def unary(g):
    op = g.rng.choice(list(UNARY))
    x = g.pick()
    attributes = {}
    if op in ("Elu", "LeakyRelu", "Celu") and g.rng.random() < 0.5:
        attributes["alpha"] = g.rng.choice([0.1, 0.5, 1.5])
    if op == "Gelu":
        attributes["approximate"] = g.rng.choice(["none", "tanh"])
    if op in ("Log", "Sqrt", "Reciprocal") and not np.all(g.values[x] > 0.05):
        x = g.op("Add", g.op("Mul", x, x), g.constant(0.5, np.float32))
    return g.op(op, x, kinks=UNARY[op], **attributes)


def operand(g, shape):
    """Something that broadcasts to `shape`: a value, a weight, a constant."""
    kind = g.rng.randrange(4)
    if kind == 0:
        return g.pick(where=lambda s: s == shape)
    if kind == 1:
        return g.pick(where=lambda s: len(s) <= len(shape) and
                      all(a in (1, b) for a, b in zip(s[::-1], shape[::-1])))  # fmt: skip
    if kind == 2:
        return g.weight(*broadcastable(g, shape), scale=1.0)
    return g.constant(g.rng.choice([0.5, 2.0, -1.0, 1.0, 0.0]), np.float32)


def binary(g):
    op = g.rng.choice(["Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "Sum", "Mean", "PRelu"])
    x = g.pick()
    y = operand(g, g.shape(x))
    if op in ("Max", "Min") and np.any(np.abs(g.values[x] - g.values[y]) < 1e-4):
        raise Rejected("near a tie")
    if op == "Div" and np.any(np.abs(g.values[y]) < 0.1):
        y = g.op("Add", g.op("Abs", y, kinks=[0]), g.constant(0.5, np.float32))
    if op == "PRelu":
        return g.op(op, x, g.weight(*broadcastable(g, g.shape(x))), kinks=[0])
    if op in ("Sum", "Mean"):
        return g.op(op, x, y, *([x] if g.rng.random() < 0.5 else []))
    return g.op(op, *((y, x) if g.rng.random() < 0.5 else (x, y)))


def power(g):
    return g.op("Pow", g.pick(), g.constant(g.rng.choice([2.0, 3.0, 1.0]), np.float32))


def clip(g):
    low, high = g.rng.choice([(-1.0, 1.0), (0.0, 6.0), (-0.5, 100.0)])
    return g.op("Clip", g.pick(), g.constant(low, np.float32), g.constant(high, np.float32), kinks=[low, high])


def where(g):
    x = g.pick()
    y = operand(g, g.shape(x))
    z = operand(g, g.shape(x))
    if np.any(np.abs(g.values[x] - g.values[z]) < 1e-4):
        raise Rejected("near a tie")
    condition = g.op(g.rng.choice(["Greater", "Less", "GreaterOrEqual", "LessOrEqual"]), x, z)
    if g.rng.random() < 0.3:
        condition = g.op("Not", condition)
    return g.op("Where", condition, *((x, y) if g.rng.random() < 0.5 else (y, x)))


def cast(g):
    """To another type and back."""
    double = g.op("Cast", g.pick(), to=11)
    if g.rng.random() < 0.5:
        double = g.op("Tanh", double)
    return g.op("Cast", double, to=1)


def dropout(g):
    return g.op("Dropout", g.pick(), g.constant(g.rng.choice([0.0, 0.1, 0.5]), np.float32))


# ---- along axes


def reduction(g):
    op = g.rng.choice(REDUCTIONS)
    x = g.pick()
    rank = len(g.shape(x))
    if rank == 0:
        raise Rejected("a scalar")
    if op == "ReduceL1":
        g.op("Abs", x, kinks=[0])
    return g.op(op, x, g.constant(some_axes(g, rank)), keepdims=g.rng.randrange(2))


def softmax(g):
    x = g.pick(2, 3, 4)
    return g.op(g.rng.choice(["Softmax", "Softmax", "LogSoftmax"]), x, axis=axis_of(g, g.shape(x)))


def cumulative(g):
    x = g.pick(1, 2, 3, 4)
    return g.op("CumSum", x, g.constant(axis_of(g, g.shape(x))), exclusive=g.rng.randrange(2), reverse=g.rng.randrange(2))


def layer_normalization(g):
    x = g.pick(2, 3, 4, where=lambda s: s[-1] > 2)
    axis = g.rng.choice([-1, -1, 1])
    shape = g.shape(x)[axis:]
    if g.rng.random() < 0.7:
        bias = [g.weight(*shape)] if g.rng.random() < 0.7 else []
        return g.op("LayerNormalization", x, g.weight(*shape, scale=1.0), *bias, axis=axis, epsilon=1e-3)
    mean = g.op("ReduceMean", x, g.constant([-1]))
    centered = g.op("Sub", x, mean)
    variance = g.op("ReduceMean", g.op("Mul", centered, centered), g.constant([-1]))
    deviation = g.op("Sqrt", g.op("Add", variance, g.constant(1e-3, np.float32)))
    return g.op("Mul", g.op("Div", centered, deviation), g.weight(g.shape(x)[-1], scale=1.0))


def image_normalization(g):
    x = g.pick(3, 4, where=lambda s: math.prod(s[2:]) > 3)
    channels = g.shape(x)[1]
    scale, bias = g.weight(channels, scale=1.0), g.weight(channels)
    if g.rng.random() < 0.5:
        return g.op("InstanceNormalization", x, scale, bias, epsilon=1e-3)
    groups = g.rng.choice([n for n in (1, 2, 3, 4, 5, 8) if channels % n == 0])
    return g.op("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=1e-3)


def statistics(g, channels):
    """Frozen statistics, trained affine parameters."""
    rng = np.random.default_rng(g.rng.randrange(2**32))
    return (g.weight(channels, scale=1.0), g.weight(channels),
            g.constant(rng.standard_normal(channels), np.float32),
            g.constant(rng.uniform(0.5, 2, channels), np.float32))  # fmt: skip


def batch_normalization(g):
    x = g.pick(2, 3, 4, where=lambda s: s[0] * math.prod(s[2:]) > 3)
    y = g.op("BatchNormalization", x, *statistics(g, g.shape(x)[1]), epsilon=1e-2)
    if g.rng.random() < 0.4:
        y = g.op("Add", *g.rng.sample([y, x], 2))
    return g.op("Relu", y, kinks=[0]) if g.rng.random() < 0.6 else y


# ---- products


def linear(g):
    x = g.pick(2, 3, 4)
    y = g.op("MatMul", x, g.weight(g.shape(x)[-1], g.size()))
    return g.op("Add", y, g.weight(g.shape(y)[-1])) if g.rng.random() < 0.5 else y


def tied_linear(g):
    """Reads a weight of another layer transposed."""
    x = g.pick(2, 3)
    tied = [n for n, v in g.weights.items() if n.startswith("w") and v.ndim == 2 and v.shape[1] == g.shape(x)[-1]]
    if not tied:
        raise Rejected("no such weight")
    return g.op("MatMul", x, g.op("Transpose", g.rng.choice(tied), perm=[1, 0]))


def gemm(g):
    x = g.pick(2)
    flip, flip_weight = g.rng.random() < 0.2, g.rng.random() < 0.5
    inner, outer, n = g.shape(x)[0 if flip else 1], g.shape(x)[1 if flip else 0], g.size()
    w = g.weight(*((n, inner) if flip_weight else (inner, n)))
    bias = [g.weight(*broadcastable(g, (outer, n)))] if g.rng.random() < 0.7 else []
    if inner == 0 and bias:
        raise Rejected("ONNX Runtime forgets beta")
    return g.op("Gemm", x, w, *bias, transA=int(flip), transB=int(flip_weight), alpha=g.rng.choice([1.0, 0.5]),
                beta=g.rng.choice([1.0, 2.0]))  # fmt: skip


def product_of_values(g):
    """x y^T, where both come from the network; at times from the same value."""
    x = g.pick(2, 3, 4)
    shape = g.shape(x)
    y = g.pick(len(shape), where=lambda s: s[:-2] == shape[:-2] and s[-1] == shape[-1])
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    scaled = g.op("Mul", x, g.constant(1 / math.sqrt(shape[-1]), np.float32))
    return g.op("MatMul", scaled, g.op("Transpose", y, perm=perm))


def einsum(g):
    x = g.pick(3)
    b, s, f = g.shape(x)
    equation, shape = g.rng.choice([("bsf,fo->bso", (f, g.size())), ("bsf,bsf->bs", None), ("bsf,sf->bf", (s, f)),
                                    ("bsf,bsg->bfg", None), ("bsf,of->bos", (g.size(), f))])  # fmt: skip
    return g.op("Einsum", x, g.weight(*shape) if shape else x, equation=equation)


def attention(g):
    x = g.pick(3, where=lambda s: s[1] > 1)
    b, s, f = g.shape(x)
    heads = g.rng.choice([h for h in (1, 2, 3, 4) if f % h == 0])
    split = g.constant([0, s, heads, f // heads])

    def head(perm):
        y = g.op("MatMul", x, g.weight(f, f))
        return g.op("Transpose", g.op("Reshape", y, split), perm=perm)

    q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    scores = g.op("Mul", g.op("MatMul", q, k), g.constant(math.sqrt(heads / f), np.float32))
    if g.rng.random() < 0.5:
        scores = g.op("Add", scores, g.constant(np.triu(np.full((s, s), -1e4), 1), np.float32))
    y = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.constant([0, s, f]))
    return g.op("Add", y, x) if g.rng.random() < 0.5 else y
