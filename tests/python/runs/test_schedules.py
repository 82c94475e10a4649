"""Learning rates against torch.optim.lr_scheduler, step by step, and those that depend on evaluations when a run resumes."""

import json

import numpy as np
import pytest
import tool
import torch
from torch.optim import lr_scheduler
from transformers.optimization import get_wsd_schedule

from onnx_train import _core

PEAK, STEPS = 0.3, 97
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"


def wsd(shape, decay):
    return lambda o: get_wsd_schedule(o, 0, round(decay * STEPS), STEPS, decay_type=shape, min_lr_ratio=0)


CASES = {
    "linear": lambda o: lr_scheduler.LinearLR(o, 1, 0, STEPS),
    "cosine(final_lr=0.001)": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, 0.001),
    "step(step_every=9, step_factor=0.3)": lambda o: lr_scheduler.StepLR(o, 9, 0.3),
    "polynomial(power=2)": lambda o: lr_scheduler.PolynomialLR(o, STEPS, 2),
    "exponential(gamma=0.97)": lambda o: lr_scheduler.ExponentialLR(o, 0.97),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, PEAK, STEPS),
    "one_cycle(pct_start=0.11, div_factor=10, final_div_factor=50)": lambda o: lr_scheduler.OneCycleLR(
        o, PEAK, STEPS, pct_start=0.11, div_factor=10, final_div_factor=50
    ),
    "restarts(T_0=7)": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "restarts(T_0=5, T_mult=2, final_lr=0.01)": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2, 0.01),
    f"wsd(decay={20 / STEPS})": wsd("linear", 20 / STEPS),
    f"wsd(decay={50 / STEPS}, shape=cosine)": wsd("cosine", 50 / STEPS),
    f"wsd(decay={20 / STEPS}, shape=sqrt)": wsd("1-sqrt", 20 / STEPS),
}


def optimizer(rate=PEAK):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


@pytest.mark.filterwarnings("ignore")  # of PyTorch, whose optimizer makes no step here
@pytest.mark.parametrize("schedule", CASES)
def test_rates_are_those_of_pytorch(schedule):
    torch_optimizer = optimizer()
    scheduler = CASES[schedule](torch_optimizer)
    options = [("lr", repr(PEAK)), ("schedule", schedule), ("steps", str(STEPS))]
    for step in range(STEPS):
        rate = _core.learning_rate(options, step)
        assert rate == pytest.approx(torch_optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-12), step
        scheduler.step()


@pytest.fixture(scope="module")
def plateau(tmp_path_factory):
    """fit(out, epochs, ...): a training whose rate falls on a plateau, often."""
    folder = tmp_path_factory.mktemp("plateau")
    rng = np.random.default_rng(0)
    tool.run("build", MLP, "-o", folder / "train.onnx", "--optimizer", "sgd(lr=0.5)")
    data = {"x": rng.normal(size=(40, 4)).astype(np.float32), "labels": rng.integers(0, 3, 40)}
    data = tool.save(folder / "data.npz", data)

    def fit(out, epochs, *options):
        tool.run("fit", folder / "train.onnx", "--data", data, "--eval-data", data, "--batch-size", 8, "--epochs", epochs,
                 "--schedule", "plateau(factor=0.5, patience=1, threshold=0.2, cooldown=1)", "--out", out, *options)  # fmt: skip
        return tool.metrics(out), [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]

    return fit


def test_a_plateau_lowers_the_rate_as_pytorch_does_and_resumes(plateau, tmp_path):
    steps, epochs = plateau(tmp_path / "whole", 24)
    torch_optimizer = optimizer(0.5)
    scheduler = lr_scheduler.ReduceLROnPlateau(torch_optimizer, factor=0.5, patience=1, threshold=0.2, cooldown=1)
    for epoch, evaluation in enumerate(epochs):
        rates = [line["lr"] for line in steps if line["epoch"] == epoch + 1]
        assert rates == pytest.approx([torch_optimizer.param_groups[0]["lr"]] * 5, rel=1e-12)
        scheduler.step(evaluation["eval_loss"])
    assert steps[-1]["lr"] < 0.5 / 2
    for end in 7, 14, 24:  # at different states of the schedule
        parts = plateau(tmp_path / "parts", end, "--resume")
    assert [line["lr"] for line in parts[0]] == [line["lr"] for line in steps]
    assert (tmp_path / "whole/last.onnx").read_bytes() == (tmp_path / "parts/last.onnx").read_bytes()


def test_a_warm_up_is_a_share_of_all_steps(tmp_path):
    """As many steps, rounded up; by the number of steps that the epochs have."""
    rng = np.random.default_rng(0)
    data = tool.save(tmp_path / "data.npz", {"x": rng.normal(size=(30, 4)).astype(np.float32), "labels": rng.integers(0, 3, 30)})
    tool.run("build", MLP, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy")
    run = ["fit", tmp_path / "train.onnx", "--data", data, "--batch-size", 4, "--schedule", "cosine", "--lr", 0.1]
    for name, warmup in (("steps", 4), ("share", "15%")):
        said = tool.run(*run, "--epochs", 3, "--warmup", warmup, "--out", tmp_path / name)
        assert "after 4 steps of warm-up" in said  # of 24
    rates = [[line["lr"] for line in tool.metrics(tmp_path / name)] for name in ("steps", "share")]
    assert rates[0] == rates[1] and rates[0][3] == pytest.approx(0.1)
    options = [("lr", "0.1"), ("schedule", "cosine"), ("warmup", "15%"), ("steps", "24")]
    assert [_core.learning_rate(options, step) for step in range(24)] == pytest.approx(rates[0], rel=1e-6)
    for wrong in "x", "120%", "-5":
        assert "take a number of steps, or a share" in tool.run(*run, "--epochs", 1, f"--warmup={wrong}", "--out",
                                                                tmp_path / "no", status=2)  # fmt: skip
    assert "share of all steps needs to know their number" in tool.run(
        *run[:-3], "constant", "--time-limit", "1s", "--warmup", "10%", "--out", tmp_path / "no", status=1)  # fmt: skip
