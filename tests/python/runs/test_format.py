"""Files of version 1 of our format, written when it was current and never since: each loads, goes on and is exported.

tests/fixtures/format_1 has a training model of tests/fixtures/mlp.onnx with AdamW, a run of two epochs with it, and the
adapter of another run, in PEFT's files.
"""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
import tool

FIXTURES = tool.ROOT / "tests" / "fixtures"
OLD = FIXTURES / "format_1"


@pytest.fixture
def old(tmp_path):
    shutil.copytree(OLD, tmp_path / "old")
    return tmp_path / "old"


def last_epoch(run):
    return json.loads((run / "epochs.jsonl").read_text().splitlines()[-1])


def test_a_training_model_trains(old, tmp_path):
    """On any processor the losses are those of the run that was made with it then, up to rounding."""
    tool.run("fit", old / "train.onnx", "--data", old / "data.csv", "--eval-data", old / "data.csv", "--epochs", 2,
             "--batch-size", 8, "--schedule", "cosine", "--warmup", 2, "--out", tmp_path / "run")  # fmt: skip
    np.testing.assert_allclose(tool.losses(tmp_path / "run"), tool.losses(old / "run"), rtol=1e-4)


def test_a_run_goes_on(old):
    run = old / "run"
    tool.run("fit", old / "train.onnx", "--data", old / "data.csv", "--eval-data", old / "data.csv", "--epochs", 3,
             "--resume", "--out", run)  # fmt: skip
    assert len(tool.losses(run)) == 24
    assert last_epoch(run)["epoch"] == 3
    assert last_epoch(run)["eval_loss"] < last_epoch(OLD / "run")["eval_loss"]


def test_a_checkpoint_evaluates_and_is_exported(old, tmp_path):
    printed = tool.run("eval", old / "run/last.onnx", "--data", old / "data.csv", "--json")
    recorded = last_epoch(old / "run")["eval_loss"]
    assert json.loads(printed)["loss"] == pytest.approx(recorded, rel=1e-5)
    tool.run("export", old / "run/last.onnx", "-o", tmp_path / "model.onnx")
    rows = np.loadtxt(old / "data.csv", delimiter=",", skiprows=1, dtype=np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: rows[:, :4]})
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    assert -log_softmax[np.arange(60), rows[:, 4].astype(int)].mean() == pytest.approx(recorded, rel=1e-5)


def test_an_adapter_is_read(old, tmp_path):
    tool.run("build", FIXTURES / "mlp.onnx", "-o", tmp_path / "again.onnx", "--adapter", old / "adapter")
    tool.run("export", tmp_path / "again.onnx", "-o", f"{tmp_path}/adapter/")
    name = "adapter_model.safetensors"
    assert (tmp_path / "adapter" / name).read_bytes() == (old / "adapter" / name).read_bytes()


@pytest.mark.parametrize(
    ("version", "message"),
    [("2", "its format has version 2, and this onnx-train reads up to 1; use the onnx-train that wrote it, or a newer one"),
     ("soon", "its metadata say onnx_train.version 'soon', which is no version of this format")],
)  # fmt: skip
def test_what_it_cannot_know_is_refused_by_name(old, version, message):
    path = old / "run/last.onnx"
    model = onnx.load(path)
    (entry,) = [entry for entry in model.metadata_props if entry.key == "onnx_train.version"]
    assert entry.value == "1"
    entry.value = version
    onnx.save(model, path)
    before = path.read_bytes()
    for arguments in (
        ("check", path),
        ("eval", path, "--data", old / "data.csv"),
        ("fit", old / "train.onnx", "--data", old / "data.csv", "--epochs", 3, "--resume", "--out", old / "run"),
    ):
        printed = tool.run(*arguments, status=1)
        assert f"{path}: {message}" in printed
        assert len(printed.strip().splitlines()) == 1
    assert path.read_bytes() == before
