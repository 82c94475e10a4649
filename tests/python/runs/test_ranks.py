"""Several processes train as one does: no bit of a run depends on their number."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
import tool
from onnx import helper

BIN = Path(sys.executable).parent


def devices(ranks):
    return ["--devices", ",".join(["cpu"] * ranks)] if ranks > 1 else []


def fit(model, data, out, *options):
    return "fit", model, "--data", data, "--batch-size", 3, "--accumulate", 4, "--lr", 0.01, "--seed", 5, "--out", out, \
        *options  # fmt: skip


@pytest.fixture(scope="module")
def digits(exported, tmp_path_factory):
    """A network with batch norm and dropout; the last step of an epoch has one batch of one sample."""
    folder = tmp_path_factory.mktemp("digits")
    example, path = exported("cnn", dropout=0.3, train=True)
    data = {name: value[:-5] for name, value in reference.repeated(example, 9).items()}
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", "cross_entropy", "--accumulate", "--clip", 1)
    return folder / "train.onnx", tool.save(folder / "data.npz", data)


@pytest.fixture(scope="module")
def alone(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    tool.run(*fit(*digits, out, "--epochs", 2, "--eval-data", digits[1]))
    return out


def same_files(one, other):
    for name in "last.onnx", "best.onnx":
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    keep = "step", "epoch", "samples", "loss", "accuracy", "grad_norm"
    lines = [[{key: line.get(key) for key in keep} for line in tool.metrics(folder)] for folder in (one, other)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_ranks_change_no_bit(digits, alone, tmp_path, ranks):
    printed = tool.run(*fit(*digits, tmp_path / "run", "--epochs", 2, "--eval-data", digits[1], *devices(ranks)))
    assert f"{ranks} processes share out the 4 batches of a step" in printed
    same_files(alone, tmp_path / "run")


@pytest.mark.parametrize("name", ["gpt2", "dlrm", "lstm", "resnet18"])
def test_networks_change_no_bit(exported, tmp_path, name):
    example, path = exported(name)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, 4))
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", example.loss, "--accumulate")
    batch = len(next(iter(example.data.values()))) // 2 if hasattr(example, "data") else 2
    for ranks in 1, 2:
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--batch-size", max(batch, 1), "--accumulate", 2, "--steps", 4,
                 "--out", tmp_path / f"run{ranks}", *devices(ranks))  # fmt: skip
    same_files(tmp_path / "run1", tmp_path / "run2")


def test_batch_norm_is_synchronized_where_asked(exported, tmp_path):
    """ResNet-18: two batches of two rows on two ranks are one batch of four."""
    example, path = exported("resnet18", train=True)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, 4))
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", example.loss, "--accumulate", "--optimizer", "sgd(momentum=0.9)")
    options = "--steps", 3, "--lr", 0.01, "--no-shuffle"
    runs = {"one": (4, 1, ()), "two": (2, 2, ("--sync-batch-norm", *devices(2)))}
    for name, (batch, accumulate, more) in runs.items():
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--batch-size", batch, "--accumulate", accumulate, *options,
                 *more, "--out", tmp_path / name)  # fmt: skip
    one, two = ({t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / run / "last.onnx").graph.initializer}
                for run in runs)  # fmt: skip
    assert any("running_var" in name for name in one)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert "several processes" in tool.run("fit", tmp_path / "train.onnx", "--data", data, "--sync-batch-norm", "--out",
                                           tmp_path / "none", status=2)  # fmt: skip


def test_a_forward_model_is_built_for_ranks(tmp_path):
    model, data = tool.ROOT / "models/digits_cnn.onnx", tool.ROOT / "models/data/digits_test.npz"
    printed = tool.run("fit", model, "--data", data, "--steps", 3, "--out", tmp_path / "two", *devices(2))
    assert "--accumulate" in printed
    tool.run("fit", model, "--data", data, "--steps", 3, "--out", tmp_path / "one", "--accumulate", 2)
    same_files(tmp_path / "one", tmp_path / "two")
    tool.run("fit", model, "--data", data, "--steps", 5, "--out", tmp_path / "two", "--resume")
    tool.run("fit", model, "--data", data, "--steps", 5, "--out", tmp_path / "one", "--resume", *devices(2))
    same_files(tmp_path / "one", tmp_path / "two")


# ---- Shared out states


@pytest.mark.parametrize("ranks", [2, 3])
def test_shared_out_states_of_the_optimizer_change_no_bit(digits, alone, tmp_path, ranks):
    options = "--epochs", 2, "--eval-data", digits[1]
    tool.run(*fit(*digits, tmp_path / "run", *options, "--zero", 1, *devices(ranks)))
    same_files(alone, tmp_path / "run")
    for start, end in ((ranks, 1), (1, ranks)):  # a run that is begun with one number of ranks ends with another
        run = tmp_path / f"{start} to {end}"
        tool.run(*fit(*digits, run, "--epochs", 1, "--eval-data", digits[1], "--zero", 1, *devices(start)))
        tool.run(*fit(*digits, run, *options, "--resume", "--zero", 1, *devices(end)))
        same_files(alone, run)


@pytest.mark.parametrize("name", ["gpt2", "dlrm", "lstm"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_networks_with_shared_out_states(exported, tmp_path, name, stage):
    example, path = exported(name)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, 4))
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", example.loss, "--accumulate")
    for ranks in 1, 3:
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--batch-size", 2, "--accumulate", 3, "--steps", 4, "--out",
                 tmp_path / f"run{ranks}", "--zero", stage, *devices(ranks))  # fmt: skip
    if stage == 1:
        return same_files(tmp_path / "run1", tmp_path / "run3")
    one, three = ({t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / run / "last.onnx").graph.initializer}
                  for run in ("run1", "run3"))  # fmt: skip
    for weight, value in one.items():
        np.testing.assert_allclose(three[weight], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stage", [0, 1])
def test_gradients_that_travel_once_a_step(exported, digits, tmp_path, stage):
    """The order of sums is another one; the last step of an epoch has one batch, so that some ranks have none. SGD, since
    Adam makes steps of one size of the rounding of gradients that are 0, as of biases before batch normalization."""
    _, path = exported("cnn", dropout=0.3, train=True)
    model = tmp_path / "train.onnx"
    tool.run("build", path, "-o", model, "--loss", "cross_entropy", "--accumulate", "--optimizer", "sgd(momentum=0.9)")
    runs = {}
    for ranks in 1, 2, 3:
        options = ("--reduction", "fast", "--zero", stage, *devices(ranks)) if ranks > 1 else ()
        printed = tool.run(*fit(model, digits[1], tmp_path / str(ranks), "--epochs", 2, "--eval-data", digits[1], *options))
        assert ("add up gradients once a step" in " ".join(printed.split())) == (ranks > 1)
        last = onnx.load(tmp_path / str(ranks) / "last.onnx")
        runs[ranks] = {t.name: onnx.numpy_helper.to_array(t) for t in last.graph.initializer}
    for ranks in 2, 3:
        assert runs[ranks].keys() == runs[1].keys()
        for name, value in runs[1].items():
            np.testing.assert_allclose(runs[ranks][name], value, rtol=1e-5, atol=1e-5, err_msg=name)
        losses = [[line["loss"] for line in tool.metrics(tmp_path / run)] for run in ("1", str(ranks))]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def peak_memory(processes):
    """Of each process: the most resident memory, as long as it runs, and the most of it without mapped files."""
    peaks = [[0, 0] for _ in processes]
    while any(p.poll() is None for p in processes):
        for peak, p in zip(peaks, processes):
            try:
                status = Path(f"/proc/{p.pid}/status").read_text()
            except OSError:
                continue
            for i, name in enumerate(("VmHWM", "RssAnon")):
                found = re.search(rf"{name}:\s+(\d+) kB", status)
                peak[i] = max(peak[i], int(found[1]) / 1024 if found else 0)
        time.sleep(0.01)
    return peaks


def build_deep_model(folder):
    """Eight layers of 1024 x 1024, 4 MiB each, as t.onnx, and their data, d.npz."""
    rng = np.random.default_rng(0)
    weights = [helper.make_tensor(f"w{i}", 1, [1024, 1024], (rng.standard_normal((1024, 1024)) / 32).astype("f").tobytes(), raw=True)
               for i in range(8)]  # fmt: skip
    nodes = [helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(8)]
    value = lambda name: helper.make_tensor_value_info(name, 1, ["N", 1024])  # noqa: E731
    graph = helper.make_graph(nodes, "deep", [value("h0")], [value("h8")], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "m.onnx")
    tool.run("build", folder / "m.onnx", "-o", folder / "t.onnx", "--loss", "mse", "--accumulate")
    data = {"h0": rng.standard_normal((16, 1024)).astype("f"), "labels": rng.standard_normal((16, 1024)).astype("f")}
    tool.save(folder / "d.npz", data)


def test_shared_out_states_take_one_copy_in_all(tmp_path):
    """Eight layers of 1024 x 1024, 4 MiB each: Adam's moments and the sums of gradients take 96 MiB on one rank."""
    build_deep_model(tmp_path)
    peaks = {}
    for stage in 0, 1, 2, 3:
        command = "fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--batch-size", 2, "--accumulate", 4, "--steps", 4, \
            "--zero", stage, "--out", tmp_path / str(stage)  # fmt: skip
        processes = start_ranks(command, 4)
        peaks[stage] = peak_memory(processes)
        assert [p.wait() for p in processes] == [0] * 4
        (total,) = re.findall(r"^ *total +([\d.]+) MiB", processes[0].stdout.read(), re.M)
        assert peaks[stage][0][0] == pytest.approx(float(total), rel=0.05)  # rank 0 has a copy of all states, to be written
    for rank in 1, 2, 3:
        none, moments, sums, weights = (peaks[stage][rank][1] for stage in (0, 1, 2, 3))
        assert none - moments > 0.9 * 64 * 3 / 4, peaks
        assert moments - sums > 0.9 * 32 * 3 / 4, peaks
        assert sums - weights > 0.9 * 32 * 3 / 4 - 2 * 4, peaks  # two layers are received


# ---- Launchers


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_ranks(arguments, ranks):
    """As torchrun's variables say, without its store. A list has the arguments of each rank."""
    each = arguments if isinstance(arguments, list) else [arguments] * ranks
    port = free_port()
    environments = [{"RANK": str(r), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": str(ranks),
                     "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
                    for r in range(ranks)]  # fmt: skip
    return [subprocess.Popen([tool.COMMAND, *map(str, own)], env=os.environ | environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for own, environment in zip(each, environments)]  # fmt: skip


def test_variables_of_a_launcher(digits, alone, tmp_path):
    processes = start_ranks(fit(*digits, tmp_path / "run", "--epochs", 2, "--eval-data", digits[1]), 2)
    outputs = [p.communicate(timeout=tool.PATIENCE) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert "2 processes" in outputs[0][0] and outputs[1] == ("", "")  # rank 0 alone prints
    same_files(alone, tmp_path / "run")


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_launchers(digits, alone, tmp_path, launcher):
    if not (BIN / launcher).exists():
        pytest.skip(f"{launcher} is not installed")
    command = {"torchrun": [BIN / "torchrun", "--nproc-per-node", "2", "--master-port", free_port(), "--no-python"],
               "mpirun": [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]}[launcher]  # fmt: skip
    probe = subprocess.run([*map(str, command), "true"], capture_output=True, text=True, timeout=tool.PATIENCE)
    if probe.returncode != 0:
        pytest.skip(f"{launcher} starts no processes here: {probe.stderr.strip()[-200:]}")
    arguments = [*command, tool.COMMAND, *fit(*digits, tmp_path / "run", "--epochs", 2, "--eval-data", digits[1])]
    done = subprocess.run([*map(str, arguments)], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          timeout=tool.PATIENCE)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    same_files(alone, tmp_path / "run")


def test_options_that_ranks_cannot_share(digits, tmp_path):
    model, data = digits
    for options, message in [(("--lr", "auto"), "--lr auto is for one process"),
                             (("--device", "async_host"), "leave out --device")]:
        printed = tool.run("fit", model, "--data", data, "--steps", 1, "--out", tmp_path / "run", *devices(2), *options, status=2)
        assert message in printed and printed.count("\n") == 1
    printed = tool.run("fit", model, "--data", data, "--steps", 1, "--out", tmp_path / "run", "--devices", "cpu,cuda", status=2)
    assert "all on GPUs" in printed
    assert not (tmp_path / "run").exists()


def test_processes_end_at_once(digits, tmp_path):
    model, data = digits

    def seconds(ranks):
        begin = time.monotonic()
        tool.run("fit", model, "--data", data, "--steps", 2, "--accumulate", 2, "--out", tmp_path / "run", "--overwrite", *devices(ranks))
        return time.monotonic() - begin

    assert min(seconds(2) - seconds(1) for _ in range(4)) < 0.9


def test_a_rehearsal_and_the_largest_batch_of_all_ranks(digits, tmp_path):
    model, data = digits
    printed = tool.run("fit", model, "--data", data, "--steps", 2, "--out", tmp_path / "run", *devices(2), "--dry-run")
    assert "Nothing was written" in printed and not (tmp_path / "run").exists()

    rng = np.random.default_rng(0)
    weights = [helper.make_tensor(name, 1, shape, rng.standard_normal(shape).astype("f").tobytes(), raw=True)
               for name, shape in (("a", (8, 8192)), ("b", (8192, 8)))]  # fmt: skip
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]),
             helper.make_node("MatMul", ["t", "b"], ["y"])]  # fmt: skip
    value = lambda name: helper.make_tensor_value_info(name, 1, ["N", 8])  # noqa: E731
    graph = helper.make_graph(nodes, "wide", [value("x")], [value("y")], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    tool.run("build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--loss", "mse", "--accumulate")
    tool.save(tmp_path / "d.npz", {name: rng.standard_normal((8000, 8)).astype("f") for name in ("x", "labels")})
    found = []
    for ranks in 1, 2:
        printed = tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--batch-size", "auto", "--memory-limit", "150MB",
                           "--accumulate", 2, "--steps", 2, "--out", tmp_path / f"run{ranks}", *devices(ranks))  # fmt: skip
        found.append(int(re.search(r"batches of (\d+)", printed)[1]))
    # Each process times the forms of the nodes, which need more memory or less, and all take the smallest batch.
    assert 200 < found[1] < 4000 and found[1] == pytest.approx(found[0], rel=0.25)


@pytest.mark.parametrize("options", [("--qat", "int8"), ("--precision", "bf16", "--swa", 2), ("--lora", "rank=4,dropout=0.2")])
def test_what_batches_change_is_changed_in_their_order(tmp_path, options):
    """Ranges of integers, averages, keys of dropout."""
    model, data = tool.ROOT / "models/digits_cnn.onnx", tool.ROOT / "models/data/digits_test.npz"
    tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--accumulate", *options)
    for ranks in 1, 3:
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 5, "--accumulate", 4, "--batch-size", 7,
                 "--out", tmp_path / f"run{ranks}", *devices(ranks))  # fmt: skip
    same_files(tmp_path / "run1", tmp_path / "run3")


def test_batches_that_would_wait_for_each_other_are_refused(tmp_path):
    """The scales of 8-bit floats follow from the batches before."""
    model, data = tool.ROOT / "models/digits_cnn.onnx", tool.ROOT / "models/data/digits_test.npz"
    tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--accumulate", "--precision", "fp8")
    printed = tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 1, "--out", tmp_path / "run", *devices(2), status=1)
    assert "'state/fp8/magnitudes', which each batch changes" in printed


# ---- Failures


@pytest.mark.parametrize("ranks, victims", [(3, 1), (3, 2)])
def test_an_elastic_run_goes_on_without_a_killed_process(digits, tmp_path, ranks, victims):
    run = "--steps", 400, "--checkpoint-every", 5
    tool.run(*fit(*digits, tmp_path / "alone", *run))
    out = tmp_path / "run"
    process = tool.start(*fit(*digits, out, *run, "--elastic", *devices(ranks)))
    for victim in range(victims):
        wait_for_steps(out, 20 + 60 * victim, [process])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        while process.poll() is None and children[-1] in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
            time.sleep(0.05)
    output, errors = process.communicate(timeout=tool.PATIENCE)
    assert process.returncode == 0, errors
    for left in range(ranks - 1, ranks - 1 - victims, -1):
        assert re.search(rf"rank \d .* is gone: .*; the run goes on from its last checkpoint with {left} process", errors), errors
    same_files(tmp_path / "alone", out)


def test_what_elastic_is_not_for(digits, tmp_path):
    for options, message in (
        ((), "is for the processes of --devices"),
        ((*devices(2), "--pipeline", 2), "with --pipeline a run needs its number of processes"),
        ((*devices(2), "--sync-batch-norm"), "with --sync-batch-norm a run needs"),
    ):
        assert message in tool.run(*fit(*digits, tmp_path / "run", "--steps", 1, "--elastic", *options), status=2)


def test_ranks_with_other_files_do_not_begin(digits, exported, tmp_path):
    model, data = digits
    arrays = tool.load(data)
    other = tool.save(tmp_path / "other.npz", {name: value[::-1] for name, value in arrays.items()})
    port = free_port()
    processes = []
    for rank, file in enumerate([data, other]):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        processes.append(subprocess.Popen(
            [tool.COMMAND, *map(str, fit(model, file, tmp_path / "run", "--steps", 2))], env=os.environ | environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip
    errors = [p.communicate(timeout=tool.PATIENCE)[1] for p in processes]
    assert [p.returncode for p in processes] == [1, 1]
    assert "rank 1 has other settings or data than rank 0" in errors[0], errors
    assert not (tmp_path / "run").exists()


def test_a_bad_label_ends_all_ranks_with_its_place(digits, tmp_path):
    model, data = digits
    arrays = tool.load(data)
    name = next(n for n in arrays if arrays[n].dtype == np.int64)
    arrays[name][5] = 1000
    bad = tool.save(tmp_path / "bad.npz", arrays)
    processes = start_ranks(fit(model, bad, tmp_path / "run", "--steps", 5, "--no-data-check", "--no-shuffle"), 2)
    errors = [p.communicate(timeout=tool.PATIENCE)[1] for p in processes]
    assert [p.returncode for p in processes] == [1, 1]
    assert "1000" in errors[1] and "rank 1 has ended: " in errors[0] and "1000" in errors[0], errors


def wait_for_steps(folder, steps, processes):
    end = time.monotonic() + tool.PATIENCE
    while time.monotonic() < end and all(p.poll() is None for p in processes):
        if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= steps:
            return
        time.sleep(0.01)


def same_weights(one, other):
    """The same bits, in one file or in those of ranks."""
    states = []
    for path in one, other:
        model = onnx.load(path, load_external_data=False)
        graphs = [model.graph, *(info.algorithm for info in model.training_info)]
        states.append({t.name: onnx.numpy_helper.to_array(t, str(path.parent)) for graph in graphs for t in graph.initializer})
    assert states[0].keys() == states[1].keys()
    assert [name for name in states[0] if states[0][name].tobytes() != states[1][name].tobytes()] == []


@pytest.mark.parametrize("sharing", [(), ("--zero", 1, "--checkpoint-shards", "on")], ids=["one file", "shards"])
def test_kills_lose_no_checkpoint_and_name_the_rank(digits, tmp_path, request, sharing):
    """A random rank is killed at a random moment, again and again, and the run goes on with another number of ranks."""
    kills, rng = request.config.getoption("--kills"), random.Random(3)
    whole = tmp_path / "whole"
    steps = 12 * kills
    options = ("--steps", steps, "--checkpoint-every", 1)
    tool.run(*fit(*digits, whole, *options))
    out = tmp_path / "run"
    at = -1  # the step of the checkpoint before
    for kill in range(kills):
        ranks = 2 + kill % 3
        resume = ["--resume"] if (out / "last.onnx").exists() else []
        if resume:
            properties = {p.key: p.value for p in onnx.load(out / "last.onnx", load_external_data=False).metadata_props}
            before, at = at, json.loads(properties["onnx_train.checkpoint"])["step"]
            assert at >= before
            tool.run("show", out / "last.onnx")  # which compares the checksums
        assert not (at >= 0 and not resume)
        done = len(tool.metrics(out)) if resume else 0
        processes = start_ranks(fit(*digits, out, *options, *resume, *sharing), ranks)
        # A rank that is gone before it has connected is waited for.
        wait_for_steps(out, max(6 * (kill + 1), done + 1), processes)
        time.sleep(rng.random() * 0.05)
        victim = rng.randrange(ranks)
        running = processes[victim].poll() is None
        processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        errors = [p.communicate(timeout=tool.PATIENCE)[1] for p in processes]
        assert time.monotonic() - killed < 10
        if not running or all(p.returncode == 0 for i, p in enumerate(processes) if i != victim):
            continue  # the run had ended
        for rank, process in enumerate(processes):
            if rank != victim:
                assert process.returncode == 1 and errors[rank].count("\n") == 1, errors
                assert re.search(rf"rank {victim} \((127.0.0.1|::1)\) is gone", errors[rank]), errors
    tool.run(*fit(*digits, out, *options, *(["--resume"] if (out / "last.onnx").exists() else []), *devices(rng.choice([1, 2, 3, 4])),
                  *sharing))  # fmt: skip
    same_weights(whole / "last.onnx", out / "last.onnx")
    assert sharing or (whole / "last.onnx").read_bytes() == (out / "last.onnx").read_bytes()
    # What killed processes were writing is gone.
    assert len(list(out.glob("step-*"))) <= (2 if sharing else 0) and not list(out.glob("step-*/.*"))


def test_ctrl_c_stops_all_after_the_same_step(digits, tmp_path):
    out = tmp_path / "run"
    whole = tmp_path / "whole"
    tool.run(*fit(*digits, whole, "--steps", 60))
    process = tool.start(*fit(*digits, out, "--steps", 60, "--checkpoint-every", 5), *devices(2))
    wait_for_steps(out, 4, [process])
    process.send_signal(signal.SIGINT)  # to one process alone
    output, errors = process.communicate(timeout=tool.PATIENCE)
    assert process.returncode == 130, output + errors
    tool.run(*fit(*digits, out, "--steps", 60, "--resume"))
    assert (whole / "last.onnx").read_bytes() == (out / "last.onnx").read_bytes()
