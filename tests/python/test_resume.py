"""What a run leaves behind is exact: resuming changes no bit, and no kill loses a checkpoint."""

import json
import random
import re
import signal
import subprocess
import time

import numpy as np
import onnx
import pytest
import reference
import tool

BATCHES = 4


@pytest.fixture(scope="module")
def training(exported, tmp_path_factory):
    """A training model with dropout, batch norm and AdamW, and its data; the last batch is short."""
    folder = tmp_path_factory.mktemp("training")
    example, path = exported("cnn", dropout=0.3, train=True)
    data = {name: value[:-2] for name, value in reference.repeated(example, BATCHES).items()}
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", "cross_entropy", "--optimizer", "adamw")
    return folder / "train.onnx", tool.save(folder / "data.npz", data)


def fit(training, out, steps, *options):
    model, data = training
    return "fit", model, "--data", data, "--steps", steps, "--batch-size", 6, "--lr", 0.01, "--schedule", "cosine", \
        "--warmup", 3, "--seed", 5, "--out", out, *options  # fmt: skip


def test_two_runs_with_one_seed_are_identical(training, tmp_path):
    for name in "a", "b":
        tool.run(*fit(training, tmp_path / name, 10))
    assert (tmp_path / "a/last.onnx").read_bytes() == (tmp_path / "b/last.onnx").read_bytes()
    np.testing.assert_array_equal(tool.losses(tmp_path / "a"), tool.losses(tmp_path / "b"))


@pytest.mark.parametrize("device", ["cpu", "async_host"])
def test_stopping_and_resuming_changes_nothing(training, tmp_path, device):
    """14 steps of 4 a pass: the stop is in the middle of a shuffled pass, on a device whose work is done later, too."""
    tool.run(*fit(training, tmp_path / "whole", 14))
    process = interrupted(training, tmp_path / "parts", 14, 6, "--device", device)
    assert process.returncode == 130
    assert 6 <= len(tool.metrics(tmp_path / "parts"))
    tool.run(*fit(training, tmp_path / "parts", 14, "--resume", "--device", device))
    assert (tmp_path / "whole/last.onnx").read_bytes() == (tmp_path / "parts/last.onnx").read_bytes()
    np.testing.assert_array_equal(tool.losses(tmp_path / "whole"), tool.losses(tmp_path / "parts"))


def interrupted(training, out, steps, after, *options):
    """Ctrl-C once `after` steps are done; skips the test when the run was faster than that."""
    process = tool.start(*fit(training, out, steps, "--checkpoint-every", 1, *options))
    while process.poll() is None:
        if (out / "metrics.jsonl").exists() and len((out / "metrics.jsonl").read_text().splitlines()) >= after:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.001)
    process.communicate(timeout=tool.PATIENCE)
    if process.returncode == 0:
        pytest.skip("the run ended before it was interrupted")
    return process


def train_under_fire(training, out, steps, rng, patience):
    """Trains, and kills the process after a random part of `patience` seconds, until one gets through. Saves after
    each step; what is there after a kill must load. Returns the number of kills."""
    last, kills = out / "last.onnx", 0
    while True:
        resume = ["--resume"] if last.exists() else []
        process = tool.start(*fit(training, out, steps, "--checkpoint-every", 1, *resume))
        try:
            output, errors = process.communicate(timeout=rng.uniform(0, patience))
            assert process.returncode == 0, output + errors
            return kills
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        kills += 1
        if last.exists():
            onnx.checker.check_model(onnx.load(last))
            tool.run("eval", last, "--data", training[1])


def test_no_kill_loses_a_checkpoint(training, tmp_path, request):
    wanted, steps, rng = request.config.getoption("--kills"), 100, random.Random(0)
    start = time.monotonic()
    tool.run(*fit(training, tmp_path / "expected", steps, "--checkpoint-every", 1))
    patience = 0.4 * (time.monotonic() - start)
    kills = rounds = 0
    while kills < wanted:
        out = tmp_path / f"killed_{rounds}"
        kills += train_under_fire(training, out, steps, rng, patience)
        rounds += 1
        assert (out / "last.onnx").read_bytes() == (tmp_path / "expected" / "last.onnx").read_bytes()
        np.testing.assert_array_equal(tool.losses(out), tool.losses(tmp_path / "expected"))
    print(f"{kills} kills, {rounds} runs")


def test_data_are_checked_once(tmp_path):
    """A run remembers the identity of what it has checked, and a resumed one looks at that again only if it differs."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 4)).astype(np.float32)
    labels = rng.integers(0, 3, 64)
    good = tool.save(tmp_path / "good.npz", {"x": x, "labels": labels})
    x[63, 2] = np.nan  # in a batch that the steps below do not reach
    bad = tool.save(tmp_path / "bad.npz", {"x": x, "labels": labels})
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }'
    )
    weight = np.ones((4, 3), np.float32)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(graph, tmp_path / "model.onnx")
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy")

    def fit(data, steps, *options, status=0):
        return tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", steps, "--batch-size", 4,
                        "--no-shuffle", "--out", tmp_path / data.stem, *options, status=status)  # fmt: skip

    def options(data):
        return json.loads((tmp_path / data.stem / "options.json").read_text())

    fit(good, 1)
    fit(good, 2, "--resume")
    assert len(options(good)["derived"]["checked data"]) == 1
    assert "sample 63" in fit(bad, 1, status=1)
    fit(bad, 1, "--no-data-check")
    assert options(bad)["derived"]["checked data"] == []
    assert "sample 63" in fit(bad, 2, "--resume", status=1)
    # A run that believes that these data were checked does not look again.
    said = options(bad)
    said["derived"]["checked data"] = re.findall(r"\((\w+)\)", said["derived"]["run"]["data"])  # "64 samples (4ea4...)"
    (tmp_path / "bad/options.json").write_text(json.dumps(said))
    fit(bad, 2, "--resume")


def test_a_run_that_is_resumed_keeps_its_threads(training, tmp_path):
    threads = lambda: json.loads((tmp_path / "run" / "options.json").read_text())["derived"]["threads"]
    tool.run(*fit(training, tmp_path / "run", 3, "--threads", 2))
    tool.run(*fit(training, tmp_path / "run", 5, "--resume"))
    assert threads() == 2
    tool.run(*fit(training, tmp_path / "run", 7, "--resume", "--threads", 1))
    assert threads() == 1
