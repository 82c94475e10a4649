"""The programs of examples/python run as a newcomer runs them, and do what they say."""

import importlib.util
import os
import re
import runpy
import subprocess

import numpy as np
import pytest
import tool
import torch

import onnx_train
FOLDER = tool.ROOT / "examples" / "python"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(name) -> the program's names; what it writes is in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(FOLDER / name))


def test_every_example_has_a_test():
    text = open(__file__).read()
    assert all(f'"{path.name}"' in text for path in FOLDER.glob("*.*"))


def test_training_from_numpy_arrays_lowers_the_loss_and_exports(run, tmp_path):
    names = run("numpy_arrays.py")
    assert names["after"]["loss"] < 0.7 * names["before"]["loss"]
    image = names["test"][list(names["test"])[0]][:4]
    exported, kept = onnx_train.Session("digits.onnx", threads=1), onnx_train.Session("checkpoint.onnx", threads=1)
    for name, value in exported.predict(image).items():
        np.testing.assert_allclose(value, kept.predict(image)[name], rtol=1e-6, atol=1e-6)


def test_digits_are_written_as_pictures_in_a_folder_for_each_class(run, tmp_path):
    run("digit_pictures.py")["write"](tmp_path / "digits", {"image": np.zeros((2, 1, 8, 8)), "labels": np.array([3, 7])})
    assert sorted(path.parent.name for path in (tmp_path / "digits").rglob("*.png")) == ["3", "7"]


def test_shapes_are_written_with_their_boxes(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    run("shapes_to_detect.py")["main"](tmp_path / "shapes", 3, 2)
    assert len(list((tmp_path / "shapes" / "train").rglob("*.png"))) == 3
    assert len(list((tmp_path / "shapes").rglob("annotations.json"))) == 2


def test_training_from_a_data_loader_lowers_the_loss(run):
    names = run("torch_data_loader.py")
    first, last = names["losses"][:5], names["losses"][-5:]
    assert len(names["losses"]) == 20 and np.mean(last) < np.mean(first)


def test_training_by_gradients_of_jax_lowers_the_loss(run):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    values = run("jax_gradients.py")["values"]
    assert values[-1] < 0.5 * values[0]


def test_curves_of_both_optimizers_are_equal(run):
    names = run("torch_optimizer.py")
    assert len(names["ours"]) == 50 and names["ours"][-1] < 0.5 * names["ours"][0]
    np.testing.assert_allclose(names["ours"], names["theirs"], rtol=0, atol=1e-5)


def test_gradients_of_a_layer_are_those_in_float64(run):
    """The trained model of the example once more in float64, the ONNX layer written in PyTorch."""
    names = run("torch_layer.py")
    assert names["values"][-1] < 0.9 * names["values"][0]
    model, layer = names["model"], names["layer"]
    weights = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    x, targets = names["inputs"], names["targets"]

    h = x.double() @ weights["0.weight"].T + weights["0.bias"]
    h = torch.tanh(h @ weights["1.fc1.weight"] + weights["1.fc1.bias"])
    h = torch.tanh(h @ weights["1.fc2.weight"] + weights["1.fc2.bias"])
    h = h @ weights["3.weight"].T + weights["3.bias"]
    torch.nn.functional.mse_loss(h, targets.double()).backward()

    model.zero_grad()
    torch.nn.functional.mse_loss(model(x), targets).backward()
    assert len(list(layer.parameters())) == 4
    for name, parameter in model.named_parameters():
        expected = weights[name].grad
        error = (parameter.grad.double() - expected).norm() / expected.norm()
        assert error < 1e-6, name


def test_predictions_are_of_one_version_each(run):
    names = run("swap_while_serving.py")
    assert len(set(names["used"])) >= names["VERSIONS"] // 2
    assert len({logits.tobytes() for logits in names["versions"]}) == names["VERSIONS"] + 1


def test_a_federation_learns_the_digits(tmp_path):
    """Flower needs versions of other packages than these tests: it has an environment of its own."""
    python = tool.ROOT / ".deps/flower/bin/python"
    if not python.exists():
        pytest.skip("Flower is not installed: scripts/bootstrap --tests")
    done = subprocess.run(
        [python, FOLDER / "flower_digits.py", "3"], capture_output=True, text=True, timeout=tool.PATIENCE, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tool.COMMAND.parent / "python")},
    )  # fmt: skip
    accuracies = [float(text) for text in re.findall(r"round \d: accuracy ([\d.]+)%", done.stdout)]
    assert len(accuracies) == 4 and accuracies[0] < 30 and accuracies[-1] > 95, done.stdout + done.stderr


def test_workers_of_ray_have_their_test_elsewhere():
    """"ray_digits.py" needs a cluster: test_package_ray.py."""


def test_the_notebook_runs_in_a_kernel(tmp_path, monkeypatch):
    if importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None:
        pytest.skip("nbclient and ipykernel are not installed")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(tool.COMMAND.parent / "python"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(FOLDER / "train_a_model.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    nbclient.NotebookClient(notebook, timeout=tool.PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert "It can be trained" in text and "320/320" in text and "epoch 20: train loss" in text
    assert float(text.split("accuracy")[-1]) > 0.9
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    data = np.zeros((1, 2), np.float32)
    expected = onnx_train.Session(tmp_path / "trained.onnx", threads=1).predict(data).logits
    np.testing.assert_allclose(tool.session(tmp_path / "trained.onnx").run(None, {"points": data})[0], expected, atol=1e-5)
