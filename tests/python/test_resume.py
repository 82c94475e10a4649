"""What a run leaves behind is exact: resuming changes no bit, and no kill loses a checkpoint."""

import random
import signal
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


def test_stopping_and_resuming_changes_nothing(training, tmp_path):
    """14 steps of 4 a pass: the stop is in the middle of a shuffled pass."""
    tool.run(*fit(training, tmp_path / "whole", 14))
    process = interrupted(training, tmp_path / "parts", 14, after=6)
    assert process.returncode == 130
    assert 6 <= len(tool.metrics(tmp_path / "parts"))
    tool.run(*fit(training, tmp_path / "parts", 14, "--resume"))
    assert (tmp_path / "whole/last.onnx").read_bytes() == (tmp_path / "parts/last.onnx").read_bytes()
    np.testing.assert_array_equal(tool.losses(tmp_path / "whole"), tool.losses(tmp_path / "parts"))


def interrupted(training, out, steps, after):
    """Ctrl-C once `after` steps are done; skips the test when the run was faster than that."""
    process = tool.start(*fit(training, out, steps, "--checkpoint-every", 1))
    while process.poll() is None:
        if (out / "metrics.jsonl").exists() and len((out / "metrics.jsonl").read_text().splitlines()) >= after:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.001)
    process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("the run ended before it was interrupted")
    return process


def test_no_kill_loses_a_checkpoint(training, tmp_path, request):
    """SIGKILL at random moments of a run that saves after each step, which is then resumed, until it is through."""
    kills = request.config.getoption("--kills")
    steps = 20 * max(kills, 4)
    expected = tmp_path / "expected"
    tool.run(*fit(training, expected, steps), timeout=600)
    out, rng = tmp_path / "killed", random.Random(0)
    killed, longest = 0, 0.4
    while killed < kills:
        resume = ["--resume"] if (out / "last.onnx").exists() else []
        process = tool.start(*fit(training, out, steps, "--checkpoint-every", 1, *resume))
        time.sleep(rng.uniform(0, longest))
        if process.poll() is not None:
            output, errors = process.communicate()
            assert process.returncode == 0, output + errors
            break
        process.kill()
        process.communicate()
        killed += 1
        if (out / "last.onnx").exists():
            onnx.checker.check_model(onnx.load(out / "last.onnx"))
            tool.run("eval", out / "last.onnx", "--data", training[1])
    tool.run(*fit(training, out, steps, "--resume"), timeout=600)
    assert (out / "last.onnx").read_bytes() == (expected / "last.onnx").read_bytes()
    np.testing.assert_array_equal(tool.losses(out), tool.losses(expected))
