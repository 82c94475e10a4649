"""Products that several processes compute together, each with its part of the weights: a run equals that of one process
within rounding, and its checkpoints are read by any number of processes."""

import re

import numpy as np
import pytest
import reference
import tool
from test_pipeline import same_runs, weights


def groups(count, of=1):
    return ["--devices", ",".join(["cpu"] * count * of), "--tensor-parallel", count]


def fit(model, data, out, *options, batch=2):
    return "fit", model, "--data", data, "--batch-size", batch, "--seed", 5, "--out", out, *options


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    build = "build", tool.ROOT / "models/gpt.onnx", "-o", folder / "train.onnx", "--accumulate", "--clip", 1
    tool.run(*build, "--optimizer", "sgd(lr=0.1, momentum=0.9)")
    tokens = np.random.default_rng(0).integers(0, 128, (17, 129))
    return folder / "train.onnx", tool.save(folder / "data.npz", {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]})


def test_a_gpt_trains_as_in_one_process(gpt, tmp_path):
    options = "--accumulate", 2, "--steps", 5, "--eval-data", gpt[1]
    tool.run(*fit(*gpt, tmp_path / "one", *options))
    for name, ranks in {"two": groups(2), "mesh": groups(2, of=2)}.items():
        printed = tool.run(*fit(*gpt, tmp_path / name, *options, *ranks))
        assert "2 compute together 18 of 18 products and lookups, 97% of the trained weights" in " ".join(printed.split())
        same_runs(tmp_path / "one", tmp_path / name)
    assert "in 2 groups that share out the 2 batches of a step" in " ".join(printed.split())


def test_a_run_goes_on_with_another_number_of_processes(gpt, tmp_path):
    options = "--accumulate", 4, "--epochs"
    tool.run(*fit(*gpt, tmp_path / "one", *options, 3))
    tool.run(*fit(*gpt, tmp_path / "run", *options, 1, *groups(4)))
    tool.run(*fit(*gpt, tmp_path / "run", *options, 2, "--resume", *groups(2, of=2), "--zero", 1))
    tool.run(*fit(*gpt, tmp_path / "run", *options, 3, "--resume"))
    same_runs(tmp_path / "one", tmp_path / "run")


def test_a_rank_has_parts_of_weights_and_moments(gpt, tmp_path):
    def rows(out, *options):
        printed = tool.run(*fit(*gpt, tmp_path / out, "--steps", 1, "--accumulate", 1, *options))
        return [float(re.search(rf"{row} +([\d.]+) MiB", printed)[1]) for row in ("weights and statistics", "moments and other state")]

    one, two = rows("one"), rows("two", *groups(2))
    assert two == pytest.approx([0.515 * x for x in one], rel=0.03)


@pytest.mark.parametrize("name, products", [("gpt2", "10 of 10"), ("bert", "16 of 16"), ("mlp", "2 of 3"), ("cnn", "2 of 3")])
def test_networks_train_as_one(exported, tmp_path, name, products):
    example, path = exported(name)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, 4))
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", example.loss, "--accumulate", "--optimizer", "sgd(lr=0.1)")
    for run, ranks in {"one": [], "two": groups(2), "mesh": groups(2, of=2)}.items():
        printed = tool.run(*fit(tmp_path / "train.onnx", data, tmp_path / run, "--accumulate", 3, "--steps", 4, *ranks))
        same_runs(tmp_path / "one", tmp_path / run)
    assert f"compute together {products}" in " ".join(printed.split()), printed


def test_a_mean_of_weights_is_that_of_all_parts(gpt, tmp_path):
    build = "build", tool.ROOT / "models/gpt.onnx", "-o", tmp_path / "train.onnx", "--accumulate", "--ema", 0.9
    tool.run(*build, "--optimizer", "sgd(lr=0.1)")
    for run, ranks in {"one": [], "two": groups(2)}.items():
        tool.run(*fit(tmp_path / "train.onnx", gpt[1], tmp_path / run, "--accumulate", 2, "--steps", 3, *ranks))
    same_runs(tmp_path / "one", tmp_path / "two")
    assert any(name.startswith("raw/") for name in weights(tmp_path / "two"))


def test_what_ranks_cannot_share_out(gpt, tmp_path):
    cases = [
        ((*groups(2)[:2], "--tensor-parallel", 3), 2, "--tensor-parallel 3 takes 3 processes, one for each part, or a multiple, and there are 2"),
        (("--tensor-parallel", 2), 2, "--tensor-parallel is for several processes"),
        ((*groups(2, of=2), "--pipeline", 2), 2, "leave out --pipeline"),
        ((*groups(2, of=2), "--zero", 2), 2, "leave out --zero, or take --zero 1"),
        ((*groups(2), "--zero", 1), 2, "--zero is for processes that share out batches"),
        ((*groups(2), "--elastic"), 2, "with --tensor-parallel a run needs its number of processes"),
    ]  # fmt: skip
    for options, status, message in cases:
        printed = tool.run(*fit(*gpt, tmp_path / "run", "--steps", 1, "--accumulate", 1, *options), status=status)
        assert message in printed, printed
    printed = tool.run(*fit(*gpt, tmp_path / "run", "--steps", 1, "--accumulate", 1, *groups(5)), status=1)
    assert "no product with a trained weight can be shared out" in printed and "processes then share out batches" in printed
    assert "cannot be divided by 5" in printed
    assert not (tmp_path / "run").exists()


def test_weights_that_are_quantized_while_they_train_are_whole(gpt, tmp_path):
    tool.run("build", tool.ROOT / "models/gpt.onnx", "-o", tmp_path / "qat.onnx", "--qat", "int8", "--accumulate", "--optimizer", "sgd(lr=0.1)")
    for run, ranks in {"one": [], "two": groups(2)}.items():
        printed = tool.run(*fit(tmp_path / "qat.onnx", gpt[1], tmp_path / run, "--accumulate", 2, "--steps", 2, *ranks))
    assert "1 of 1 products and lookups, 2% of the trained weights" in printed
    same_runs(tmp_path / "one", tmp_path / "two")
