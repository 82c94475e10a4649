"""Hostile shapes for every operator: ONNX's own node tests, each a model of one node, with ranks, sizes, attributes,
element types and contents changed to what no exporter writes."""

import random
import warnings

import numpy as np
import onnx
from mutations import HUGE
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

TYPES = {"float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}
MOST_ELEMENTS = 4096  # of a seed's input: what is changed then is still small

# What ONNX has no node test for, or none of the kind that a plan takes.
MORE = {
    "Conv": [([1, 4, 5, 5], [6, 2, 3, 3], [6]), {"group": 2, "pads": [1, 1, 1, 1], "dilations": [2, 1]}],
    "ConvTranspose": [([1, 4, 3, 3], [4, 3, 2, 2], [6]), {"group": 2, "strides": [2, 2], "output_padding": [1, 0]}],
    "LSTM": [([3, 2, 4], [2, 12, 4], [2, 12, 3], [2, 24]), {"hidden_size": 3, "direction": "bidirectional"}],
    "GRU": [([3, 2, 4], [2, 9, 4], [2, 9, 3], [2, 18]), {"hidden_size": 3, "direction": "bidirectional"}],
    "RNN": [([3, 2, 4], [2, 3, 4], [2, 3, 3], [2, 6]), {"hidden_size": 3, "direction": "bidirectional"}],
    "Gemm": [([3, 4], [5, 4], [5]), {"transB": 1, "alpha": 0.5}],
    "BatchNormalization": [([2, 3, 4], [3], [3], [3], [3]), {"epsilon": 0.1}],
    "GroupNormalization": [([2, 4, 3, 3], [4], [4]), {"num_groups": 2}],
    "LayerNormalization": [([2, 3, 4], [4], [4]), {"axis": -1}],
    "Einsum": [([2, 3, 4], [4, 3]), {"equation": "bij,ji->bi"}],
    "DepthToSpace": [([1, 8, 2, 3],), {"blocksize": 2}],
}  # fmt: skip


def seeds():
    """Lists of (model of one node, input arrays) by operator."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests divide by zero
        cases = collect_testcases(None)
    for case in cases:
        model = case.model
        if case.kind != "node" or model is None or len(model.graph.node) != 1 or model.functions or not case.data_sets:
            continue
        given = case.data_sets[0][0]
        arrays = [np.asarray(a) for a in given if isinstance(a, (np.ndarray, np.generic))]
        fits = all(a.dtype.name in TYPES and a.size <= MOST_ELEMENTS for a in arrays)
        if fits and len(arrays) == len(given) == len(model.graph.input):
            found.setdefault(model.graph.node[0].op_type, []).append((model, arrays))
    rng = np.random.default_rng(0)
    for op, (shapes, attributes) in MORE.items():
        arrays = [rng.uniform(0.1, 1, shape).astype("f4") for shape in shapes]
        names = [f"x{i}" for i in range(len(arrays))]
        node = helper.make_node(op, names, ["y"], **attributes)
        graph = helper.make_graph([node], "g", [info(n, a, a.shape) for n, a in zip(names, arrays)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        found.setdefault(op, []).append((model, arrays))
    return dict(sorted(found.items()))


def info(name, array, shape):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def resized(array, shape):
    """As many elements of the array, one after the other and again, as the shape has."""
    count = int(np.prod(shape, dtype=object))
    return np.resize(array, count).reshape(shape).astype(array.dtype) if array.size else np.zeros(shape, array.dtype)


# ---- Changes: of a node and its input arrays; they return sizes that are declared and that no array has, by input


def rank(node, arrays, rng):
    i = rng.randrange(len(arrays))
    shape = list(arrays[i].shape)
    kind = rng.randrange(4)
    if kind == 0:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice([1, 1, 2]))
    elif kind == 1 and shape:
        shape.pop(rng.randrange(len(shape)))
    elif kind == 2:
        shape = []
    else:
        shape = [1] * rng.choice([1, 6, 9]) + shape[:1]
    arrays[i] = resized(arrays[i], shape)


def size(node, arrays, rng):
    i = rng.randrange(len(arrays))
    shape = list(arrays[i].shape)
    if shape:
        shape[rng.randrange(len(shape))] = rng.choice([0, 0, 1, 2, 3, 7, 33])
        arrays[i] = resized(arrays[i], shape)


def sizes_swapped(node, arrays, rng):
    i = rng.randrange(len(arrays))
    shape = list(arrays[i].shape)
    rng.shuffle(shape)
    arrays[i] = resized(arrays[i], shape)


def declared(node, arrays, rng):
    i = rng.randrange(len(arrays))
    shape = list(arrays[i].shape)
    if shape:
        shape[rng.randrange(len(shape))] = rng.choice([2**31, 2**40, 2**62, 2**63 - 1, -1, 0])
        return {i: shape}


def contents(node, arrays, rng):
    """Axes, starts, sizes, indices."""
    whole = [i for i, a in enumerate(arrays) if a.dtype.kind in "iu" and a.size]
    if whole:
        array = arrays[rng.choice(whole)]
        limits = np.iinfo(array.dtype)
        values = [v for v in [*HUGE, 1, 2, -2, -7, limits.min, limits.max] if limits.min <= v <= limits.max]
        for _ in range(rng.choice([1, 1, array.size])):
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(values)


def element_type(node, arrays, rng):
    i = rng.randrange(len(arrays))
    arrays[i] = np.nan_to_num(arrays[i].astype("f8"), posinf=1, neginf=-1).clip(0, 100).astype(rng.choice(sorted(TYPES)))


def left_out(node, arrays, rng):
    if rng.random() < 0.5:
        node.input[rng.randrange(len(node.input))] = ""
    else:
        del node.input[rng.randrange(len(node.input)) :]


def doubled(node, arrays, rng):
    """An input more, or another one's in its place."""
    if rng.random() < 0.5:
        node.input.append(rng.choice(node.input))
    else:
        node.input[rng.randrange(len(node.input))] = rng.choice(node.input)


def output_more(node, arrays, rng):
    node.output.append("more") if rng.random() < 0.7 else node.output.extend(["", "other", "and_more"])


def attribute(node, arrays, rng):
    known = onnx.defs.get_schema(node.op_type).attributes if onnx.defs.has(node.op_type) else {}
    if node.attribute and rng.random() < 0.8:
        a = rng.choice(node.attribute)
        kind = onnx.AttributeProto
        if a.type == kind.INT:
            a.i = rng.choice([*HUGE, 1, 2, -2, 3])
        elif a.type == kind.INTS:
            change = rng.randrange(3)
            if change == 0 and a.ints:
                a.ints[rng.randrange(len(a.ints))] = rng.choice([*HUGE, 1, 2, 3, -2])
            elif change == 1:
                del a.ints[rng.randrange(len(a.ints) + 1) :]
            else:
                a.ints.extend([1] * rng.choice([1, 2, 9]))
        elif a.type == kind.FLOAT:
            a.f = rng.choice([float("nan"), float("inf"), -1e38, 0, -1])
        elif a.type == kind.STRING:
            a.s = rng.choice([b"", b"x", b"SAME_LOWER", b"wrap", b"ij,jk->ik", b"i...->...", b"->", b"\xff", b"," * 50])
        elif a.type == kind.TENSOR:
            a.t.dims[:] = rng.choice([[], [0], [2], [-1], [2**40]])
        else:
            node.attribute.remove(a)
    elif known:
        name = rng.choice(sorted(known))
        if any(a.name == name for a in node.attribute):
            return
        kind = known[name].type
        value = {"INT": rng.choice([*HUGE, 1, 2]), "INTS": [rng.choice([*HUGE, 1, 2]) for _ in range(rng.randrange(5))],
                 "FLOAT": rng.choice([float("nan"), -1.0, 0.5]), "STRING": rng.choice(["", "x", "VALID", "reflect"])}  # fmt: skip
        if kind.name in value:
            a = node.attribute.add(name=name, type=kind.value)
            if kind.name == "INTS":
                a.ints.extend(value["INTS"])
            elif kind.name == "INT":
                a.i = value["INT"]
            elif kind.name == "FLOAT":
                a.f = value["FLOAT"]
            else:
                a.s = value["STRING"].encode()


CHANGES = [rank, rank, size, size, size, sizes_swapped, declared, contents, contents, contents, element_type, left_out,
           doubled, output_more, attribute, attribute, attribute]  # fmt: skip


def hostile(seed, rng):
    """A model of the seed's node, changed; its input arrays by name; and what was changed."""
    model = onnx.ModelProto()
    model.CopyFrom(seed[0])
    node, graph = model.graph.node[0], model.graph
    names = [value.name for value in graph.input]
    arrays = [np.array(a) for a in seed[1]]
    changes = rng.sample(CHANGES, rng.choice([1, 1, 2, 3]))
    sizes = {}
    for change in changes:
        if not names and change not in (attribute, output_more):
            continue
        if len(node.input) == 0 and change in (left_out, doubled):
            continue
        sizes |= change(node, arrays, rng) or {}
    del graph.input[:], graph.initializer[:], graph.value_info[:]
    given = {}
    for i, (name, array) in enumerate(zip(names, arrays)):
        if i not in sizes and rng.random() < (0.9 if array.dtype.kind in "iu" and array.ndim < 2 else 0.2):
            graph.initializer.append(numpy_helper.from_array(array, name))
            continue
        shape = sizes.get(i, [f"n{i}_{k}" if rng.random() < 0.3 else d for k, d in enumerate(array.shape)])
        graph.input.append(info(name, array, shape))
        given[name] = array
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    known = {value.name for value in graph.output}
    for name in node.output:
        if name and name not in known and rng.random() < 0.5:
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return model, given, f"{node.op_type}: {', '.join(change.__name__ for change in changes)}"


def write(number, operators, folder):
    """Writes hostile model `number` and its inputs; returns the paths of both, and what was done."""
    rng = random.Random(number)
    names = list(operators)
    operator = names[number % len(names)]
    model, given, kind = hostile(rng.choice(operators[operator]), rng)
    path = folder / "node.onnx"
    path.write_bytes(model.SerializeToString())
    data = folder / "inputs.npz"
    np.savez(data, **(given or {"none": np.zeros(1)}))
    return path, data, kind
