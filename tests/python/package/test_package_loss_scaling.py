"""A training in float16 goes on after gradients that overflow: the update is skipped and the loss scale halved."""

import json
import subprocess

import numpy as np
import pytest
import tool

import onnx_train

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
SCALE = "dynamic(init_scale=1024, growth_interval=25)"


def data(samples=256):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 4)).astype(np.float32)
    return {"x": x, "labels": x[:, :3].argmax(axis=1)}


def test_three_thousand_steps_double_and_halve_the_scale_many_times():
    training = onnx_train.build(MLP, "cross_entropy", "adamw(lr=0.003)", precision="fp16", loss_scale=SCALE)
    history = onnx_train.fit(training, data(), steps=3000, batch_size=16, threads=1, progress=False)
    scales = np.array([step.metrics["loss_scale"] for step in history.steps])
    skipped = np.array([step.skipped for step in history.steps])
    ratios = scales[1:] / scales[:-1]
    assert set(ratios) <= {0.5, 1.0, 2.0} and (ratios == 2).sum() > 20
    assert (skipped[:-1] == (ratios == 0.5)).all() and 20 < skipped.sum() < 300
    assert all(np.isfinite(step.metrics["grad_norm"]) != step.skipped for step in history.steps)
    assert np.isfinite(history.losses).all() and history.losses[-100:].mean() < 0.3
    roles = {port.role: port.name for port in history.session.states()}
    assert history.session.state[roles["step"]] == 3000 - skipped.sum()  # counts updates


def test_the_command_counts_what_is_skipped(tmp_path):
    np.savez(tmp_path / "data.npz", **data())
    tool.run("build", MLP, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--precision", "fp16",
             "--loss-scale", SCALE)  # fmt: skip
    text = tool.run("fit", tmp_path / "train.onnx", "--data", tmp_path / "data.npz", "--steps", "400", "--lr", "0.003",
                    "--out", tmp_path / "run", "--batch-size", "16")  # fmt: skip
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    skipped = sum(step.get("skipped", False) for step in steps)
    assert skipped > 0 and f"{skipped} updates skipped" in text


@pytest.mark.parametrize("scale", [SCALE, 1e30])
def test_an_endless_overflow_is_an_error(scale):
    session = onnx_train.Session(
        onnx_train.build(MLP, "mse(logits, target)", "sgd(lr=0.1)", precision="fp16", loss_scale=scale), threads=1
    )
    before = session.state["fc1.weight"].copy()
    inputs = {"x": np.ones((64, 4), np.float32), "target": np.full((64, 3), 1e15, np.float32)}
    with pytest.raises(onnx_train.DataError, match="overflow whatever the loss scale: [0-9]+ updates in a row") as error:
        onnx_train.fit(session, inputs, epochs=1000, progress=False)
    assert len(str(error.value).splitlines()) == 1 and np.array_equal(session.state["fc1.weight"], before)


@pytest.mark.parametrize(
    "scale", ["dynamic(growth_interval=0)", "dynamic(init_scale=-1)", "dynamic(x=1)", "dynamics", "0", "1e99", "1 2"]
)
def test_mistakes_in_the_loss_scale_are_named(scale):
    with pytest.raises(onnx_train.UsageError, match="loss_scale"):
        onnx_train.build(MLP, loss_scale=scale)
