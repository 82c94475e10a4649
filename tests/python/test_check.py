"""What `check` says of a model is what `build`, `fit`, `predict` and `export` then do."""

import re
import shlex
import subprocess

import numpy as np
import onnx
import onnx.reference
import pytest
import tool
import networks
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import onnx_train

SIZES = {"batch": 4}  # of symbolic dimensions; 8 for any other
rng = np.random.default_rng(0)


def weight(*shape, dtype=np.float32):
    return rng.normal(0, 0.5, shape).astype(dtype)


def node(op, inputs, *outputs, **attributes):
    return helper.make_node(op, inputs.split(), list(outputs), name=f"{op}_{outputs[0]}", **attributes)


def value(name, dtype, *shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, weights=None, opset=20, domains=(), ir_version=9):
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()]
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


X, Y = value("x", T.FLOAT, "batch", 6), value("y", T.FLOAT, "batch", 3)
LINEAR = {"w": weight(6, 3), "b": weight(3)}
LINEAR_NODES = [node("MatMul", "x w", "h"), node("Add", "h b", "y")]


def linear(nodes=(), outputs=(Y,), weights=(), inputs=(X,), **options):
    """x w + b -> h, y, and what `nodes` make of them."""
    return model([*LINEAR_NODES, *nodes], list(inputs), list(outputs), LINEAR | dict(weights), **options)


def half(kind):
    """Everything of 16 bits."""
    dtype = T.FLOAT16 if kind == "float16" else T.BFLOAT16
    proto = linear([node("Relu", "y", "z"), node("Softmax", "z", "p")])
    proto.graph.input[0].type.tensor_type.elem_type = dtype
    proto.graph.output[0].type.tensor_type.elem_type = dtype
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(dtype))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


def converted(keep_io_types):
    """As ONNX Runtime's converter writes it: casts at the borders, nodes where it pleases."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    deep = linear([node("Relu", "y", "z"), node("MatMul", "z v", "logits")], [value("logits", T.FLOAT, "batch", 4)],
                  {"v": weight(3, 4)})  # fmt: skip
    return convert_float_to_float16(deep, keep_io_types=keep_io_types, op_block_list=["Relu"])


def cut(op):
    """The output depends on the weights through `op` alone."""
    return model([*LINEAR_NODES[:1], node(op, "h", "y")], [X], [Y], {"w": weight(6, 3)})


def partly_cut():
    return linear([node("Round", "h", "r"), node("MatMul", "r v", "a"), node("Add", "a y", "z")],
                  [value("z", T.FLOAT, "batch", 3)], {"v": weight(3, 3)})  # fmt: skip


def branches(condition):
    """An If whose condition is an input, or a constant."""
    then = helper.make_graph([node("MatMul", "x w", "p")], "t", [], [value("p", T.FLOAT, "batch", 3)])
    other = helper.make_graph([node("Mul", "h two", "q")], "e", [], [value("q", T.FLOAT, "batch", 3)])
    inputs = [X] + ([value("c", T.BOOL)] if condition is None else [])
    weights = LINEAR | {"two": np.float32([2, 3, 4])} | ({} if condition is None else {"c": np.array(condition)})
    nodes = [node("MatMul", "x w", "h"), helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    return model(nodes, inputs, [Y], weights)


def loop():
    body = helper.make_graph(
        [node("MatMul", "s v", "next"), node("Identity", "go", "go_on")], "b",
        [value("i", T.INT64), value("go", T.BOOL), value("s", T.FLOAT, "batch", 3)],
        [value("go_on", T.BOOL), value("next", T.FLOAT, "batch", 3)],
    )  # fmt: skip
    looped = helper.make_node("Loop", ["n", "", "h"], ["y"], body=body)
    weights = {"w": weight(6, 3), "v": weight(3, 3), "n": np.int64(3)}
    return model([node("MatMul", "x w", "h"), looped], [X], [Y], weights)


def quantized():
    weights = {"q": rng.integers(-127, 127, (6, 3)).astype(np.int8), "scale": np.float32(0.01), "zero": np.int8(0)}
    return model([node("DequantizeLinear", "q scale zero", "w"), node("MatMul", "x w", "y")], [X], [Y], weights)


def constants():
    made = [helper.make_node("Constant", [], [k], value=numpy_helper.from_array(v, k)) for k, v in LINEAR.items()]
    return model([*made, *LINEAR_NODES], [X], [Y])


def unordered():
    proto = linear([node("Relu", "y", "z")], [value("z", T.FLOAT, "batch", 3)])
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    return proto


def cyclic():
    proto = linear()
    proto.graph.node[0].input[0] = "y"
    return proto


def stale():
    proto = linear()
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    return proto


def dynamic():
    proto = linear([node("Relu", "y", "z")], [helper.make_empty_tensor_value_info("z")])
    proto.graph.output[0].type.tensor_type.elem_type = T.FLOAT
    return proto


def rankless():
    proto = linear()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    return proto


def data_dependent():
    """The output has a row for each positive element."""
    return linear([node("ReduceMax", "x last", "m", keepdims=0), node("Greater", "m zero", "keep"),
                   node("Compress", "y keep", "z", axis=0)], [value("z", T.FLOAT, "rows", 3)],
                  {"last": np.int64([1]), "zero": np.float32(0)})  # fmt: skip


# name: the model, and whether it can be trained
MODELS = {
    "linear": (linear, True),
    "softmax": (lambda: linear([node("Softmax", "y", "p")], [value("p", T.FLOAT, "batch", 3)]), True),
    "scalar_loss": (lambda: linear([node("ReduceMean", "y", "l", keepdims=0)], [value("l", T.FLOAT)]), True),
    "vector_output": (lambda: linear([node("ReduceMax", "y one", "m", keepdims=0)], [value("m", T.FLOAT, "batch")],
                                     {"one": np.int64([1])}), True),
    "fixed_batch": (lambda: linear(inputs=[value("x", T.FLOAT, 4, 6)], outputs=[value("y", T.FLOAT, 4, 3)]), True),
    "float16": (lambda: half("float16"), True),
    "bfloat16": (lambda: half("bfloat16"), True),
    "converted_float16": (lambda: converted(False), True),
    "converted_float16_keep_io": (lambda: converted(True), True),
    "constants": (constants, True),
    "unordered": (unordered, True),
    "cyclic": (cyclic, False),
    "stale_output": (stale, False),
    "dynamic_everything": (dynamic, True),
    "no_rank": (rankless, False),
    "round_cuts_all": (lambda: cut("Round"), False),
    "floor_cuts_all": (lambda: cut("Floor"), False),
    "round_cuts_some": (partly_cut, True),
    "roi_pool": (lambda: model([*LINEAR_NODES, node("Reshape", "y s", "r"),
                                node("MaxRoiPool", "r regions", "z", pooled_shape=[1, 1])], [X], [value("z", T.FLOAT, 1, 1, 1, 1)],
                               LINEAR | {"s": np.int64([-1, 1, 1, 1]), "regions": np.zeros((1, 5), np.float32)}), None),
    "no_weights": (lambda: model([node("Relu", "x", "y")], [X], [value("y", T.FLOAT, "batch", 6)]), False),
    "integers_only": (lambda: model([node("Add", "x c", "y")], [value("x", T.INT64, "batch", 6)],
                                    [value("y", T.INT64, "batch", 6)], {"c": np.int64([1])}), False),
    "integer_output": (lambda: linear([node("ArgMax", "y", "a", axis=1, keepdims=0)], [value("a", T.INT64, "batch")]),
                       False),
    "int8_weights": (quantized, False),
    "strings": (lambda: linear([node("Identity", "t", "u")], [Y, value("u", T.STRING, "batch")],
                               inputs=[X, value("t", T.STRING, "batch")]), False),
    "sequence_output": (lambda: linear([node("SequenceConstruct", "h y", "q")],
                                       [Y, helper.make_tensor_sequence_value_info("q", T.FLOAT, None)]), True),
    "unknown_operator": (lambda: linear([helper.make_node("Thing", ["y"], ["z"], domain="acme")],
                                        [value("z", T.FLOAT, "batch", 3)], domains=["acme"]), False),
    "unknown_operator_aside": (lambda: linear([helper.make_node("Thing", ["x"], ["z"], domain="acme")], [Y],
                                              domains=["acme"]), None),
    "if_of_an_input": (lambda: branches(None), True),
    "if_of_a_constant": (lambda: branches(True), True),
    "loop": (loop, True),
    "empty_graph": (lambda: model([], [X], [value("x", T.FLOAT, "batch", 6)]), False),
    "weight_is_output": (lambda: model([], [X], [value("w", T.FLOAT, 6, 3)], {"w": weight(6, 3)}), None),
    "dead_weights": (lambda: linear(weights={"unused": weight(3)}), True),
    "nonzero": (lambda: linear([node("NonZero", "y", "n")], [Y, value("n", T.INT64, 2, "k")]), True),
    "dropout": (lambda: linear([node("Dropout", "y", "z")], [value("z", T.FLOAT, "batch", 3)]), True),
    "opset_28": (lambda: linear(opset=28, ir_version=14), True),
    "swiglu": (lambda: linear([node("SwiGLU", "y h", "z")], [value("z", T.FLOAT, "batch", 3)], opset=28,
                              ir_version=14), None),
    "random": (lambda: linear([node("RandomNormalLike", "y", "r"), node("Add", "y r", "z")],
                              [value("z", T.FLOAT, "batch", 3)]), True),
    "double": (lambda: model(LINEAR_NODES, [value("x", T.DOUBLE, "batch", 6)], [value("y", T.DOUBLE, "batch", 3)],
                             {k: v.astype(np.float64) for k, v in LINEAR.items()}), None),
}  # fmt: skip


def run(*arguments):
    """(succeeded, what was printed); anything but an exit of 0 or 1 with one line is a failure of the test."""
    result = subprocess.run(
        [tool.COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=tool.PATIENCE, env=tool.os.environ | {"OMP_NUM_THREADS": "1"}
    )  # fmt: skip
    assert result.returncode in (0, 1), result.stderr
    assert result.returncode == 0 or len(result.stderr.splitlines()) == 1, result.stderr
    return result.returncode == 0, result.stdout + result.stderr


def data_for(train):
    """One batch of what the training model's step reads."""
    proto = onnx.load(train)
    algorithm = next(t.algorithm for t in proto.training_info if t.algorithm.name == "step")
    states = {t.name for t in [*proto.graph.initializer, *algorithm.initializer]}
    arrays = {}
    for entry in [*proto.graph.input, *algorithm.input]:
        if entry.name in states:
            continue
        tensor = entry.type.tensor_type
        shape = [d.dim_value or SIZES.get(d.dim_param, 8) for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        floats = np.issubdtype(dtype, np.floating)
        arrays[entry.name] = (rng.uniform(-1, 1, shape) if floats else np.zeros(shape)).astype(dtype)
    return arrays


def outcome(source, loss, folder):
    """Whether the whole way succeeds; and if not, where it ended and why."""
    train, batch, result = folder / "train.onnx", folder / "batch.npz", folder / "run"
    ok, text = run("build", source, "-o", train, *(["--loss", loss] if loss else []))
    if not ok:
        return False, f"build: {text}"
    arrays = data_for(train)
    np.savez(batch, **arrays)
    samples = len(arrays["labels"]) if "labels" in arrays else SIZES["batch"]
    steps = [
        ("fit", train, "--data", batch, "--steps", 1, "--batch-size", samples, "--out", result),
        ("predict", train, "--inputs", batch, "-o", folder / "outputs.npz", "--batch-size", samples),
        ("export", result / "last.onnx", "-o", folder / "exported.onnx"),
    ]
    for step in steps:
        ok, text = run(*step)
        if not ok:
            return False, f"{step[0]}: {text}"
    onnx.checker.check_model(folder / "exported.onnx", full_check=True)
    return True, ""


@pytest.mark.parametrize("name", MODELS)
def test_check_says_what_the_other_commands_do(name, tmp_path):
    make, expected = MODELS[name]
    source = tmp_path / "model.onnx"
    onnx.save(make(), source)
    says, text = run("check", source)
    assert says == ("It can be trained" in text)
    command = re.search(r"Next: onnx-train (build .*)", text)
    loss = shlex.split(command[1])[-1] if says else None
    does, why = outcome(source, loss, tmp_path)
    assert says == does, f"check says:\n{text}\nthe others: {why}"
    assert expected is None or says == expected, text


def test_an_output_with_a_row_for_each_sample_that_data_select(tmp_path):
    onnx.save(data_dependent(), tmp_path / "model.onnx")
    says, text = run("check", tmp_path / "model.onnx")
    assert says, text
    x = np.random.default_rng(0).normal(-1, 1, (8, 6)).astype("f")
    rows = int((x.max(1) > 0).sum())
    assert 0 < rows < 8
    batch = {"x": x, "labels": np.arange(rows) % 3}
    history = onnx_train.fit(onnx_train.build(str(tmp_path / "model.onnx")), [batch], epochs=2, lr=0.1, progress=False)
    assert history.losses[1] < history.losses[0]
    assert history.session.predict(x).z.shape == (rows, 3)


@pytest.mark.parametrize("name", networks.EXAMPLES)
def test_check_agrees_on_exports_of_the_networks(name, exported, tmp_path):
    example, source = exported(name)
    says, text = run("check", source, "--loss", example.loss)
    assert says, text
    train = tmp_path / "train.onnx"
    assert run("build", source, "-o", train, "--loss", example.loss)[0]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_sixteen_bit_models_are_exported_as_they_came_on_request(kind, tmp_path):
    source, train = tmp_path / "model.onnx", tmp_path / "train.onnx"
    before = half(kind)
    onnx.save(before, source)
    assert "widened to float32" in tool.run("check", source)
    tool.run("build", source, "-o", train)
    tool.run("export", train, "-o", tmp_path / "wide.onnx")
    tool.run("export", train, "-o", tmp_path / "narrow.onnx", "--original-types")
    wide, narrow = onnx.load(tmp_path / "wide.onnx"), onnx.load(tmp_path / "narrow.onnx")
    original = {t.name: numpy_helper.to_array(t) for t in before.graph.initializer}
    for t in wide.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(t), original[t.name].astype(np.float32))
    for t in narrow.graph.initializer:
        assert numpy_helper.to_array(t).tobytes() == original[t.name].tobytes()
    dtype = before.graph.input[0].type.tensor_type.elem_type
    for v in [*narrow.graph.input, *narrow.graph.output]:
        assert v.type.tensor_type.elem_type == dtype
    onnx.checker.check_model(narrow, full_check=True)
    x = weight(5, 6).astype(helper.tensor_dtype_to_np_dtype(dtype))
    a, b = (onnx.reference.ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (before, narrow))
    np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), atol=2e-2)


@pytest.mark.parametrize("keep_io_types", [False, True])
def test_a_model_of_onnx_runtimes_float16_converter_trains_and_comes_back(keep_io_types, tmp_path):
    source, train = tmp_path / "model.onnx", tmp_path / "train.onnx"
    onnx.save(converted(keep_io_types), source)
    tool.run("build", source, "-o", train)
    tool.run("export", train, "-o", tmp_path / "narrow.onnx", "--original-types")
    sessions = [tool.session(tmp_path / f) for f in ("model.onnx", "narrow.onnx")]
    x = weight(5, 6, dtype=np.float32 if keep_io_types else np.float16)
    a, b = (s.run(None, {"x": x})[0] for s in sessions)
    assert a.dtype == b.dtype == x.dtype
    np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), atol=5e-3)


def test_check_names_the_node_that_ends_every_gradient(tmp_path):
    onnx.save(cut("Round"), tmp_path / "model.onnx")
    assert "the gradient is zero after node 'Round_y' (Round)" in tool.run("check", tmp_path / "model.onnx", status=1)


def refused(*arguments):
    """The last line of what a command prints that refuses."""
    ok, text = run(*arguments)
    assert not ok, text
    return text.splitlines()[-1]


def test_every_command_names_an_operator_that_is_not_known(tmp_path):
    source, batch = tmp_path / "model.onnx", tmp_path / "batch.npz"
    onnx.save(model([helper.make_node("SVMRegressor", ["x"], ["s"], domain="ai.onnx.ml"), node("MatMul", "s w", "y")],
                    [X], [Y], {"w": weight(6, 3)}, domains=["ai.onnx.ml"]), source)  # fmt: skip
    np.savez(batch, x=weight(4, 6), labels=np.zeros(4, np.int64))
    for command in (["check", source], ["build", source, "-o", tmp_path / "t.onnx"],
                    ["predict", source, "--inputs", batch, "-o", tmp_path / "p.npz"],
                    ["grad", source, "--inputs", batch, "-o", tmp_path / "g.npz"]):  # fmt: skip
        assert "operator SVMRegressor of domain ai.onnx.ml (node 's') is not known here" in refused(*command)


def test_build_writes_nothing_that_cannot_be_run(tmp_path):
    source, train = tmp_path / "model.onnx", tmp_path / "train.onnx"
    onnx.save(linear([node("Cast", "y", "u8", to=T.UINT8), node("Flatten", "u8", "row", axis=0), node("Squeeze", "row", "s"),
                      node("ImageDecoder", "s", "m"), node("Cast", "m", "d", to=T.FLOAT),
                      node("ReduceMean", "d", "e", keepdims=0), node("MatMul", "y v", "q"), node("Mul", "q e", "out")],
                     [value("out", T.FLOAT, "batch", 3)], {"v": weight(3, 3)}), source)  # fmt: skip
    for command in (["check", source], ["build", source, "-o", train]):
        assert "no kernel for the operator ImageDecoder" in refused(*command)
    assert not train.exists()
    assert run("build", source, "-o", train, "--force")[0] and train.exists()


def test_a_fixed_batch_is_said_and_the_suggested_build_trains_any(tmp_path):
    source, train = tmp_path / "my model.onnx", tmp_path / "train.onnx"
    onnx.save(linear(inputs=[value("x", T.FLOAT, 1, 6)], outputs=[value("y", T.FLOAT, 1, 3)]), source)
    text = tool.run("check", source)
    assert "the file fixes it at 1" in text
    words = shlex.split(re.search(r"Next: onnx-train (build .*)", text)[1])
    assert words[1] == str(source) and words[words.index("--batch") + 1] == "dynamic"
    tool.run(*[str(train) if word == "train.onnx" else word for word in words])
    np.savez(tmp_path / "data.npz", x=weight(32, 6), labels=np.zeros(32, np.int64))
    tool.run("fit", train, "--data", tmp_path / "data.npz", "--steps", 1, "--batch-size", 16, "--out", tmp_path / "run")
    assert "x float[batch,6]" in tool.run("export", train, "-o", tmp_path / "exported.onnx")


def test_operators_before_the_trained_head_need_no_gradient(tmp_path):
    source, batch, result = tmp_path / "model.onnx", tmp_path / "batch.npz", tmp_path / "g.npz"
    pool = node("LpPool", "wide", "pooled", kernel_shape=[2], strides=[2], ceil_mode=1)
    onnx.save(model([node("Unsqueeze", "x axis", "wide"), pool, node("Squeeze", "pooled axis", "rows"),
                     node("MatMul", "rows w", "y")], [X], [Y], {"axis": np.int64([1]), "w": weight(3, 3)}), source)  # fmt: skip
    np.savez(batch, x=weight(4, 6), labels=np.zeros(4, np.int64))
    text = tool.run("grad", source, "--inputs", batch, "-o", result, "--train", "w")
    assert "no gradient of the input 'x': node 'LpPool_pooled' (LpPool)" in text
    assert "grad/w" in np.load(result) and "grad_input/x" not in np.load(result)
