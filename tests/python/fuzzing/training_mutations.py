"""Broken training models and checkpoints: what mutations.py does to any model, and what only these have: state, update
bindings, entry points, function bodies, the position in the data."""

import json
import random

import numpy as np
import onnx
from mutations import BYTES, HUGE, MESSAGES
from onnx import TensorProto, helper, numpy_helper

POSITION, CHECKSUM = "onnx_train.checkpoint", "onnx_train.checksum"


def some_info(model, rng):
    return rng.choice(model.training_info)


def some_node(model, rng):
    nodes = some_info(model, rng).algorithm.node
    return rng.choice(nodes or model.graph.node)


def states(model):
    names = {binding.key for info in model.training_info for binding in info.update_binding}
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    return [tensor for graph in graphs for tensor in graph.initializer if tensor.name in names]


def constants(model):
    return [t for info in model.training_info for t in info.algorithm.initializer] + list(model.graph.initializer)


# ---- state


def state_shape(model, rng):
    """Another shape; the contents go with it as a rule."""
    tensor = rng.choice(states(model))
    dims = list(tensor.dims)
    kind = rng.randrange(4)
    if kind == 0:
        dims.append(rng.choice([1, 2, 0]))
    elif kind == 1 and dims:
        dims[rng.randrange(len(dims))] = rng.choice([1, 0, 7, *HUGE])
    elif kind == 2:
        dims.reverse()
    else:
        dims = dims[1:]
    count = 1
    for size in dims:
        count *= max(size, 0)
    if count < 1 << 16 and rng.random() < 0.7:
        zeros = onnx.TensorProto()
        zeros.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, [max(d, 0) for d in dims], [0] * count))
        tensor.CopyFrom(zeros)
    tensor.dims[:] = dims


def state_type(model, rng):
    tensor = rng.choice(states(model))
    array = numpy_helper.to_array(tensor).astype(rng.choice(["float64", "int64", "float16", "bool", "int32"]))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def state_values(model, rng):
    """What a diverged training leaves: legal, and to be run."""
    for tensor in rng.sample(states(model), min(3, len(states(model)))):
        array = numpy_helper.to_array(tensor).copy()
        if array.dtype.kind == "f":
            array[...] = rng.choice([float("nan"), float("inf"), -1.0, 1e38, -0.0])
        elif array.dtype.kind in "iu":
            array[...] = rng.choice([0, 2**62, 2**63 - 1] + ([-1, -(2**63)] if array.dtype.kind == "i" else []))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def initializer_removed(model, rng):
    graph = rng.choice([model.graph, some_info(model, rng).algorithm])
    if graph.initializer:
        del graph.initializer[rng.randrange(len(graph.initializer))]


def initializer_doubled(model, rng):
    tensor = rng.choice(constants(model))
    rng.choice([model.graph, some_info(model, rng).algorithm]).initializer.add().CopyFrom(tensor)


def integers(model, rng):
    """Axes, shapes, indices of the algorithm."""
    chosen = [t for t in constants(model) if t.data_type in (TensorProto.INT64, TensorProto.INT32)]
    if chosen:
        tensor = rng.choice(chosen)
        values = [rng.choice([1, 8, 2**31 - 1, -1, 0] + (HUGE if tensor.data_type == TensorProto.INT64 else []))
                  for _ in range(numpy_helper.to_array(tensor).size)]  # fmt: skip
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, list(tensor.dims), values))


# ---- entry points


def bindings(model, rng):
    bound = some_info(model, rng).update_binding
    if not bound:
        return
    one, other = rng.choice(bound), rng.choice(bound)
    kind = rng.randrange(7)
    if kind == 0:
        bound.remove(one)
    elif kind == 1:
        bound.add().CopyFrom(one)
    elif kind == 2:
        one.value, other.value = other.value, one.value
    elif kind == 3:
        one.key = rng.choice(["", "nobody", one.value, other.key])
    elif kind == 4:
        one.value = rng.choice(["", "nobody", one.key, other.value, "loss", "grad_norm"])
    elif kind == 5:
        del bound[:]
    else:
        one.key, one.value = "x" * 70000, "a\nb"


def entry_points(model, rng):
    info = some_info(model, rng)
    kind = rng.randrange(5)
    if kind == 0:
        info.algorithm.name = rng.choice(["", "predict", "step", "evaluate", "initialize", "x"])
    elif kind == 1:
        model.training_info.add().CopyFrom(info)
    elif kind == 2:
        model.training_info.remove(info)
    elif kind == 3:
        info.ClearField("algorithm")
    else:
        info.initialization.CopyFrom(info.algorithm)


def algorithm_node(model, rng):
    node = some_node(model, rng)
    kind = rng.randrange(6)
    if kind == 0:
        del node.input[rng.randrange(len(node.input) + 1) :]
    elif kind == 1:
        node.input.append(some_node(model, rng).output[0])
    elif kind == 2 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(["", "nobody", some_node(model, rng).output[0]])
    elif kind == 3:
        node.op_type = some_node(model, rng).op_type
    elif kind == 4:
        node.output.extend(["more", "and_more"])
    elif node.attribute:
        a = rng.choice(node.attribute)
        a.i, a.type = rng.choice(HUGE), onnx.AttributeProto.INT
        del a.ints[:]


def algorithm_order(model, rng):
    algorithm = some_info(model, rng).algorithm
    nodes = list(algorithm.node)
    if not nodes:
        return
    if rng.random() < 0.5:
        nodes.pop(rng.randrange(len(nodes)))
    else:
        rng.shuffle(nodes)
    del algorithm.node[:]
    algorithm.node.extend(nodes)


def algorithm_ends(model, rng):
    """Inputs and outputs: types, names, one more, one less."""
    algorithm = some_info(model, rng).algorithm
    values = rng.choice([algorithm.input, algorithm.output, model.graph.input])
    if not values:
        return
    value = rng.choice(values)
    kind = rng.randrange(4)
    if kind == 0:
        value.type.tensor_type.elem_type = rng.choice([0, 6, 7, 9, 11, 99])
    elif kind == 1:
        value.name = rng.choice(["", "nobody", some_node(model, rng).output[0]])
    elif kind == 2:
        values.remove(value)
    else:
        value.type.tensor_type.shape.dim.add().dim_value = rng.choice([*HUGE, 3])


def function_body(model, rng):
    if not model.functions:
        return
    function = rng.choice(model.functions)
    node = rng.choice(function.node)
    kind = rng.randrange(5)
    if kind == 0:
        function.node.remove(node)
    elif kind == 1:
        node.op_type, node.domain = function.name, function.domain
    elif kind == 2:
        function.input.append("more")
    elif kind == 3:
        del function.output[:1]
    elif node.input:
        node.input[0] = "nobody"


# ---- calls of our functions, whose kernels read what the call says


def some_call(model, rng):
    calls = [n for info in model.training_info for n in info.algorithm.node if n.domain == "onnx_train" and n.input]
    return rng.choice(calls) if calls else some_node(model, rng)


def call_input(model, rng):
    """A tensor of another shape, another type, or another one of the model's."""
    call = some_call(model, rng)
    if not call.input:
        return
    i = rng.randrange(len(call.input))
    kind = rng.randrange(4)
    if kind == 0:
        call.input[i] = rng.choice(call.input)
    elif kind == 1:
        call.input[i] = some_node(model, rng).output[0]
    elif kind == 2:
        call.input[i] = ""
    else:
        shape = rng.choice([[], [0], [1], [2], [3], [2, 3], [4, 4], [1, 1, 1, 1], [3, 1, 4], [0, 4], [1] * 7])
        dtype = rng.choice(["float32", "float32", "float32", "float64", "int64", "int32", "bool", "uint64", "float16"])
        graph = some_info(model, rng).algorithm
        for info in model.training_info:
            if call in list(info.algorithm.node):
                graph = info.algorithm
        graph.initializer.append(numpy_helper.from_array(np.ones(shape, dtype), "hostile"))
        call.input[i] = "hostile"


def call_attribute(model, rng):
    call = some_call(model, rng)
    if not call.attribute:
        return
    a = rng.choice(call.attribute)
    if rng.random() < 0.3:
        call.attribute.remove(a)
    elif a.type == onnx.AttributeProto.TENSOR:
        a.t.CopyFrom(numpy_helper.from_array(np.zeros(rng.choice([[0], [2], []]), rng.choice(["f4", "f8", "i8"])), "x"))
    elif a.type == onnx.AttributeProto.INTS:
        a.ints[:] = [rng.choice([*HUGE, 1, 2]) for _ in range(rng.choice([0, 1, 2, 4]))]
    elif a.type == onnx.AttributeProto.STRING:
        a.s = rng.choice([b"", b"x", b"bidirectional", b"Tanh Tanh Tanh Tanh Tanh Tanh", b"sum"])
    else:
        a.i = rng.choice([*HUGE, 1, 2])


def call_outputs(model, rng):
    """One of a call's outputs fewer, more, or left out."""
    call = some_call(model, rng)
    kind = rng.randrange(3)
    if kind == 0:
        call.output.append("one_more")
    elif kind == 1 and len(call.output) > 1:
        del call.output[-1]
    elif len(call.output) > 1:
        call.output[rng.randrange(len(call.output))] = ""


def function_result(model, rng):
    """A body whose outputs have another shape or type than those that kernels write."""
    if not model.functions:
        return
    function = rng.choice(model.functions)
    name = rng.choice(function.output)
    for node in function.node:
        node.output[:] = [f"{name}_inner" if output == name else output for output in node.output]
        node.input[:] = [f"{name}_inner" if value == name else value for value in node.input]
    inner = f"{name}_inner"
    node = rng.choice([
        helper.make_node("Concat", [inner, inner], [name], axis=0),
        helper.make_node("Cast", [inner], [name], to=rng.choice([1, 2, 7, 9, 10, 11, 16])),
        helper.make_node("Flatten", [inner], [name]),
        helper.make_node("ReduceMax", [inner], [name], keepdims=rng.choice([0, 1])),
        helper.make_node("Identity", [rng.choice(function.input or [inner])], [name]),
        helper.make_node("Shape", [inner], [name]),
    ])  # fmt: skip
    function.node.append(node)


def more_memory_than_there_is(model, rng):
    """The step asks for a terabyte, or for exabytes."""
    algorithm = some_info(model, rng).algorithm
    sizes = rng.choice([[2**20] * 3, [2**62, 1, 1], [2**40, 2**40, 0], [2**38, 1, 1]])
    algorithm.initializer.append(helper.make_tensor("exabytes", TensorProto.INT64, [3], sizes))
    algorithm.node.insert(0, helper.make_node("ConstantOfShape", ["exabytes"], ["vast"]))
    algorithm.node.insert(1, helper.make_node("ReduceSum", ["vast"], ["sum_of_vast"], keepdims=0))
    last = next((n for n in algorithm.node if "loss" in n.output), None)
    if last is not None:
        last.output[list(last.output).index("loss")] = "loss_alone"
        algorithm.node.append(helper.make_node("Add", ["loss_alone", "sum_of_vast"], ["loss"]))


# ---- metadata


def position(model, rng):
    """Where a checkpoint stands; without its checksum, so that it is looked at."""
    entry = next((e for e in model.metadata_props if e.key == POSITION), None)
    if entry is None:
        entry = model.metadata_props.add(key=POSITION, value="{}")
    forget_checksum(model)
    try:
        stored = json.loads(entry.value)
    except ValueError:
        stored = {}
    kind = rng.randrange(4)
    if kind == 0:
        entry.value = rng.choice(["", "{", "[]", "1", "null", '{"epoch": 1e400}', "[" * 10000, "\xff"])
        return
    key = rng.choice(["epoch", "step", "sample", "loss", "stale", "best", "settings"])
    values = [-1, 2**62, 2**63, -(2**63), 2**64, 1e300, 0.5, "x", None, [], {}, {"seed": "x"}]
    stored[key] = rng.choice(values[:6] if rng.random() < 0.6 else values)
    entry.value = json.dumps(stored)


def metadata(model, rng):
    if model.metadata_props:
        entry = rng.choice(model.metadata_props)
        if rng.random() < 0.5:
            model.metadata_props.remove(entry)
        else:
            entry.value = rng.choice(["", "x", "{", '{"loss": 3}', "sgd(", "[" * 10000])


def forget_checksum(model):
    for entry in [e for e in model.metadata_props if e.key == CHECKSUM]:
        model.metadata_props.remove(entry)


TRAINING = [state_shape, state_shape, state_type, state_values, state_values, initializer_removed, initializer_doubled,
            integers, bindings, bindings, bindings, entry_points, algorithm_node, algorithm_node, algorithm_node,
            algorithm_order, algorithm_ends, call_input, call_input, call_input, call_attribute, call_outputs,
            function_result, function_result, function_body, more_memory_than_there_is, position, position, metadata]  # fmt: skip


def write(number, model, folder):
    """Writes broken training model `number`; returns its path and what was done to it."""
    rng = random.Random(number)
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    path = folder / "model" / "broken.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = rng.random()
    if kind < 0.15:
        mutation = rng.choice(BYTES)
        path.write_bytes(mutation(broken.SerializeToString(), rng))
        return path, mutation.__name__
    if kind < 0.3:
        mutation = rng.choice(MESSAGES)
        mutation(broken, rng, folder)
    else:
        mutation = rng.choice(TRAINING)
        mutation(broken, rng)
    if rng.random() < 0.7:
        forget_checksum(broken)
    path.write_bytes(broken.SerializeToString())
    return path, mutation.__name__
