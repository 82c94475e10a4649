"""Sweeps: the runs that they make, what they do when one fails or the sweep is interrupted, and what they print."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tool

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a training model and data."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(40, 4)).astype(np.float32), "labels": rng.integers(0, 3, 40)}
    tool.save("data.npz", data)
    tool.run("build", MLP, "-o", "train.onnx", "--optimizer", "adamw")
    return tmp_path


SHARED = ("train.onnx", "--data", "data.npz", "--eval-data", "data.npz", "--batch-size", 8)


def sweep(*options, **settings):
    return tool.run("sweep", *SHARED, *options, **settings)


def test_a_sweep_trains_what_fit_does_ranks_the_runs_and_repeats_none(folder):
    grid = ("--epochs", 2, "--vary", "lr=0.001,0.05", "--vary", "batch_size=4,8", "--out", "runs")
    printed = sweep(*grid)
    names = [f"lr={rate},batch-size={size}" for rate in ("0.001", "0.05") for size in (4, 8)]
    assert sorted(path.name for path in Path("runs").iterdir()) == sorted(names)
    best = {}
    for name in names:
        lines = [json.loads(line) for line in Path("runs", name, "epochs.jsonl").read_text().splitlines()]
        best[name] = min(line["eval_loss"] for line in lines)
    ranked = re.findall(r"^(0\.\d+) +(\d) +(\S+) +\d+ ", printed, re.MULTILINE)
    assert [f"lr={rate},batch-size={size}" for rate, size, _ in ranked] == sorted(names, key=best.get)
    assert f"best: runs/{min(names, key=best.get)}/best.onnx" in printed
    tool.run("fit", *SHARED[:-1], 4, "--epochs", 2, "--lr", "0.05", "--out", "alone")
    assert Path("alone/last.onnx").read_bytes() == Path("runs/lr=0.05,batch-size=4/last.onnx").read_bytes()
    tool.run("report", *Path("runs").iterdir(), "-o", "all.html")
    written = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    assert sweep(*grid).count("has ended before") == 4
    assert written == {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    # More values are more runs; other options are another sweep.
    again = sweep(*grid[:3], "lr=0.001,0.05,0.1", *grid[4:])
    assert again.count("has ended before") == 4 and Path("runs/lr=0.1,batch-size=8/best.onnx").exists()
    said = sweep("--epochs", 3, *grid[2:], status=2)
    assert "was trained with --epochs=2 where this sweep has --epochs=3" in said
    assert "has ended before" not in sweep(*grid, "--overwrite")


def test_a_run_that_fails_is_said_and_the_others_go_on(folder):
    values = ("--epochs", 1, "--vary", "lr=1e30,0.01", "--out", "runs")
    printed = sweep(*values, status=1)
    assert re.search(r"1/2 +lr=1e30 +failed: the loss is", printed)
    assert "best: runs/lr=0.01/best.onnx" in printed
    assert "the loss is" in json.loads(Path("runs/lr=1e30/sweep.json").read_text())["failure"]
    printed = sweep(*values, status=1)  # what failed is tried again
    assert printed.count("failed: ") == 1 and printed.count("has ended before") == 1
    lines = [json.loads(line) for line in sweep(*values, "--json", status=1).splitlines()]
    assert lines[0]["options"] == {"lr": "0.01"} and lines[0]["eval_loss"] > 0 and "the loss is" in lines[1]["failure"]


def child_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: children.read_text().split())
    return int(children.read_text().split()[0])


def until(condition):
    end = time.monotonic() + tool.PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def has_steps(run):
    path = Path(run, "metrics.jsonl")
    return path.exists() and path.stat().st_size > 0


def test_an_interrupted_sweep_goes_on_and_two_share_the_runs(folder):
    values = ("--time-limit", "2s", "--vary", "lr=0.001,0.01", "--out", "runs")
    first = tool.start("sweep", *SHARED, *values)
    until(lambda: has_steps("runs/lr=0.001"))
    first.send_signal(signal.SIGINT)
    printed, _ = first.communicate(timeout=tool.PATIENCE)
    assert first.returncode == 130 and "the same command goes on" in printed
    assert Path("runs/lr=0.001/last.onnx").exists() and not Path("runs/lr=0.001/sweep.json").exists()
    first = tool.start("sweep", *SHARED, *values)
    until(lambda: "resumed from" in Path("runs/lr=0.001/log.txt").read_text())
    second = tool.start("sweep", *SHARED, *values)
    outputs = [process.communicate(timeout=tool.PATIENCE)[0] for process in (first, second)]
    assert first.returncode == 0 and second.returncode == 0
    assert "lr=0.001  another process trains it" in outputs[1] and "lr=0.01  eval loss" in outputs[1]
    assert Path("runs/lr=0.01/log.txt").read_text().count("onnx-train") <= 1  # nobody trained it twice


def test_a_run_whose_process_is_killed_has_failed_and_none_outlives_the_sweep(folder):
    values = ("--time-limit", "60s", "--vary", "lr=0.001", "--out", "runs")
    process = tool.start("sweep", *SHARED, *values)
    until(lambda: has_steps("runs/lr=0.001") and Path("runs/lr=0.001/last.onnx").exists())
    os.kill(child_of(process), signal.SIGKILL)
    printed, _ = process.communicate(timeout=tool.PATIENCE)
    assert process.returncode == 1 and "ended by signal 9 (Killed)" in printed
    process = tool.start("sweep", *SHARED, *values)
    child = child_of(process)
    until(lambda: "resumed" in Path("runs/lr=0.001/log.txt").read_text())
    process.kill()
    process.communicate()
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])


def test_draws_are_those_of_the_seed(folder):
    def drawn(n, *options):
        vary = ("--vary", "lr=log_uniform(1e-4, 1e-1)", "--vary", "batch_size=uniform(2, 9)")
        return sweep("--epochs", 1, *vary, "--random", n, "--dry-run", *options).split()

    ten = drawn(10)
    assert len(set(ten)) == 10 and drawn(4) == ten[:4] and drawn(10, "--random-seed", 1) != ten
    rates, sizes = zip(*(re.fullmatch(r"sweep/lr=(.*),batch-size=(\d)", name).groups() for name in ten))
    assert all(1e-4 <= float(rate) <= 1e-1 for rate in rates) and all(2 <= int(size) <= 9 for size in sizes)
    assert min(map(float, rates)) < 3e-3 < max(map(float, rates)) and not Path("sweep").exists()
    said = sweep("--epochs", 1, "--vary", "batch_size=4,8", "--random", 5, "--dry-run")
    assert "no more than 2 different runs" in said


@pytest.mark.parametrize(
    "options, said",
    [
        (("--epochs", 1, "--vary", "lr=0.1,x"), "lr=x: --lr: 'x' is no number"),
        (("--epochs", 1, "--vary", "lrr=1"), "did you mean 'lr'"),
        (("--epochs", 1, "--vary", "out=a,b"), "there is no option 'out' of fit that a sweep can vary"),
        (("--epochs", 1, "--vary", "lr=0.1,0.1"), "has the value 0.1 twice"),
        (("--epochs", 1, "--vary", "lr=0.1,"), "has an empty value"),
        (("--epochs", 1, "--vary", "lr=1", "--vary", "lr=2"), "lr is varied twice"),
        (("--epochs", 1, "--vary", "lr=uniform(0, 1)"), "give --random N"),
        (("--epochs", 1, "--vary", "lr=log_uniform(0, 1)", "--random", 2), "both above 0"),
        (("--epochs", 1, "--vary", "best=uniform(0, 1)", "--random", 2), "takes no number"),
        (("--vary", "lr=1"), "a training needs an end"),
        (("--epochs", 1), "sweep needs --vary"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(folder, options, said):
    assert said in sweep(*options, status=2) and not Path("sweep").exists()


def test_names_of_runs_are_names_of_files(folder):
    Path("a b").mkdir()
    Path("a b/train.onnx").write_bytes(Path("train.onnx").read_bytes())
    tool.run("sweep", "--vary", "model=train.onnx,a b/train.onnx", *SHARED[1:], "--epochs", 1, "--out", "my sweep")
    names = sorted(path.name for path in Path("my sweep").iterdir())
    assert re.fullmatch(r"MODEL=a-b-train-onnx~[0-9a-f]{8} MODEL=train-onnx~[0-9a-f]{8}", " ".join(names))
    assert all((Path("my sweep") / name / "best.onnx").exists() for name in names)
