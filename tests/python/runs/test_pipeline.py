"""Stages of a pipeline, each a process: a run does not depend on their number but for rounding, where kernels that one
process fuses are cut between two."""

import re
import shutil
import signal
import time

import numpy as np
import onnx
import pytest
import reference
import tool
from onnx import helper
from test_ranks import peak_memory, start_ranks, wait_for_steps


def stages(count, pipelines=1):
    return ["--devices", ",".join(["cpu"] * count * pipelines), "--pipeline", count] if count > 1 else []


def fit(model, data, out, *options, batch=3):
    return "fit", model, "--data", data, "--batch-size", batch, "--lr", 0.01, "--seed", 5, "--out", out, *options


def weights(folder, name="last.onnx"):
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(folder / name).graph.initializer}


def same_metrics(one, other, rtol):
    lines = [[[line[key] for key in ("step", "epoch", "loss", "grad_norm")] for line in tool.metrics(folder)]
             for folder in (one, other)]  # fmt: skip
    np.testing.assert_allclose(lines[0], lines[1], rtol)


def same_runs(one, other, rtol=1e-5, atol=1e-6):
    same_metrics(one, other, rtol)
    values, others = weights(one), weights(other)
    assert values.keys() == others.keys()
    for name, value in values.items():
        if not name.startswith("state/") or "exp_avg" in name:
            np.testing.assert_allclose(others[name], value, rtol, atol, err_msg=name)


@pytest.fixture(scope="module")
def digits(exported, tmp_path_factory):
    """A network with batch norm and dropout; the last step of an epoch has one batch of one sample."""
    folder = tmp_path_factory.mktemp("digits")
    example, path = exported("cnn", dropout=0.3, train=True)
    data = {name: value[:-5] for name, value in reference.repeated(example, 9).items()}
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", "cross_entropy", "--accumulate", "--optimizer", "sgd(momentum=0.9)")
    return folder / "train.onnx", tool.save(folder / "data.npz", data)


@pytest.fixture(scope="module")
def alone(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    tool.run(*fit(*digits, out, "--epochs", 2, "--eval-data", digits[1], "--accumulate", 4))
    return out


def test_pipelines_add_up_once_a_step(digits, alone, tmp_path):
    options = "--epochs", 2, "--eval-data", digits[1], "--accumulate", 4, *stages(2, 2), "--reduction", "fast"
    assert "and add up gradients once a step" in tool.run(*fit(*digits, tmp_path / "run", *options))
    same_runs(alone, tmp_path / "run")


@pytest.mark.parametrize("count, pipelines", [(2, 1), (3, 1), (2, 2), (2, 3)])
def test_stages_train_as_one(digits, alone, tmp_path, count, pipelines):
    options = "--epochs", 2, "--eval-data", digits[1], "--accumulate", 4, *stages(count, pipelines)
    printed = tool.run(*fit(*digits, tmp_path / "run", *options))
    assert f"{count * pipelines} processes, stages " in printed and "through which the 4 batches of a step go" in printed
    assert f"of {pipelines} pipelines" in printed or pipelines == 1
    same_runs(alone, tmp_path / "run")


def test_a_run_goes_on_with_another_number_of_stages(digits, alone, tmp_path):
    options = "--eval-data", digits[1], "--accumulate", 4
    tool.run(*fit(*digits, tmp_path / "run", *options, "--epochs", 1, *stages(2)))
    tool.run(*fit(*digits, tmp_path / "run", *options, "--epochs", 2, "--resume", *stages(2, 2)))
    same_runs(alone, tmp_path / "run")


@pytest.mark.parametrize("name", ["gpt2", "bert", "dlrm", "lstm", "resnet18"])
def test_networks_train_as_one(exported, tmp_path, name):
    """Tied embeddings, running statistics, sparse updates."""
    example, path = exported(name)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, 4))
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", example.loss, "--accumulate")
    for run, ranks in {"one": (1,), "two": (2,), "mesh": (2, 2)}.items():
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--batch-size", 2, "--accumulate", 3, "--steps", 4,
                 "--out", tmp_path / run, *stages(*ranks))  # fmt: skip
    for run in "two", "mesh":
        same_runs(tmp_path / "one", tmp_path / run)


def digits_in_stages(folder, *options, rate=1e-3):
    model, data = tool.ROOT / "models/digits_cnn.onnx", tool.ROOT / "models/data/digits_test.npz"
    tool.run("build", model, "-o", folder / "train.onnx", "--loss", "cross_entropy", "--accumulate", *options)
    for count in 1, 2:
        tool.run("fit", folder / "train.onnx", "--data", data, "--steps", 5, "--accumulate", 4, "--batch-size", 7, "--lr", rate,
                 "--eval-data", data, "--out", folder / f"run{count}", *stages(count))  # fmt: skip
    return model, folder / "run1", folder / "run2"


@pytest.mark.parametrize("options", [("--lora", "rank=4,dropout=0.2"), ("--qat", "int8"), ("--ema", 0.9), ("--optimizer", "lamb"),
                                     ("--clip", 0.1)])  # fmt: skip
def test_what_training_models_have_else(tmp_path, options):
    _, one, two = digits_in_stages(tmp_path, *options)
    same_runs(one, two, 1e-5, 2e-6)


@pytest.mark.parametrize("precision, rounding", [("bf16", 2**-8), ("fp16", 2**-11)])
def test_stages_round_as_one_process_does(tmp_path, precision, rounding):
    """Products of other kernels round other sums. SGD turns that into weights as it is; Adam makes a whole step of a gradient
    near zero, whatever its rounding. A value is rounded on its way forward and once more on its way back through each of
    the network's four layers with weights: after steps of SGD, the weights are apart by no more than the rate times eight
    roundings of each gradient."""
    rate = 0.05
    model, one, two = digits_in_stages(tmp_path, "--precision", precision, "--optimizer", "sgd", rate=rate)
    same_metrics(one, two, 8 * rounding)
    names = {t.name for t in onnx.load(model).graph.initializer}
    values, others = weights(one), weights(two)
    trained = [name for name in names & values.keys() if values[name].dtype == np.float32 and "running" not in name]
    apart = np.sqrt(sum(np.square(values[name] - others[name]).sum() for name in trained))
    assert apart <= 8 * rounding * rate * sum(line["grad_norm"] for line in tool.metrics(one))


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Eight layers of 1024 x 1024, 4 MiB each."""
    folder = tmp_path_factory.mktemp("deep")
    rng = np.random.default_rng(0)
    weights = [helper.make_tensor(f"w{i}", 1, [1024, 1024], (rng.standard_normal((1024, 1024)) / 32).astype("f").tobytes(), raw=True)
               for i in range(8)]  # fmt: skip
    nodes = [node for i in range(8) for node in (helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"m{i}"]),
                                                 helper.make_node("Tanh", [f"m{i}"], [f"h{i + 1}"]))]  # fmt: skip
    value = lambda name: helper.make_tensor_value_info(name, 1, ["N", 1024])  # noqa: E731
    graph = helper.make_graph(nodes, "deep", [value("h0")], [value("h8")], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "m.onnx")
    tool.run("build", folder / "m.onnx", "-o", folder / "t.onnx", "--loss", "mse", "--accumulate")
    data = {"h0": rng.standard_normal((256, 1024)).astype("f"), "labels": rng.standard_normal((256, 1024)).astype("f")}
    return folder / "t.onnx", tool.save(folder / "d.npz", data)


def test_a_stage_has_the_memory_of_its_layers(deep, tmp_path):
    """Weights, moments and sums of gradients: 128 MiB, of which each of four stages has two layers' 32 MiB."""
    peaks = {}
    for count in 1, 4:
        processes = start_ranks(fit(*deep, tmp_path / str(count), "--accumulate", 4, "--steps", 3, *stages(count)[2:]), count)
        peaks[count] = peak_memory(processes)
        assert [p.wait() for p in processes] == [0] * count
    for rank in 1, 2, 3:  # rank 0 has a copy of all states, to be written
        assert peaks[1][0][1] - peaks[4][rank][1] > 0.8 * 96, peaks


def test_a_small_budget_computes_again_and_receives_once(deep, tmp_path):
    options = "--accumulate", 4, "--steps", 2
    tool.run(*fit(*deep, tmp_path / "one", *options, batch=64))
    printed = tool.run(*fit(*deep, tmp_path / "two", *options, *stages(2), "--memory", "31MB", batch=64))
    assert re.search(r"recomputed: \d+ nodes", printed) and "Receive" not in printed, printed
    same_runs(tmp_path / "one", tmp_path / "two")


def test_what_a_pipeline_cannot_be(digits, tmp_path):
    model, data = digits
    cases = [
        ((*stages(2)[:2], "--pipeline", 3), "--pipeline 3 takes 3 processes, one for each stage, or a multiple, and there are 2"),
        (("--pipeline", 2), "--pipeline is for several processes"),
        ((*stages(2), "--zero", 1), "leave out --zero"),
        ((*stages(2), "--sync-batch-norm"), "leave out --sync-batch-norm"),
    ]
    for options, message in cases:
        printed = tool.run(*fit(model, data, tmp_path / "run", "--steps", 1, "--accumulate", 2, *options), status=2)
        assert message in printed and len([line for line in printed.splitlines() if "rank" not in line[:5]]) <= 1, printed
    printed = tool.run(*fit(model, data, tmp_path / "run", "--steps", 1, "--accumulate", 2, *stages(9)), status=1)
    assert "the model's layers with weights make" in printed
    assert not (tmp_path / "run").exists()


def test_a_stage_with_an_older_checkpoint_does_not_begin(digits, tmp_path):
    def run(out, steps, *options):
        return fit(*digits, out, "--accumulate", 4, "--steps", steps, *options)

    tool.run(*run(tmp_path / "new", 2))
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    tool.run(*run(tmp_path / "new", 3, "--resume"))
    each = [run(tmp_path / name, 5, "--resume", "--pipeline", 2) for name in ("new", "old")]
    processes = start_ranks(each, 2)
    errors = [p.communicate(timeout=tool.PATIENCE)[1] for p in processes]
    assert [p.returncode for p in processes] == [1, 1] and "rank 1 has other steps behind it than rank 0" in errors[0], errors
    assert "step 3" in tool.run(*run(tmp_path / "new", 3, "--resume", *stages(2)))


def test_data_for_an_input_with_a_default_is_that_of_each_micro_batch(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[batch, 4] x, float[batch, 4] shift) => (float[batch, 3] y)
        <float[4, 8] a, float[8, 3] b> { s = Add (x, shift)  h = MatMul (s, a)  r = Tanh (h)  y = MatMul (r, b) }""")
    random = np.random.default_rng(0)
    del model.graph.value_info[:]
    for name, shape in ("a", (4, 8)), ("b", (8, 3)), ("shift", (1, 4)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "model.onnx")
    arrays = {"x": random.normal(size=(12, 4)), "shift": random.normal(size=(12, 4)), "labels": random.integers(0, 3, 12)}
    arrays = {name: value.astype(np.float32) if value.dtype == float else value for name, value in arrays.items()}
    data = tool.save(tmp_path / "data.npz", arrays)
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--accumulate")
    for count in 1, 2:
        tool.run(*fit(tmp_path / "train.onnx", data, tmp_path / f"run{count}", "--accumulate", 4, "--steps", 3, *stages(count)))
    same_runs(tmp_path / "run1", tmp_path / "run2")


def test_a_stage_that_is_killed_ends_all(deep, tmp_path):
    for victim, count in (0, 3), (1, 2), (2, 3), (3, 2):
        out = tmp_path / f"run{victim}"
        options = "--accumulate", 4, "--steps", 10000, "--checkpoint-every", 2, *stages(count)[2:]
        processes = start_ranks(fit(*deep, out, *options), 3 if count == 3 else 4)
        wait_for_steps(out, 3, processes)
        processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        errors = [p.communicate(timeout=tool.PATIENCE)[1] for p in processes]
        assert time.monotonic() - killed < 10
        for rank, process in enumerate(processes):
            if rank != victim:
                assert process.returncode == 1 and errors[rank].count("\n") == 1, errors
                assert re.search(rf"rank {victim} \((127.0.0.1|::1)\) is gone", errors[rank]), errors
        assert (out / "last.onnx").exists()
