"""Each rank writes its shard of a checkpoint: the files together are what one process writes, for every command, and
nothing collects the states."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
import tool
from onnx import numpy_helper
from test_ranks import build_deep_model, devices, fit, free_port, peak_memory, start_ranks

WAYS = {"zero 1": (3, "--zero", 1), "zero 2": (2, "--zero", 2), "zero 3": (3, "--zero", 3), "stages": (2, "--pipeline", 2),
        "two pipelines": (4, "--pipeline", 2)}  # fmt: skip
ON = "--checkpoint-shards", "on"


def state(path):
    """What a file holds, also what onnx.load leaves in the files of ranks: initializers of algorithms."""
    model = onnx.load(path, load_external_data=False)
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    return {t.name: numpy_helper.to_array(t, base_dir=str(Path(path).parent)) for graph in graphs for t in graph.initializer}


def same_state(one, other):
    a, b = state(one), state(other)
    assert a.keys() == b.keys()
    assert [name for name in a if a[name].tobytes() != b[name].tobytes()] == []


def shards(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.glob("step-*/*"))


@pytest.fixture(scope="module")
def digits(exported, tmp_path_factory):
    """A network with batch norm and dropout, in which nothing clips: no way of sharing changes a bit."""
    folder = tmp_path_factory.mktemp("digits")
    example, path = exported("cnn", dropout=0.3, train=True)
    data = {name: value[:-5] for name, value in reference.repeated(example, 9).items()}
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", "cross_entropy", "--accumulate")
    return folder / "train.onnx", tool.save(folder / "data.npz", data)


@pytest.fixture(scope="module")
def runs(digits, tmp_path_factory):
    """One epoch in each way, with shards."""
    folder = tmp_path_factory.mktemp("runs")
    for name, (ranks, *options) in WAYS.items():
        tool.run(*fit(*digits, folder / name, "--epochs", 1, "--eval-data", digits[1], *devices(ranks), *options, *ON))
    return folder


@pytest.mark.parametrize("name", WAYS)
def test_shards_are_what_rank_0_would_have_collected(digits, runs, tmp_path, name):
    ranks, *options = WAYS[name]
    tool.run(*fit(*digits, tmp_path / "off", "--epochs", 1, "--eval-data", digits[1], *devices(ranks), *options))
    run = runs / name
    for file in "last.onnx", "best.onnx":
        same_state(tmp_path / "off" / file, run / file)
    assert len(shards(run)) == ranks and not list(run.glob(".*"))
    assert not list((tmp_path / "off").glob("step-*"))  # one file is the default for what fits into it


@pytest.mark.parametrize("name", ["zero 1", "zero 3", "stages"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_goes_on(digits, runs, tmp_path, name, ranks):
    """Each with shards, or without; and the files of the checkpoints before are gone."""
    run = tmp_path / "run"
    whole = runs / f"{name} in all"
    options = "--epochs", 2, "--eval-data", digits[1]
    if not whole.exists():
        way = WAYS[name]
        tool.run(*fit(*digits, whole, *options, *devices(way[0]), *way[1:]))
    shutil.copytree(runs / name, run)
    sharing = ("--zero", 1) if ranks % 2 else ("--pipeline", 2)
    printed = tool.run(*fit(*digits, run, *options, "--resume", *devices(ranks), *(sharing if ranks > 1 else ()),
                            *(ON if ranks > 2 else ())))  # fmt: skip
    assert "resumed from last.onnx" in printed
    a, b = state(whole / "last.onnx"), state(run / "last.onnx")
    for weight, value in a.items():
        np.testing.assert_allclose(b[weight], value, rtol=1e-5, atol=1e-6, err_msg=weight)
    used = {Path(location).parent.name for file in ("last.onnx", "best.onnx") for location in locations(run / file)}
    assert {path.name for path in run.glob("step-*")} == used


def locations(path):
    model = onnx.load(path, load_external_data=False)
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    return {entry.value for graph in graphs for t in graph.initializer for entry in t.external_data if entry.key == "location"}


def test_every_command_reads_them(digits, runs, tmp_path):
    """And PyTorch's and ONNX's readers of external data."""
    run, whole = runs / "zero 3", tmp_path / "whole"
    model, data = digits
    tool.run(*fit(*digits, whole, "--epochs", 1, "--eval-data", data, *devices(3), "--zero", 3))
    printed = [tool.run("eval", folder / "last.onnx", "--data", data, "--json") for folder in (run, whole)]
    assert json.loads(printed[0])["loss"] == json.loads(printed[1])["loss"]
    for command in "show", "check":
        tool.run(command, run / "last.onnx")
    for suffix in "onnx", "safetensors":
        for folder in run, whole:
            tool.run("export", folder / "last.onnx", "-o", tmp_path / f"{folder.name}.{suffix}")
        assert (tmp_path / f"zero 3.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    inputs = {"x": tool.load(data)[next(n for n in tool.load(data) if n != "labels")][:4]}
    name = onnx.load(model).graph.input[0].name
    outputs = []
    for folder in run, whole:
        tool.run("predict", folder / "last.onnx", "--inputs", tool.save(tmp_path / "x.npz", {name: inputs["x"]}), "-o", tmp_path / "y.npz")
        outputs.append(next(iter(tool.load(tmp_path / "y.npz").values())))
        outputs.append(tool.session(folder / "last.onnx").run(None, {name: inputs["x"]})[0])
    np.testing.assert_array_equal(outputs[0], outputs[2])
    np.testing.assert_allclose(outputs[1], outputs[3], rtol=1e-6)
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(run / "last.onnx").graph.initializer}
    assert weights and all(value.tobytes() == state(whole / "last.onnx")[key].tobytes() for key, value in weights.items())


def test_a_file_that_is_missing_or_short_is_one_line(digits, runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "zero 3", run)
    (shard,) = [path for path in run.glob("step-*/rank-1.data")]
    name = str(shard.relative_to(run))
    os.truncate(shard, 1000)
    resume = fit(*digits, run, "--epochs", 2, "--eval-data", digits[1], "--resume")
    for expected in (rf"outside of '{name}', which has 1000 bytes; is the file truncated\? Copy it again \[OT1003\]$",
                     rf"external data file '{name}': No such file or directory; copy it with the model, .* \[OT1004\]$"):  # fmt: skip
        for command in resume, ("eval", run / "last.onnx", "--data", digits[1]):
            printed = tool.run(*command, status=1)
            assert printed.count("\n") == 1 and re.search(expected, printed, re.M), printed
        printed = tool.run(*resume, *devices(2), "--zero", 3, status=1)
        assert re.search(expected, printed, re.M), printed
        shard.unlink(missing_ok=True)


def test_ranks_that_see_other_folders_say_so(digits, tmp_path):
    """As on machines that share no file system: rank 0 collects."""
    command = "--epochs", 1, "--zero", 2, *ON
    processes = start_ranks([fit(*digits, tmp_path / f"machine{r}" / "run", *command) for r in (0, 1)], 2)
    outputs = [p.communicate(timeout=tool.PATIENCE) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert "not all ranks see" in outputs[0][0] + outputs[0][1] and outputs[1] == ("", "")
    assert "rank 0 collects the states" in " ".join((outputs[0][0] + outputs[0][1]).split())
    run = tmp_path / "machine0" / "run"
    assert not shards(run) and not locations(run / "last.onnx")
    tool.run("eval", run / "last.onnx", "--data", digits[1])


def test_rank_0_needs_no_memory_for_a_copy(tmp_path):
    """Eight layers of 1024 x 1024, 4 MiB each: with Adam and three ranks a checkpoint has 128 MiB."""
    build_deep_model(tmp_path)
    peaks = {}
    for shards_written in "off", "on":
        command = "fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--batch-size", 2, "--accumulate", 4, "--steps", 4, \
            "--checkpoint-every", 2, "--zero", 3, "--checkpoint-shards", shards_written, "--out", tmp_path / shards_written  # fmt: skip
        processes = start_ranks(command, 4)
        peaks[shards_written] = [anonymous for _, anonymous in peak_memory(processes)]
        assert [p.wait() for p in processes] == [0] * 4
        (saved,) = re.findall(r"^ *the state, while it is saved +([\d.]+) MiB", processes[0].stdout.read(), re.M)
        # Four states of 32 MiB: rank 0 has all of them, or a quarter.
        assert float(saved) == pytest.approx(128 if shards_written == "off" else 32, rel=0.02)
    print("MiB of each rank without mapped files:", peaks)
    assert peaks["off"][0] - peaks["on"][0] > 0.9 * 96, peaks
    assert max(peaks["on"]) - min(peaks["on"]) < 16, peaks
    same_state(tmp_path / "off" / "last.onnx", tmp_path / "on" / "last.onnx")


def test_a_call_that_fails_on_a_rank_ends_all_and_loses_no_checkpoint(digits, tmp_path):
    """A full disk, whichever call of rank 1 meets it; see test_failing_calls.py."""
    library, log, run = tool.BUILD / "tests" / "libfailing_calls.so", tmp_path / "calls", tmp_path / "run"
    command = fit(*digits, run, "--steps", 6, "--checkpoint-every", 2, "--zero", 2, *ON)

    def start(number, *more):
        port = free_port()
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        failing = {"LD_PRELOAD": str(library), "FAILING_CALLS_BELOW": str(run), "FAILING_CALLS_NUMBER": str(number),
                   "FAILING_CALLS_AS": "ENOSPC", "FAILING_CALLS_LOG": str(log)}  # fmt: skip
        processes = [subprocess.Popen([tool.COMMAND, *map(str, [*command, *more])], text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, env=os.environ | common | {"RANK": str(r)} | (failing if r else {}))
                     for r in (0, 1)]  # fmt: skip
        errors = [p.communicate(timeout=tool.PATIENCE)[1] for p in processes]
        return [p.returncode for p in processes], errors

    assert start(-1) == ([0, 0], ["", ""])
    expected = state(run / "last.onnx")
    calls = [line.split()[1:] for line in log.read_text().splitlines()]
    writing = [i for i, (name, path) in enumerate(calls) if name in ("mkostemp", "write", "fsync", "rename") and ".data" in path]
    assert len(writing) >= 12
    for number in writing[:: max(1, len(writing) // 6)]:
        shutil.rmtree(run)
        log.unlink()
        status, errors = start(number)
        assert status == [1, 1] and [text.count("\n") for text in errors] == [1, 1], (calls[number], errors)
        assert "No space left on device" in errors[1] and "rank 1 has ended: " in errors[0], errors
        if (run / "last.onnx").exists():
            tool.run("show", run / "last.onnx")  # which compares the checksums
        assert start(-1, "--resume")[0] == [0, 0]
        found = state(run / "last.onnx")
        assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
        assert len(list(run.glob("step-*"))) <= 2 and not list(run.glob("step-*/.*"))


def test_python_trains_with_shards_and_goes_on(tmp_path):
    program = f"""
        import sys
        sys.path[:0] = {sys.path[:1] + [str(tool.COMMAND.parent / "python")]!r}
        import numpy as np
        import onnx_train
        data = dict(np.load({str(tmp_path / "data.npz")!r}))
        model = onnx_train.load({str(tmp_path / "train.onnx")!r})
        ranks = {{}} if sys.argv[1] == "alone" else dict(ranks="environment", zero=3)
        shards = {{}} if sys.argv[1] == "alone" else dict(checkpoint_shards="on")
        for epochs in 1, 2:
            session = onnx_train.Session(model, threads=1, **ranks)
            history = onnx_train.fit(session, data, epochs=epochs, batch_size=8, folder=sys.argv[1], accumulate=2, resume=True,
                                     **shards)
        print(history.session.rank)
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype("f")
    tool.save(tmp_path / "data.npz", {"x": x, "labels": x[:, :3].argmax(axis=1)})
    tool.run("build", tool.ROOT / "tests/fixtures/mlp.onnx", "-o", tmp_path / "train.onnx", "--accumulate")
    port = str(free_port())

    def start(folder, **environment):
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), folder], cwd=tmp_path, text=True,
                                env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    processes = [start("together", RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in (0, 1)]
    for process in [start("alone"), *processes]:
        output, errors = process.communicate(timeout=tool.PATIENCE)
        assert process.returncode == 0, errors
    assert len(shards(tmp_path / "together")) in (2, 4)
    for name in "last.onnx", "best.onnx":
        same_state(tmp_path / "alone" / name, tmp_path / "together" / name)
    recorded = json.loads((tmp_path / "together" / "options.json").read_text())
    assert recorded["checkpoint-shards"] == "on"
