"""Every lowering pass off, all off, one thread and two: the same training.

What only moves data, or runs the same arithmetic elsewhere, must not change a bit: is_exact. The others may add in
another order, and are held to 1e-6 of each tensor's norm (float32) over two steps.
"""

import numpy as np
import onnx
import pytest
import reference
import tool
import networks
from export import export
from lowering import is_exact, is_exact_but_norm, passes
from onnx import numpy_helper

TOLERANCE = 1e-6


def train(model, data, batch_size, out, *options, threads=1):
    """Two steps of SGD; returns losses, gradient norms and the bytes of every tensor of the checkpoint."""
    tool.run("fit", model, "--data", data, "--steps", 2, "--batch-size", batch_size, "--lr", 2**-7, "--no-shuffle",
             "--out", out, *options, threads=threads)  # fmt: skip
    checkpoint = onnx.load(out / "last.onnx")
    tensors = {t.name: numpy_helper.to_array(t) for t in checkpoint.graph.initializer}
    lines = tool.metrics(out)
    return {"loss": np.array([line["loss"] for line in lines]),
            "grad_norm": np.array([line["grad_norm"] for line in lines])} | tensors  # fmt: skip


def assert_same(results, expected, exact, variant):
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        if exact or not np.issubdtype(value.dtype, np.floating):
            np.testing.assert_array_equal(results[name], value, err_msg=f"{variant}: {name}")
            continue
        error = np.linalg.norm((results[name] - value).astype(np.float64)) / max(np.linalg.norm(value), 1e-30)
        assert error <= TOLERANCE, f"{variant}: {name} differs by {error:.1e}"


def check_every_pass(path, example, optimizer, tmp_path, chaotic=False):
    model, batch_size = tmp_path / "train.onnx", len(example.labels)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, 2))
    tool.run("build", path, "-o", model, "--loss", example.loss, "--optimizer", optimizer)
    expected = train(model, data, batch_size, tmp_path / "all")
    for left_out in passes():
        results = train(model, data, batch_size, tmp_path / left_out, "--lowering", "-" + left_out)
        assert_same(results, expected, is_exact(left_out), f"without {left_out}")
        if is_exact_but_norm(left_out):
            del results["grad_norm"]
            assert_same(results, {k: v for k, v in expected.items() if k != "grad_norm"}, True, f"without {left_out}")
    assert_same(train(model, data, batch_size, tmp_path / "none", "--no-lowering"), expected, False, "--no-lowering")
    # Without AVX-512, oneDNN's float32 sums depend on the number of threads, and rounding grows to 1e-4 in two steps of
    # a ResNet-18: that network is compared in float64.
    in_float64 = ("--dtype", "float64") if chaotic else ()
    if in_float64:
        expected = train(model, data, batch_size, tmp_path / "one", *in_float64)
    two = train(model, data, batch_size, tmp_path / "two", *in_float64, threads=2)
    assert_same(two, expected, False, "two threads")


@pytest.mark.parametrize("name", networks.EXAMPLES)
def test_no_pass_changes_the_training(exported, tmp_path, name):
    example, path = exported(name)
    check_every_pass(path, example, "sgd(momentum=0.9)", tmp_path, chaotic=name == "resnet18")


def test_no_pass_changes_the_training_of_large_tables(exported, tmp_path):
    """Which plain SGD updates by rows."""
    example, path = exported("dlrm", rows=40)
    check_every_pass(path, example, "sgd", tmp_path)


@pytest.mark.parametrize("name, options, among", [
    ("gpt", ("--lora", "rank=2", "--quantize-base", "int8"), {"dequantize_at_readers", "merge_updates"}),
    ("gpt", ("--lora", "rank=2", "--precision", "bf16"), {"round_constants", "narrow_storage"}),
    ("digits_cnn", ("--precision", "bf16"), {"round_once", "drop_zero_biases", "narrow_storage"})])  # fmt: skip
def test_exact_passes_keep_the_bits_of_narrow_numbers(tmp_path, name, options, among):
    """Those that change the plan of integers and of bfloat16, which the networks above do not have."""
    model, rng = tmp_path / "train.onnx", np.random.default_rng(0)
    tool.run("build", tool.ROOT / f"models/{name}.onnx", "-o", model, "--optimizer", "sgd(momentum=0.9)", *options)
    inputs = {"tokens": rng.integers(0, 128, (4, 128))} if name == "gpt" else \
        {"image": rng.normal(size=(4, 1, 8, 8)).astype(np.float32)}  # fmt: skip
    labels = rng.integers(0, 10, (4, 128) if name == "gpt" else 4)
    data = tool.save(tmp_path / "data.npz", inputs | {"labels": labels})
    shown = [line.split() for line in tool.run("show", model, "--plan", "--passes", "--batch", 2).splitlines()]
    changes = {word for line in shown if "equal" in line and "-" not in line for word in line[:2] if word in passes()}
    assert among <= changes
    expected = train(model, data, 2, tmp_path / "all")
    for left_out in changes:
        if is_exact(left_out):
            results = train(model, data, 2, tmp_path / left_out, "--lowering", "-" + left_out)
            assert_same(results, expected, True, f"without {left_out}")


def test_every_budget_is_met_or_refused(tmp_path):
    """An attention that guards against NaN has two results that are recomputed together, again and again."""
    example = networks.gpt2(width=64, heads=4, tokens=64, vocabulary=256, attention="sdpa")
    export(example.module, example.inputs, tmp_path / "forward.onnx", optimize=example.optimize)
    model = tmp_path / "train.onnx"
    tool.run("build", tmp_path / "forward.onnx", "-o", model, "--loss", example.loss, "--optimizer", "sgd")
    for kib in (6000, 5000, 4000):
        assert "recomputed" in tool.run("show", model, "--plan", "--batch", 8, "--memory", f"{kib}KiB")
    for kib in (3000, 2500, 2000):
        assert "at the least" in tool.run("show", model, "--plan", "--batch", 8, "--memory", f"{kib}KiB", status=1)


def test_a_pass_that_every_plan_needs_cannot_be_left_out():
    model = tool.ROOT / "tests/fixtures/mlp.onnx"
    assert "there are" in tool.run("show", model, "--plan", "--lowering", "-fold_constants", status=1)
    assert "--lowering takes" in tool.run("show", model, "--plan", "--lowering", "views", status=2)


def test_show_counts_the_nodes_of_each_pass(tmp_path):
    model = tmp_path / "train.onnx"
    tool.run("build", tool.ROOT / "tests/fixtures/mlp.onnx", "-o", model, "--loss", "mse", "--optimizer", "adamw")
    dump = tmp_path / "dump"
    lines = tool.run("show", model, "--plan", "--passes", "--batch", 4, "--dump-lowering", dump).splitlines()
    header = next(i for i, line in enumerate(lines) if line.split() == ["phase", "pass", "nodes", "after", "ms", "numbers"])
    # Without the phase, which its first pass has, and without what it says of numbers.
    shown = [line[: lines[header].index("numbers")].split()[-4:] for line in lines[header + 1 : -1]]
    assert [name for name, *_ in shown] == [p.stem[3:] for p in sorted((dump / "step").glob("*.txt"))]
    assert lines[-1].startswith(f"{len(shown)} passes in ") and all(float(ms) >= 0 for *_, ms in shown)
    counts = [(int(before), int(after)) for _, before, after, _ in shown if before != "-"]
    assert all(after == before for (_, after), (before, _) in zip(counts, counts[1:]))
    planned = next(int(line.split()[0]) for line in lines if " nodes write " in line)
    assert counts[0][0] > counts[-1][1] >= planned  # views do not run
    fused = next(counts for name, *counts in shown if name == "fuse_elementwise")
    assert int(fused[0]) > int(fused[1])


def test_dumps_follow_the_passes(tmp_path):
    tool.run("show", tool.ROOT / "tests/fixtures/mlp.onnx", "--plan", "--dump-lowering", tmp_path / "dump")
    folder = tmp_path / "dump" / "predict"
    names = sorted(p.stem for p in folder.glob("*.onnx"))
    assert names[:3] == ["01_fix_defaults", "02_set_shapes", "03_fold_constants"]
    before = sorted(p.stem for p in (folder / "entry").glob("*.onnx"))
    assert before == ["01_flatten", "02_draw_from_input"]  # no state, one rank
    for path in folder.rglob("*.onnx"):
        if path.stem != "02_set_shapes":  # shapes are known again after the next pass
            onnx.checker.check_model(path, full_check=True)


def test_dumps_of_a_training_model_lead_from_its_entry_point_to_the_plan(tmp_path):
    model, dump = tmp_path / "train.onnx", tmp_path / "dump"
    tool.run("build", tool.ROOT / "tests/fixtures/mlp.onnx", "-o", model, "--optimizer", "sgd")
    tool.run("show", model, "--plan", "--dump-lowering", dump)
    assert sorted(p.stem for p in (dump / "step/entry").glob("*.txt")) == ["01_flatten", "02_draw_from_input", "03_read_states"]
    # The last one is what lowering begins with: states are inputs, sizes are open.
    last, first = ((dump / "step" / name).read_text() for name in ("entry/03_read_states.txt", "02_set_shapes.txt"))
    assert "float[batch,4] x" in last and 'float[16] "fc1.bias"' in last.split("=>")[0] and '"next/fc1.bias"' in last
    assert "float[1,4] x" in first
    # A pass runs alone on the dump before it.
    tool.run("opt", dump / "step/02_set_shapes.onnx", "-o", tmp_path / "after.txt", "--passes", "fold_constants")
    assert "depends" not in tool.run("opt", dump / "step/entry/03_read_states.onnx", "-o", "-", "--passes", "set_shapes", status=1)
