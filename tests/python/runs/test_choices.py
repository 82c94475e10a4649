"""Kernels that are chosen by timing them: equal trainings have equal bits, whoever chose when."""

import os
import subprocess

import numpy as np
import pytest
import tool


@pytest.fixture(scope="module")
def training(exported, tmp_path_factory):
    """A network whose products are large enough to be timed, and its data: six whole batches an epoch."""
    folder = tmp_path_factory.mktemp("choices")
    _, path = exported("mlp", sizes=(96, 256, 256, 4))
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(768, 96)).astype(np.float32), "labels": rng.integers(0, 4, 768)}
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", "cross_entropy")
    return folder / "train.onnx", tool.save(folder / "data.npz", data)


def start(training, out, cache, *options, choices="60"):  # seconds, for a busy machine
    model, data = training
    arguments = ["fit", model, "--data", data, "--batch-size", 128, "--out", out, *options]
    environment = {"ONNX_TRAIN_CACHE": str(cache), "ONNX_TRAIN_TIMED_CHOICES": choices, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [tool.COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | environment,
    )  # fmt: skip


def end(process):
    output, _ = process.communicate(timeout=tool.PATIENCE)
    assert process.returncode == 0, output
    return output


def timed(output):
    """How many nodes, from the banner."""
    lines = [line for line in output.splitlines() if line.startswith("  kernels ")]
    return int(lines[0].split("the fastest for ")[1].split()[0]) if lines else 0


def bits(folder):
    return (folder / "last.onnx").read_bytes()


def test_the_first_run_chooses_and_later_ones_have_the_same_bits(training, tmp_path):
    outputs = [end(start(training, tmp_path / name, tmp_path / "cache", "--epochs", 2)) for name in "ab"]
    assert timed(outputs[0]) > 0
    assert timed(outputs[1]) == 0
    assert bits(tmp_path / "a") == bits(tmp_path / "b")


def test_runs_that_choose_at_once_have_the_same_bits(training, tmp_path):
    processes = [start(training, tmp_path / str(i), tmp_path / "cache", "--epochs", 1) for i in range(4)]
    for process in processes:
        end(process)
    assert len({bits(tmp_path / str(i)) for i in range(4)}) == 1


def test_a_run_that_goes_on_keeps_its_choices(training, tmp_path):
    """Where nothing is timed, and nothing is in the cache: they are those of all plans that it made before."""
    end(start(training, tmp_path / "whole", tmp_path / "cache", "--steps", 12))
    end(start(training, tmp_path / "parts", tmp_path / "cache", "--steps", 4))
    end(start(training, tmp_path / "parts", tmp_path / "other", "--steps", 12, "--resume", choices="off"))
    assert len(tool.losses(tmp_path / "parts")) == 12
    assert bits(tmp_path / "whole") == bits(tmp_path / "parts")
    assert not (tmp_path / "other").exists()


def test_a_folder_of_choices_can_be_carried_along(training, tmp_path):
    model, data = training
    printed = tool.run("compile", model, "--batch-size", 128, "-o", tmp_path / "kernels")
    assert " choice, in " in printed.splitlines()[-1]
    assert timed(end(start(training, tmp_path / "run", tmp_path / "kernels", "--steps", 2))) == 0
