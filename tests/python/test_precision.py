"""Mixed precision: training follows float32, repeats to the byte, and means the same on another runtime."""

import numpy as np
import onnx
import pytest
import reference
import test_other_runtimes as runtimes
import tool

STEPS = 20
BATCHES = 4
PRECISIONS = ["gemm-bf16", "bf16"]
NETWORKS_FOR_OTHERS = ["mlp", "gpt2"]  # fp16 and fp8 differ from bf16 in the type alone
RATE = 2**-9
# A bfloat16 has eight significant bits: a rounded value is off by 2^-9 at most. Errors of many roundings are
# independent, so that a loss, a mean over many of them, moves by a few parts in a thousand; what it has moved the
# weights by since the start adds as much again. A float16 has eleven bits, an 8-bit operand of fp8 has four, a gradient
# three.
BOUND = {"gemm-bf16": 0.01, "bf16": 0.03, "fp16": 0.01, "fp8": 0.06}
MODELS = ["mlp", "cnn", "gpt2", "lstm", "gru", "unet", "unet_bilinear"]
EVERY = [(name, precision) for name in MODELS for precision in PRECISIONS]
EVERY += [(name, precision) for name in NETWORKS_FOR_OTHERS for precision in ("fp16", "fp8")]


def fit(model, inputs, batch_size, out, *options, threads=1):
    tool.run("fit", model, "--data", inputs, "--steps", STEPS, "--batch-size", batch_size, "--lr", RATE,
             "--schedule", "constant", "--no-shuffle", "--out", out, *options, threads=threads)  # fmt: skip
    return tool.losses(out)


@pytest.mark.parametrize(("name", "precision"), EVERY)
def test_losses_follow_float32_and_repeat(exported, tmp_path, name, precision):
    example, single = runtimes.build(exported, name, tmp_path)
    inputs = tool.save(tmp_path / "data.npz", reference.repeated(example, BATCHES))
    size = len(example.labels)
    expected = fit(single, inputs, size, tmp_path / "float32")
    _, mixed = runtimes.build(exported, name, tmp_path, "--precision", precision)
    found = fit(mixed, inputs, size, tmp_path / "mixed")
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=BOUND[precision])
    np.testing.assert_array_equal(fit(mixed, inputs, size, tmp_path / "again"), found)
    last = [(tmp_path / run / "last.onnx").read_bytes() for run in ("mixed", "again")]
    assert last[0] == last[1]


@pytest.mark.parametrize("name", MODELS)
def test_kernels_that_store_16_bits_change_none(exported, tmp_path, name):
    example, model = runtimes.build(exported, name, tmp_path, "--precision", "bf16")
    inputs = tool.save(tmp_path / "data.npz", reference.repeated(example, BATCHES))
    size = len(example.labels)
    fit(model, inputs, size, tmp_path / "all")
    fit(model, inputs, size, tmp_path / "without", "--lowering", "-narrow_storage")
    assert (tmp_path / "without" / "last.onnx").read_bytes() == (tmp_path / "all" / "last.onnx").read_bytes()


@pytest.mark.parametrize(("name", "precision"), EVERY)
def test_flattened_step_agrees_with_onnx_runtime(exported, tmp_path, name, precision):
    example, model = runtimes.build(exported, name, tmp_path, "--precision", precision)
    data = reference.repeated(example, BATCHES)
    size = len(example.labels)
    ours = fit(model, tool.save(tmp_path / "data.npz", data), size, tmp_path / "run")
    step = runtimes.flatten(model, "step", tmp_path)
    theirs = tool.run_steps(model, step, data, size, STEPS, RATE)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_scaled_loss_agrees_with_onnx_runtime(exported, tmp_path):
    example, model = runtimes.build(exported, "mlp", tmp_path, "--loss-scale", "dynamic")
    data = reference.repeated(example, BATCHES)
    size = len(example.labels)
    ours = fit(model, tool.save(tmp_path / "data.npz", data), size, tmp_path / "run")
    step = runtimes.flatten(model, "step", tmp_path)
    np.testing.assert_allclose(ours, tool.run_steps(model, step, data, size, STEPS, RATE), rtol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_everything_but_the_step_stays_float32(exported, tmp_path, precision):
    example, model = runtimes.build(exported, "mlp", tmp_path, "--precision", precision)
    _, forward = exported("mlp")
    inputs = tool.save(tmp_path / "data.npz", reference.repeated(example, 1))
    fit(model, inputs, len(example.labels), tmp_path / "run")
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "inference.onnx")
    for path in model, tmp_path / "inference.onnx":
        graph = onnx.load(path).graph
        assert {n.op_type for n in graph.node} == {n.op_type for n in onnx.load(forward).graph.node}
        assert all(t.data_type != onnx.TensorProto.BFLOAT16 for t in graph.initializer)
    inference = onnx.load(tmp_path / "inference.onnx")
    assert not inference.functions and not inference.training_info
    evaluate = onnx.load(runtimes.flatten(model, "evaluate", tmp_path))
    assert not any("Bfloat16" in n.op_type for n in evaluate.graph.node)


def test_nonsense_is_refused_in_one_line(exported, tmp_path):
    _, path = exported("mlp")
    out = tmp_path / "train.onnx"
    message = tool.run("build", path, "-o", out, "--precision", "bf16", "--dtype", "float64", status=1)
    assert "--precision bf16" in message and len(message.strip().splitlines()) == 1
    tool.run("build", path, "-o", out, "--precision", "int8", status=2)
    for options, status in ((["--loss-scale", "much"], 2), (["--loss-scale", "dynamic(growth_interval=0)"], 2)):
        message = tool.run("build", path, "-o", out, *options, status=status)
        assert "--loss-scale" in message and len(message.strip().splitlines()) == 1
