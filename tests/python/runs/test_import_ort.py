"""Runs of ONNX Runtime's training (tests/fixtures/onnxruntime, made by the make.py there) go on here: the losses of the
next ten steps are theirs."""

import os
import shutil
import subprocess

import numpy as np
import pages
import pytest
import tool

onnx_train = pytest.importorskip("onnx_train", reason="the Python package is not built")
RUNS = tool.ROOT / "tests" / "fixtures" / "onnxruntime"
NAMES = sorted(path.name for path in RUNS.iterdir() if path.is_dir())


def imported(folder, tmp_path, *options):
    path = tmp_path / "train.onnx"
    tool.run("import-ort", folder, "-o", path, *options)
    return onnx_train.load(path)


def arrays_of(name):
    return dict(np.load(RUNS / name / "batches.npz"))


def batches_of(name):
    arrays = {key: array for key, array in arrays_of(name).items() if not key.startswith("after ")}
    losses = arrays.pop("losses")
    return [{key: array[i] for key, array in arrays.items()} for i in range(len(losses))], losses


def assert_equal_steps(model, name):
    batches, losses = batches_of(name)
    session = onnx_train.Session(model)
    ours = [session.step(batch).loss for batch in batches]
    assert len(ours) == 10
    np.testing.assert_allclose(ours, losses, rtol=1e-5, atol=0)
    assert abs(losses[-1] / losses[0] - 1) > 1e-2 or name == "l1"  # they are not all the same
    return session


@pytest.mark.parametrize("name", NAMES)
def test_the_next_ten_steps_are_theirs(name, tmp_path):
    assert_equal_steps(imported(RUNS / name, tmp_path), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_training_model_alone_is_enough(name, tmp_path):
    shutil.copytree(RUNS / name, tmp_path / "run")
    (tmp_path / "run" / "eval_model.onnx").unlink()
    assert_equal_steps(imported(tmp_path / "run", tmp_path), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_evaluation_model_alone_is_enough(name, tmp_path):
    shutil.copytree(RUNS / name, tmp_path / "run")
    (tmp_path / "run" / "training_model.onnx").unlink()
    assert_equal_steps(imported(tmp_path / "run", tmp_path), name)


def test_steps_without_the_moments_are_others(tmp_path):
    """So that the tests above would fail if moments or steps were left out."""
    model = imported(RUNS / "mlp", tmp_path, "--optimizer", "hf_adamw(lr=0.02)")
    with pytest.raises(AssertionError):
        assert_equal_steps(model, "mlp")


def test_accumulated_gradients_are_those_of_one_step(tmp_path):
    batches, losses = batches_of("mlp")
    session = onnx_train.Session(imported(RUNS / "mlp", tmp_path, "--accumulate"))
    ours = []
    for batch in batches:
        ours.append(session.accumulate(batch).loss)
        session.apply()
    np.testing.assert_allclose(ours, losses, rtol=1e-5, atol=0)


def test_frozen_parameters_stay_and_names_are_kept(tmp_path):
    model = imported(RUNS / "mlp", tmp_path)
    session = assert_equal_steps(model, "mlp")
    assert "fc1.bias" not in session.state and {"fc1.weight", "fc2.weight", "fc2.bias"} <= set(session.state)
    own = imported(RUNS / "own_loss", tmp_path)
    assert {"layer 1/weight", "layer 1/bias", "layer [2]/weight*", "it's a bias"} <= set(onnx_train.Session(own).state)


def test_properties_are_metadata(tmp_path):
    metadata = imported(RUNS / "mlp", tmp_path).metadata
    found = {key: value for key, value in metadata.items() if key.startswith("onnxruntime.property.")}
    assert found == {"onnxruntime.property.epoch": "3", "onnxruntime.property.best score": "0.5", "onnxruntime.property.note": "a run"}


def test_running_statistics_are_theirs(tmp_path):
    session, theirs = assert_equal_steps(imported(RUNS / "cnn", tmp_path), "cnn"), arrays_of("cnn")
    np.testing.assert_allclose(session.state["bn.var"], theirs["after bn.var"], rtol=1e-5)
    # A norm takes away the bias before it, whose gradient is what rounding leaves; the mean has it.
    np.testing.assert_allclose(session.state["bn.mean"], theirs["after bn.mean"], atol=1e-3)


@pytest.mark.parametrize("path", ["mlp", "mlp/checkpoint", "mlp_1_15", "mlp_1_15/checkpoint"])
def test_the_package_reads_a_folder_or_a_checkpoint(path):
    assert_equal_steps(onnx_train.import_ort(RUNS / path), path.split("/")[0])


def test_the_package_refuses_all_else():
    with pytest.raises(onnx_train.FileError, match="is no run of ONNX Runtime's training"):
        onnx_train.import_ort(tool.ROOT / "tests" / "fixtures" / "mlp.onnx")


def test_a_folder_with_spaces_and_a_prefix(tmp_path):
    folder = tmp_path / "a run"
    shutil.copytree(RUNS / "mse", folder)
    for file in list(folder.glob("*_model.onnx")):
        file.rename(file.with_name(f"my {file.name}"))
    (folder / "checkpoint").rename(folder / "epoch 12")
    model = imported(folder, tmp_path, "--prefix", "my ", "--checkpoint", folder / "epoch 12")
    assert_equal_steps(model, "mse")


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


BROKEN = {
    "no folder": (lambda f: shutil.rmtree(f), "there is no such folder"),
    "no models": (lambda f: [p.unlink() for p in f.glob("*.onnx")], "has neither eval_model.onnx nor training_model.onnx"),
    "no checkpoint": (lambda f: (f / "checkpoint").unlink(), "has no checkpoint"),
    "no optimizer": (lambda f: (f / "optimizer_model.onnx").unlink(), "no optimizer_model.onnx"),
    "nominal": (lambda f: (f / "nominal_checkpoint").replace(f / "checkpoint"), "nominal checkpoint"),
    "cut checkpoint": (lambda f: cut(f / "checkpoint"), "is cut off or damaged"),
    "cut model": (lambda f: cut(f / "eval_model.onnx"), "eval_model.onnx"),
    "cut optimizer": (lambda f: cut(f / "optimizer_model.onnx"), "optimizer_model.onnx"),
    "other checkpoint": (lambda f: shutil.copy(RUNS / "mse" / "checkpoint", f), "both come from one run"),
    "other models": (lambda f: [shutil.copy(RUNS / "transformer" / p.name, f) for p in f.glob("*.onnx")], "both come from one run"),
    "no checkpoint's file": (lambda f: (f / "checkpoint").write_bytes(b"\0" * 100), "is no checkpoint of ONNX Runtime's training"),
    "empty checkpoint": (lambda f: (f / "checkpoint").write_bytes(b""), "checkpoint"),
    "unreadable folder": (lambda f: f.chmod(0), "Permission denied"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_wrong_is_one_line_and_nothing_is_written(how, tmp_path):
    breaks, text = BROKEN[how]
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "mlp", folder)
    breaks(folder)
    train = tmp_path / "train.onnx"
    train.write_bytes(b"what was there")
    # Root reads every folder, unless it gives up these rights.
    as_others = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    done = subprocess.run([*as_others, tool.COMMAND, "import-ort", folder, "-o", train], capture_output=True, text=True)
    if folder.exists():
        folder.chmod(0o700)
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1 and text in done.stderr, done.stderr
    assert train.read_bytes() == b"what was there"
    assert not [path for path in tmp_path.iterdir() if path not in (folder, train)]


def test_the_commands_of_the_page_print_what_it_says(tmp_path):
    pages.prepare(tmp_path)
    blocks = [block for language, block in pages.blocks("docs/from_onnxruntime_training.md") if language == "console"]
    assert blocks
    for block in blocks:
        pages.run_console(block, tmp_path)
