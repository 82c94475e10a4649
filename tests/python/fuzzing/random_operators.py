"""More of what a random model is made of (random_blocks.py says what blocks are): the operators that few networks have,
with attributes from their legal ranges, and control flow whose bodies read weights from inside and outside.
"""

import math

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from random_arithmetic import axis_of, some_axes
from random_graph import Rejected

# operator -> the range that its input is brought into
INSIDE = {"Acos": (-0.9, 0.9), "Asin": (-0.9, 0.9), "Atanh": (-0.9, 0.9), "Acosh": (1.1, 3), "Asinh": (-3, 3), "Atan": (-3, 3),
          "Cosh": (-2, 2), "Sinh": (-2, 2), "Tan": (-1, 1), "Round": (-3, 3), "Ceil": (-3, 3)}  # fmt: skip


def squashed(g, x, low, high):
    """x between low and high."""
    half, middle = (high - low) / 2, (high + low) / 2
    y = g.op("Mul", g.op("Tanh", x), g.constant(half, np.float32))
    return g.op("Add", y, g.constant(middle, np.float32))


def function(g):
    op = g.rng.choice(list(INSIDE))
    return g.op(op, squashed(g, g.pick(), *INSIDE[op]))


def remainder(g):
    x = g.pick()
    low, high = np.array(g.values[x]) % 1.5, 1.5
    if np.any(low < 1e-3) or np.any(high - low < 1e-3):
        raise Rejected("near a jump")
    return g.op("Mod", x, g.constant(1.5, np.float32), fmod=1)


def shrink(g):
    return g.op("Shrink", g.pick(), kinks=[-0.5, 0.5], lambd=0.5, bias=g.rng.choice([0.0, 0.5]))


def several(g):
    """Min, Max, Sum, Mean of three."""
    x = g.pick()
    others = [v for v in g.live if g.shape(v) == g.shape(x) and v != x][-2:]
    parts = [x, *others]
    op = g.rng.choice(["Min", "Max", "Sum", "Mean"])
    for a in parts:
        for b in parts:
            if op in ("Min", "Max") and a != b and np.any(np.abs(g.values[a] - g.values[b]) < 1e-4):
                raise Rejected("near a tie")
    return g.op(op, *parts)


def logarithms_of_sums(g):
    x = g.pick(1, 2, 3, 4)
    positive = g.op("Exp", squashed(g, x, -1, 1))
    return g.op("ReduceLogSum", positive, g.constant(some_axes(g, len(g.shape(x)))), keepdims=g.rng.randrange(2))


def normalization(g):
    op = g.rng.choice(["LpNormalization", "MeanVarianceNormalization", "LRN", "Hardmax"])
    if op == "LpNormalization":
        x = g.pick(2, 3, 4)
        away = g.op("Add", g.op("Abs", x, kinks=[0]), g.constant(0.1, np.float32))
        return g.op(op, away, axis=axis_of(g, g.shape(x)), p=g.rng.choice([1, 2]))
    if op == "MeanVarianceNormalization":
        x = g.pick(3, 4, where=lambda s: s[0] * math.prod(s[2:]) > 3)
        axes = [0, *range(2, len(g.shape(x)))]
        if np.any(np.std(g.values[x], axis=tuple(axes)) < 0.1):
            raise Rejected("nearly constant")
        return g.op(op, x, axes=axes)
    if op == "LRN":
        return g.op(op, g.pick(3, 4), size=g.rng.choice([1, 3, 5]), alpha=g.rng.choice([0.1, 1.0]), bias=2.0)
    x = g.pick(2, 3)
    return g.op("Mul", x, g.op("Hardmax", x, axis=axis_of(g, g.shape(x))))


# ---- moves


def resize(g):
    x = g.pick(4, 3)
    spatial = len(g.shape(x)) - 2
    mode = g.rng.choice(["nearest", "linear", "cubic"] if spatial == 2 else ["nearest", "linear"])
    transformation = g.rng.choice(["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": g.rng.choice([-0.5, -0.75]), "exclude_outside": g.rng.randrange(2)}
    if mode == "nearest":
        attributes["nearest_mode"] = g.rng.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    sizes = [max(1, round(n * g.rng.choice([0.5, 1.5, 2, 3]))) for n in g.shape(x)[2:]]
    if transformation == "align_corners" and 1 in sizes:
        raise Rejected("ONNX Runtime divides by zero")
    if mode == "cubic" and transformation == "pytorch_half_pixel" and 1 in sizes:
        raise Rejected("ONNX Runtime differs from the formula at size one")
    if mode != "nearest" and g.rng.random() < 0.2 and transformation != "align_corners":
        if transformation == "pytorch_half_pixel" and 1 in sizes:
            raise Rejected("ONNX Runtime differs from the formula at size one")
        attributes["antialias"] = 1
    return g.op("Resize", x, "", "", g.constant([*g.shape(x)[:2], *sizes]), **attributes)


def largest(g):
    x = g.pick(1, 2, 3)
    axis = axis_of(g, g.shape(x))
    n = g.shape(x)[axis]
    ordered = np.sort(g.values[x], axis=axis)
    if n > 1 and np.any(np.diff(ordered, axis=axis) < 1e-4):
        raise Rejected("near a tie")
    values, _ = g.op("TopK", x, g.constant([g.rng.randint(1, n)]), outputs=2, axis=axis, largest=g.rng.randrange(2))
    return values


def gather_elements(g):
    x = g.pick(1, 2, 3)
    shape, axis = g.shape(x), axis_of(g, g.shape(x))
    n = shape[axis]
    rows = [k if i == axis % len(shape) else n_i for i, n_i in enumerate(shape) for k in [g.size()]]
    indices = np.random.default_rng(g.rng.randrange(2**32)).integers(-n, n, rows)
    return g.op("GatherElements", x, g.constant(indices), axis=axis)


def gather_nd(g):
    x = g.pick(2, 3)
    shape = g.shape(x)
    depth = g.rng.randint(1, len(shape))
    draw = np.random.default_rng(g.rng.randrange(2**32))
    indices = np.stack([draw.integers(0, n, g.size()) for n in shape[:depth]], -1)
    return g.op("GatherND", x, g.constant(indices))


def scatter(g):
    x = g.pick(1, 2, 3)
    shape = g.shape(x)
    draw = np.random.default_rng(g.rng.randrange(2**32))
    reduction = g.rng.choice(["none", "add", "mul"])
    if g.rng.random() < 0.5:
        axis = axis_of(g, shape)
        n = shape[axis]
        k = g.rng.randint(1, n)
        order = np.argsort(draw.random(shape), axis=axis)
        indices = np.take(order, range(k), axis=axis)
        updates = g.weight(*indices.shape, scale=1.0)
        return g.op("ScatterElements", x, g.constant(indices), updates, axis=axis, reduction=reduction)
    rows = g.rng.sample(range(shape[0]), g.rng.randint(1, shape[0]))
    updates = g.weight(len(rows), *shape[1:], scale=1.0)
    return g.op("ScatterND", x, g.constant([[row] for row in rows]), updates, reduction=reduction)


def reverse_sequence(g):
    x = g.pick(3, where=lambda s: s[0] > 0 and s[1] > 0)
    batch, steps = g.shape(x)[:2]
    lengths = [g.rng.randint(1, steps) for _ in range(batch)]
    return g.op("ReverseSequence", x, g.constant(lengths), batch_axis=0, time_axis=1)


def center(g):
    x = g.pick(3, 4)
    axes = list(range(1, len(g.shape(x))))
    sizes = [max(1, g.shape(x)[a] + g.rng.choice([-2, -1, 0, 1, 2])) for a in axes]
    return g.op("CenterCropPad", x, g.constant(sizes), axes=axes)


def columns(g):
    """Col2Im of columns that a reshape makes."""
    x = g.pick(3, where=lambda s: s[1] % 4 == 0 and s[2] >= 4)
    batch, channels, places = g.shape(x)
    height = g.rng.choice([h for h in range(1, places + 1) if places % h == 0])
    image = g.constant([height + 1, places // height + 1])
    return g.op("Col2Im", x, image, g.constant([2, 2]))


def sampled(g):
    """GridSample at points that the network computes."""
    x = g.pick(4, where=lambda s: min(s) > 0)
    batch, channels, height, width = g.shape(x)
    rows, cols = g.rng.choice([1, 2, 3]), g.rng.choice([1, 2, 4])
    flat = g.op("Reshape", x, g.constant([batch, channels * height * width]))
    points = g.op("MatMul", flat, g.weight(channels * height * width, rows * cols * 2))
    grid = g.op("Reshape", squashed(g, points, -1.2, 1.2), g.constant([batch, rows, cols, 2]))
    mode = g.rng.choice(["linear", "cubic"])
    padding = g.rng.choice(["zeros", "border", "reflection"])
    if mode == "cubic" and padding == "border":
        raise Rejected("ONNX's reference and ONNX Runtime differ beyond the border")
    return g.op("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=g.rng.randrange(2))


def determinant(g):
    x = g.pick(3, where=lambda s: s[1] > 2 and s[2] > 2)
    n = min(g.shape(x)[1:])
    n = min(n, 4)
    square = g.op("Slice", x, g.constant([0, 0]), g.constant([n, n]), g.constant([1, 2]))
    return g.op("Tanh", g.op("Det", square))


# ---- control flow

FLOAT = TensorProto.FLOAT


def value(name):
    return helper.make_tensor_value_info(name, FLOAT, None)


def body(name, nodes, inputs, outputs, initializers=()):
    return helper.make_graph(nodes, name, inputs, outputs, initializers)


def unique(g, *names):
    return [f"{name}_{len(g.values)}" for name in names]


def branches(g):
    """An If on the data: two functions of a value from outside, one with a weight of its own."""
    x = g.pick(2, 3)
    total = g.op("ReduceMean", x, g.constant(list(range(len(g.shape(x))))), keepdims=0)
    if abs(float(g.values[total])) < 1e-3:
        raise Rejected("near a decision")
    condition = g.op("Greater", total, g.constant(0.0, np.float32))
    a, b, w, h = unique(g, "then", "else", "own", "inner")
    own = numpy_helper.from_array(g.random(g.shape(x)[-1]), w)
    outer = [x]
    then = [helper.make_node("Mul", [x, w], [h]), helper.make_node("Tanh", [h], [a])]
    otherwise = [helper.make_node(g.rng.choice(["Sigmoid", "Sin", "Neg"]), [x], [b])]
    return g.op("If", condition, outer=outer, then_branch=body("then", then, [], [value(a)], [own]),
                else_branch=body("else", otherwise, [], [value(b)]))  # fmt: skip


def loop(g):
    """h = tanh(h w + x) for a fixed number of steps, and each h."""
    x = g.pick(2)
    features = g.shape(x)[1]
    w = g.weight(features, features)
    i, c, h, c2, p, s, n, y = unique(g, "i", "c", "h", "c2", "p", "s", "n", "y")
    nodes = [helper.make_node("Identity", [c], [c2]), helper.make_node("MatMul", [h, w], [p]),
             helper.make_node("Add", [p, x], [s]), helper.make_node("Tanh", [s], [n]),
             helper.make_node("Identity", [n], [y])]  # fmt: skip
    of_steps = g.rng.random() < 0.5
    outputs = [helper.make_tensor_value_info(c2, TensorProto.BOOL, []), value(n), *([value(y)] if of_steps else [])]
    inputs = [helper.make_tensor_value_info(i, TensorProto.INT64, []), helper.make_tensor_value_info(c, TensorProto.BOOL, []),
              value(h)]  # fmt: skip
    made = g.op("Loop", g.constant(g.rng.choice([1, 2, 3, 7])), g.constant(True, bool), x, outputs=1 + of_steps, outer=[w, x],
                body=body("steps", nodes, inputs, outputs))  # fmt: skip
    if not of_steps:
        return made
    last, steps = made
    return [last, g.op("Transpose", steps, perm=[1, 0, 2])]


def scan(g):
    """A recurrence over the first axis after the batch's."""
    x = g.pick(3, where=lambda s: 0 < s[1] <= 9 and s[2] > 0)
    batch, steps, features = g.shape(x)
    w = g.weight(features, features)
    state = g.op("ReduceMean", x, g.constant([1]), keepdims=0)
    moved = g.op("Transpose", x, perm=[1, 0, 2])
    h, e, p, s, n, y = unique(g, "h", "e", "p", "s", "n", "y")
    nodes = [helper.make_node("MatMul", [h, w], [p]), helper.make_node("Add", [p, e], [s]),
             helper.make_node("Tanh", [s], [n]), helper.make_node("Mul", [n, e], [y])]  # fmt: skip
    inputs = [value(h), value(e)]
    last, stacked = g.op("Scan", state, moved, outputs=2, outer=[w], num_scan_inputs=1,
                         scan_input_directions=[g.rng.randrange(2)], scan_output_directions=[g.rng.randrange(2)],
                         body=body("recurrence", nodes, inputs, [value(n), value(y)]))  # fmt: skip
    return [last, g.op("Transpose", stacked, perm=[1, 0, 2])]


OPERATORS = [function, function, function, remainder, shrink, several, logarithms_of_sums, normalization, normalization,
             resize, resize, largest, gather_elements, gather_nd, scatter, scatter, reverse_sequence, center, columns, sampled,
             determinant, branches, loop, scan]  # fmt: skip
