"""What a random model is made of: each block adds one or a few nodes to a RandomGraph, and returns what they make.

Single operators with attributes from their legal ranges, and the groups that the lowering looks for, with something
unusual in each: sizes of one, shared weights, one value read twice.
"""

import math

import numpy as np
from onnx import helper
from random_arithmetic import (
    UNARY,
    attention,
    axis_of,
    batch_normalization,
    binary,
    cast,
    clip,
    cumulative,
    dropout,
    einsum,
    gemm,
    image_normalization,
    layer_normalization,
    linear,
    power,
    product_of_values,
    reduction,
    softmax,
    statistics,
    tied_linear,
    unary,
    where,
)
from random_graph import Rejected

# ---- windows


def windows(g, sizes, dilated=True):
    """kernel_shape, strides, pads, dilations that fit images of `sizes`."""
    kernel = [g.rng.randint(1, min(n, 4)) for n in sizes]
    pads = [g.rng.randrange(k) if g.rng.random() < 0.5 else k // 2 for k in kernel + kernel]
    attributes = {"kernel_shape": kernel, "strides": [g.rng.choice([1, 1, 2, 3]) for _ in sizes], "pads": pads}
    if dilated and g.rng.random() < 0.3:
        attributes["dilations"] = [g.rng.choice([1, 2]) for _ in sizes]
    return attributes


def convolution(g):
    x = g.pick(3, 4, 5)
    _, channels, *sizes = g.shape(x)
    attributes = windows(g, sizes)
    groups = g.rng.choice([n for n in (1, 1, 1, 2, 3, channels) if channels % n == 0])
    outputs = groups * g.rng.choice([1, 1, 2, 3, 4, 8, 16])
    w = g.weight(outputs, channels // groups, *attributes["kernel_shape"])
    bias = [g.weight(outputs)] if g.rng.random() < 0.5 else []
    y = g.op("Conv", x, w, *bias, group=groups, **attributes)
    if g.rng.random() < 0.5:
        y = g.op("BatchNormalization", y, *statistics(g, outputs), epsilon=1e-2)
        if g.rng.random() < 0.4:
            y = g.op("Add", y, g.pick(where=lambda s: s == g.shape(y)))
    return g.op("Relu", y, kinks=[0]) if g.rng.random() < 0.5 else y


def transposed_convolution(g):
    x = g.pick(3, 4)
    _, channels, *sizes = g.shape(x)
    attributes = windows(g, sizes)
    w = g.weight(channels, g.rng.choice([1, 2, 4]), *attributes["kernel_shape"])
    return g.op("ConvTranspose", x, w, **attributes)


def pool(g):
    x = g.pick(3, 4, 5)
    op = g.rng.choice(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"])
    if op.startswith("Global"):
        return g.op(op, x)
    attributes = windows(g, g.shape(x)[2:], dilated=False)
    if op == "AveragePool":
        attributes["count_include_pad"] = g.rng.randrange(2)
    if op != "LpPool" and g.rng.random() < 0.3:
        attributes["ceil_mode"] = 1
    return g.op(op, x, **attributes)


# ---- moves


def transpose(g):
    x = g.pick(2, 3, 4, 5)
    return g.op("Transpose", x, perm=g.rng.sample(range(len(g.shape(x))), len(g.shape(x))))


def reshape(g):
    x = g.pick(2, 3, 4, 5)
    first, *rest = g.shape(x)
    count = math.prod(rest)
    divisors = [d for d in range(1, count + 1) if count % d == 0] or [1]
    a = g.rng.choice(divisors)
    kind = g.rng.randrange(5)
    if kind == 0:
        return g.op("Flatten", x, axis=g.rng.choice([1, -1, len(rest)]))
    if kind == 1:
        return g.op("Unsqueeze", x, g.constant([g.rng.randrange(len(rest) + 2)]))
    if kind == 2:
        ones = [i for i, n in enumerate(g.shape(x)) if n == 1 and i > 0]
        if not ones:
            raise Rejected("no dimension of one")
        return g.op("Squeeze", x, g.constant(g.rng.sample(ones, g.rng.randint(1, len(ones)))))
    return g.op("Reshape", x, g.constant([0, a, -1] if kind == 3 else [-1, a]))


def take_slice(g):
    x = g.pick(1, 2, 3, 4)
    axis = axis_of(g, g.shape(x))
    n = g.shape(x)[axis]
    start, step = g.rng.randrange(n) if n else 0, g.rng.choice([1, 1, 2, -1])
    end = g.rng.choice([2**31, n, n - 1]) if step > 0 else -(2**31)
    return g.op("Slice", x, *(g.constant([value]) for value in (start, end, axis, step)))


def split(g):
    x = g.pick(2, 3, 4, where=lambda s: max(s[1:]) > 1)
    shape = g.shape(x)
    axis = g.rng.choice([i for i, n in enumerate(shape) if n > 1 and i > 0])
    n = shape[axis]
    first = g.rng.choice([n // 2, 1, n - 1, 0])
    return g.op("Split", x, g.constant([first, n - first]), outputs=2, axis=axis)


def gate(g):
    """Half of the channels gates the other."""
    x = g.pick(2, 3, 4, where=lambda s: s[-1] % 2 == 0 and s[-1] > 0)
    a, b = g.op("Split", x, outputs=2, axis=-1, num_outputs=2)
    return g.op("Mul", a, g.op("Sigmoid", b))


def concat(g):
    x = g.pick(1, 2, 3, 4)
    axis = axis_of(g, g.shape(x))
    others = [v for v in g.live if len(g.shape(v)) == len(g.shape(x)) and
              all(a == b for i, (a, b) in enumerate(zip(g.shape(v), g.shape(x))) if i != axis % len(g.shape(x)))]  # fmt: skip
    parts = [x, *(g.rng.choice(others) for _ in range(g.rng.randint(0, 2)))]
    g.rng.shuffle(parts)
    return g.op("Concat", *parts, axis=axis)


def expand(g):
    x = g.pick(1, 2, 3)
    if g.rng.random() < 0.5:
        return g.op("Tile", x, g.constant([1, *(g.rng.choice([1, 2, 3]) for _ in g.shape(x)[1:])]))
    kept = [n if n != 1 or i == 0 else g.rng.choice([1, 2, 5]) for i, n in enumerate(g.shape(x))]
    return g.op("Expand", x, g.constant([*([2] if g.rng.random() < 0.3 else []), *kept]))


def pad(g):
    x = g.pick(2, 3, 4)
    mode = g.rng.choice(["constant", "reflect", "edge"])
    low = -1 if mode == "constant" else 0
    pads = [0 if i % len(g.shape(x)) == 0 else g.rng.choice([0, 0, 1, 2, low]) for i in range(2 * len(g.shape(x)))]
    return g.op("Pad", x, g.constant(pads), mode=mode)


def gather(g):
    x = g.pick(2, 3, 4)
    axis = g.rng.randrange(1, len(g.shape(x)))
    n = g.shape(x)[axis]
    if n == 0:
        raise Rejected("empty")
    indices = [g.rng.randrange(-n, n) for _ in range(g.size())]
    return g.op("Gather", x, g.constant(g.rng.choice([indices, indices[0], [indices]])), axis=axis)


def triangle(g):
    return g.op("Trilu", g.pick(2, 3, 4), upper=g.rng.randrange(2))


def blocks_of_space(g):
    x = g.pick(4)
    if g.rng.random() < 0.5:
        return g.op("SpaceToDepth", x, blocksize=2)
    return g.op("DepthToSpace", x, blocksize=2, mode=g.rng.choice(["DCR", "CRD"]))


def duplicate(g):
    """A node that is there, again; its inputs swapped where their shapes agree."""
    node = g.rng.choice([n for n in g.nodes[-6:] if n.op_type not in ("Constant", "Dropout")] or [None])
    if node is None:
        raise Rejected("nothing to repeat")
    inputs = list(node.input)
    floats = [i for i, name in enumerate(inputs) if name and g.values[name].dtype == np.float32]
    for i in floats:
        for j in floats:
            if g.shape(inputs[i]) == g.shape(inputs[j]) and g.rng.random() < 0.3:
                inputs[i], inputs[j] = inputs[j], inputs[i]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return g.op(node.op_type, *inputs, outputs=len(node.output), kinks=UNARY.get(node.op_type, ()), **attributes)


# ---- recurrent networks and tables


def recurrent(g):
    op, gates = g.rng.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    x = g.pick(3, where=lambda s: 0 < s[1] <= 17 and s[2] > 0)
    batch, steps, features = g.shape(x)
    by_batch = g.rng.random() < 0.8
    if by_batch:
        x, (steps, batch) = g.op("Transpose", x, perm=[1, 0, 2]), (steps, batch)
    else:
        steps, batch = batch, steps
    direction = g.rng.choice(["forward", "forward", "reverse", "bidirectional"])
    directions, hidden = 2 if direction == "bidirectional" else 1, g.rng.choice([1, 2, 5, 8, 16])
    inputs = [x, g.weight(directions, gates * hidden, features), g.weight(directions, gates * hidden, hidden)]
    inputs.append(g.weight(directions, 2 * gates * hidden) if g.rng.random() < 0.7 else "")
    lengths = [g.rng.randint(1, steps) for _ in range(batch)]
    inputs.append(g.constant(lengths, np.int32) if g.rng.random() < 0.2 and by_batch else "")
    attributes = {"linear_before_reset": g.rng.randrange(2)} if op == "GRU" else {}
    outputs = 3 if op == "LSTM" else 2
    y, last, *_ = g.op(op, *inputs, outputs=outputs, hidden_size=hidden, direction=direction, **attributes)
    y = g.op("Transpose", y, perm=[2, 0, 1, 3] if g.rng.random() < 0.5 else [2, 0, 3, 1])
    return [y, g.op("Transpose", last, perm=[1, 0, 2])] if g.rng.random() < 0.3 else y


def embedding(g):
    ids = [n for n in g.data if n.startswith("ids")]
    if not ids:
        raise Rejected("no indices")
    table = g.weight(16, g.rng.choice([4, 8, 16]), scale=0.5)
    return g.op("Gather", table, g.rng.choice(ids), axis=0)


BLOCKS = [unary, unary, unary, binary, binary, binary, binary, power, clip, where, cast, dropout, reduction, reduction,
          softmax, cumulative, layer_normalization, layer_normalization, image_normalization, batch_normalization, linear,
          linear, tied_linear, gemm, product_of_values, einsum, attention, convolution, convolution, convolution,
          transposed_convolution, pool, pool, transpose, transpose, reshape, reshape, take_slice, split, gate, concat,
          concat, expand, pad, gather, triangle, blocks_of_space, duplicate, recurrent, embedding]  # fmt: skip
