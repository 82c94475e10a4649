"""Weights that do not train keep the file's type in the training model: 16 bits before a Cast, 4-bit integers two in a byte."""

import numpy as np
import onnx
import pytest
import tool
from onnx import TensorProto, helper, numpy_helper

WORDS, WIDTH, INNER = 97, 64, 128
KINDS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
LORA = ["--lora", "rank=2,alpha=4", "--optimizer", "adamw(weight_decay=0)"]


def tensor(name, numbers, kind):
    """As the kind; numbers that are of bfloat16 are numbers of float16 and float32, too."""
    if kind == TensorProto.BFLOAT16:
        bits = (np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return helper.make_tensor(name, kind, numbers.shape, bits.tobytes(), raw=True)
    return numpy_helper.from_array(numbers.astype(helper.tensor_dtype_to_np_dtype(kind)), name)


def network(path, kind):
    """A table that is the head, too, and two layers; all of it in one type. Its weights are the same numbers in each."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: (rng.integers(-127, 128, shape) / 512).astype(np.float32)  # noqa: E731
    weights = [tensor(name, draw(*shape), kind) for name, shape in
               {"table": (WORDS, WIDTH), "up.weight": (WIDTH, INNER), "down.weight": (INNER, WIDTH), "down.bias": (WIDTH,)}.items()]  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "up.weight"], ["u"], "up"),
        helper.make_node("Tanh", ["u"], ["t"]),
        helper.make_node("MatMul", ["t", "down.weight"], ["d"], "down"),
        helper.make_node("Add", ["d", "down.bias"], ["h"]),
        helper.make_node("Add", ["x", "h"], ["r"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "turned"], ["logits"], "head"),
    ]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "t"])],
                              [helper.make_tensor_value_info("logits", kind, ["n", "t", WORDS])], weights)  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    rng = np.random.default_rng(1)
    tool.save(folder / "data.npz", {"ids": rng.integers(0, WORDS, (16, 6)), "labels": rng.integers(0, WORDS, (16, 6))})
    for name, kind in KINDS.items():
        network(folder / f"{name}.onnx", kind)
    network(folder / "float.onnx", TensorProto.FLOAT)
    return folder


def fit(place, model, out, *options):
    tool.run("fit", model, "--data", place / "data.npz", "--batch-size", 4, "--lr", 0.02, "--out", out, *options)
    return tool.losses(out)


def types_of(path):
    return {t.name: TensorProto.DataType.Name(t.data_type) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", KINDS)
def test_frozen_weights_in_16_bits_train_as_their_float32_numbers(place, tmp_path, name, precision):
    built, wide = tmp_path / "t.onnx", tmp_path / "wide.onnx"
    for model, out in ((place / f"{name}.onnx", built), (place / "float.onnx", wide)):
        tool.run("build", model, "-o", out, *LORA, "--precision", precision)
    types = types_of(built)
    for weight in ("table", "up.weight", "down.weight"):
        assert types[f"{weight}/stored"] == name.upper() and weight not in types
    assert types["up.lora_A.weight"] == types["up.lora_B.weight"] == "FLOAT"
    saved = sum(numbers.size for numbers in tool.state_of(onnx.load(place / "float.onnx")).values()) * 2
    assert wide.stat().st_size - built.stat().st_size > 0.9 * saved - 4096
    losses = fit(place, built, tmp_path / "run", "--steps", 8)
    np.testing.assert_array_equal(losses, fit(place, wide, tmp_path / "wide", "--steps", 8))
    assert losses[-1] < losses[0]
    # A checkpoint has them, too, and training goes on from it to the same bits.
    assert types_of(tmp_path / "run" / "last.onnx") == types
    fit(place, built, tmp_path / "half", "--steps", 4)
    fit(place, built, tmp_path / "half", "--steps", 8, "--resume")
    np.testing.assert_array_equal(tool.losses(tmp_path / "half"), losses)


@pytest.mark.parametrize("name", KINDS)
def test_what_leaves_the_training_model_is_float32(place, tmp_path, name):
    built = tmp_path / "t.onnx"
    tool.run("build", place / f"{name}.onnx", "-o", built, *LORA)
    losses = fit(place, built, tmp_path / "run", "--steps", 4, "--no-shuffle")
    last, data = tmp_path / "run" / "last.onnx", tool.load(place / "data.npz")
    tool.run("predict", last, "--inputs", tool.save(tmp_path / "ids.npz", {"ids": data["ids"]}), "-o", tmp_path / "y.npz")
    logits = tool.load(tmp_path / "y.npz")["logits"]
    # A checkpoint is a model that any runtime runs.
    np.testing.assert_allclose(tool.session(last).run(["logits"], {"ids": data["ids"]})[0], logits, rtol=1e-5, atol=1e-5)
    for options in ([], ["--merge"]):
        tool.run("export", last, "-o", tmp_path / "e.onnx", *options)
        assert set(types_of(tmp_path / "e.onnx").values()) <= {"FLOAT", "INT64"}
        found = tool.session(tmp_path / "e.onnx").run(None, {"ids": data["ids"]})[0]
        np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-5)
    tool.run("export", last, "-o", tmp_path / "narrow.onnx", "--original-types", "--merge")
    assert types_of(tmp_path / "narrow.onnx")["up.weight"] == name.upper()
    tool.run("flatten", built, "--entry", "step", "-o", tmp_path / "step.onnx")
    ran = tool.run_steps(built, tmp_path / "step.onnx", data, 4, 1, 0.02)
    np.testing.assert_allclose(ran, losses[:1], rtol=1e-5)


def test_a_weight_that_trains_is_float32(place, tmp_path):
    tool.run("build", place / "bfloat16.onnx", "-o", tmp_path / "t.onnx", "--train", "up.weight")
    types = types_of(tmp_path / "t.onnx")
    assert types["up.weight"] == "FLOAT" and types["table/stored"] == "BFLOAT16"
    tool.run("build", place / "bfloat16.onnx", "-o", tmp_path / "all.onnx")
    assert {types_of(tmp_path / "all.onnx")[name] for name in ("table", "up.weight", "down.weight")} == {"FLOAT"}
    fit(place, tmp_path / "all.onnx", tmp_path / "run", "--steps", 2)
    assert not np.array_equal(*(tool.state_of(onnx.load(tmp_path / p))["table"] for p in ("all.onnx", "run/last.onnx")))


def test_integers_of_4_bits_stay_two_in_a_byte(place, tmp_path):
    built = tmp_path / "t.onnx"
    tool.run("build", place / "float.onnx", "-o", built, *LORA, "--quantize-base", "int4,block=32")
    stored = {t.name: t for t in onnx.load(built).graph.initializer}
    for name, elements in {"up.weight": WIDTH * INNER, "down.weight": WIDTH * INNER}.items():
        weight = stored[f"{name}_quantized/stored"]
        assert weight.data_type == TensorProto.INT4 and len(weight.raw_data) == elements // 2
    losses = fit(place, built, tmp_path / "run", "--steps", 4, "--no-shuffle")
    last, data = tmp_path / "run" / "last.onnx", tool.load(place / "data.npz")
    tool.run("predict", last, "--inputs", tool.save(tmp_path / "ids.npz", {"ids": data["ids"]}), "-o", tmp_path / "y.npz")
    logits = tool.load(tmp_path / "y.npz")["logits"]
    tool.run("export", last, "-o", tmp_path / "int4.onnx")
    assert "INT4" in types_of(tmp_path / "int4.onnx").values()
    for path, options in ((last, []), (tmp_path / "int4.onnx", []), (tmp_path / "merged.onnx", ["--merge"])):
        if options:
            tool.run("export", last, "-o", path, *options)
        found = tool.session(path).run(["logits"], {"ids": data["ids"]})[0]
        np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)
    tool.run("flatten", built, "--entry", "step", "-o", tmp_path / "step.onnx")
    np.testing.assert_allclose(tool.run_steps(built, tmp_path / "step.onnx", data, 4, 1, 0.02), losses[:1], rtol=1e-4)
    # What is exported with 4 bits is a base again.
    tool.run("export", last, "-o", tmp_path / "base.onnx", "--merge", "--dtype", "int4,block=32")
    tool.run("build", tmp_path / "base.onnx", "-o", tmp_path / "again.onnx", *LORA)
    assert types_of(tmp_path / "again.onnx")["up.weight_quantized/stored"] == "INT4"


def test_a_base_in_fewer_bits_takes_no_float32_while_it_is_built(tmp_path):
    """Of a table of 64 MB in bfloat16, `check` and `build` have no copy in float32."""
    rows, width = 1 << 18, 128
    table = np.random.default_rng(0).standard_normal((rows, width), np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = [tensor("table", table, TensorProto.BFLOAT16), tensor("w", table[:width, :4], TensorProto.BFLOAT16)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
                              [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["n", 4])], weights)  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    least = tool.peak_of("check", tool.ROOT / "models" / "digits_cnn.onnx")[0]
    for arguments in (["check", tmp_path / "m.onnx"],
                      ["build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--loss", "cross_entropy", "--train", "w"]):  # fmt: skip
        assert tool.peak_of(*arguments)[0] - least < 1.5 * 2 * table.size
    assert (tmp_path / "t.onnx").stat().st_size < 2 * table.size + (1 << 20)
