"""The names of ONNX Runtime's on-device training: its published steps run, and the numbers are PyTorch's."""

import re
import shutil

import numpy as np
import onnx
import pytest
import tool
import torch
from torch.nn import functional as F

import onnx_train
from onnx_train.onnxruntime.training import artifacts, onnxblock  # noqa: E402
from onnx_train.onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer, OrtValue  # noqa: E402

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
TRAINED = ["fc1.weight", "fc2.weight", "fc2.bias"]


def generate(folder, loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW, **options):
    model = onnx.load(MLP)
    artifacts.generate_artifacts(model, TRAINED, ["fc1.bias"], loss, optimizer, folder, **options)
    return start(folder)


def start(folder):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def data(classes=True):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4)).astype(np.float32)
    return x, rng.integers(0, 3, 8) if classes else rng.uniform(size=(8, 3)).astype(np.float32)


def test_the_page_runs(tmp_path, monkeypatch):
    shutil.copy(MLP, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    names = {}
    text = (tool.ROOT / "docs" / "from_onnxruntime_training.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "from_onnxruntime_training.md", "exec"), names)
    assert names["losses"][-1] < 0.5 * names["losses"][0]
    (served,) = tool.session("inference_model.onnx").run(None, {"x": names["data"]})
    np.testing.assert_allclose(served, names["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["enum", "block"])
@pytest.mark.parametrize("name", ["CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss", "L1Loss"])
def test_losses_and_steps_are_pytorchs(tmp_path, name, kind):
    function = {"CrossEntropyLoss": F.cross_entropy, "MSELoss": F.mse_loss, "L1Loss": F.l1_loss,
                "BCEWithLogitsLoss": F.binary_cross_entropy_with_logits}[name]  # fmt: skip
    loss = artifacts.LossType[name] if kind == "enum" else getattr(onnxblock.loss, name)()
    state, module, optimizer = generate(tmp_path, loss)
    weights = {n: torch.tensor(p.data.copy(), requires_grad=n in TRAINED) for n, p in state.parameters.items()}
    theirs = torch.optim.AdamW([weights[n] for n in TRAINED], lr=1e-3, eps=1e-6, weight_decay=0.0)
    x, target = data(name == "CrossEntropyLoss")
    assert module.input_names() == ["x", "labels" if name == "CrossEntropyLoss" else "target"]
    for _ in range(5):
        h = torch.tanh(torch.from_numpy(x) @ weights["fc1.weight"] + weights["fc1.bias"])
        expected = function(h @ weights["fc2.weight"] + weights["fc2.bias"], torch.from_numpy(target))
        assert module.eval()(x, target) == pytest.approx(expected.item(), rel=1e-5)
        assert module.train()(x, target) == pytest.approx(expected.item(), rel=1e-5)
        optimizer.step()
        module.lazy_reset_grad()
        theirs.zero_grad()
        expected.backward()
        theirs.step()
    for key in TRAINED:
        np.testing.assert_allclose(state.parameters[key].data, weights[key].detach(), rtol=1e-4, atol=1e-5)


def test_a_reset_before_the_step_drops_gradients(tmp_path):
    results = []
    for name, spoil in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        state, module, optimizer = generate(tmp_path / name)
        x, labels = data()
        if spoil:
            module(5 * x[::-1].copy(), labels)
            module.lazy_reset_grad()
        module(x, labels)
        optimizer.step()
        results.append(state.parameters["fc2.weight"].data.copy())
    assert np.array_equal(*results)


def test_a_checkpoint_with_optimizer_state_continues(tmp_path):
    state, module, optimizer = generate(tmp_path)
    x, labels = data()
    for _ in range(3):
        module(x, labels)
        optimizer.step()
    state.properties["epoch"], state.properties["best"], state.properties["name"] = 3, 0.5, "mlp"
    CheckpointState.save_checkpoint(state, tmp_path / "checkpoint", include_optimizer_state=True)
    other, again, second = start(tmp_path)
    assert dict(other.properties) == {"epoch": 3, "best": 0.5, "name": "mlp"}
    for _ in range(3):
        assert module(x, labels) == again(x, labels)
        optimizer.step()
        second.step()
    assert np.array_equal(state.parameters["fc1.weight"].data, other.parameters["fc1.weight"].data)


def test_parameters_as_one_vector_and_one_by_one(tmp_path):
    state, module, _ = generate(tmp_path)
    vector = module.get_contiguous_parameters(trainable_only=True)
    assert vector.numpy().shape == (module.get_parameters_size(True),) == (4 * 16 + 16 * 3 + 3,)
    assert module.get_parameters_size(False) == module.get_parameters_size(True) + 16
    state.parameters["fc2.bias"] = np.ones(3, np.float32)
    assert np.array_equal(module.get_contiguous_parameters(True).numpy()[-3:], np.ones(3))
    module.copy_buffer_to_parameters(vector)
    assert np.array_equal(module.get_contiguous_parameters(True).numpy(), vector.numpy())
    with pytest.raises(onnx_train.UnsupportedError, match="'fc1.bias' is frozen"):
        state.parameters["fc1.bias"].data = np.ones(16)
    with pytest.raises(onnx_train.DataError, match="the buffer has the shape"):
        module.copy_buffer_to_parameters(np.ones(3))


def test_grad_is_the_sum_of_the_gradients_since_the_last_step(tmp_path):
    state, module, optimizer = generate(tmp_path)
    assert state.parameters["fc1.weight"].grad is None
    x, labels = data()
    weights = {name: torch.tensor(p.data.copy(), requires_grad=True) for name, p in state.parameters.items()}
    for rows in (slice(0, 4), slice(4, 8)):
        module(x[rows], labels[rows])
        h = torch.tanh(torch.from_numpy(x[rows]) @ weights["fc1.weight"] + weights["fc1.bias"])
        F.cross_entropy(h @ weights["fc2.weight"] + weights["fc2.bias"], torch.from_numpy(labels[rows])).backward()
    for name in TRAINED:
        np.testing.assert_allclose(state.parameters[name].grad, weights[name].grad, rtol=1e-4, atol=1e-6)
    assert state.parameters["fc1.bias"].grad is None, "frozen"
    optimizer.step()
    module.lazy_reset_grad()
    module(x, labels)
    assert np.linalg.norm(state.parameters["fc2.bias"].grad) < np.linalg.norm(weights["fc2.bias"].grad)
    assert repr(state.parameters["fc2.bias"]) == "Parameter(name=fc2.bias, requires_grad=True)"


def test_ort_values_give_ort_values(tmp_path):
    import onnxruntime

    _, module, _ = generate(tmp_path, additional_output_names=["logits"])
    x, labels = data()
    loss, logits = module.eval()(x, labels)
    for kind in (onnxruntime.OrtValue, OrtValue):
        results = module(*(kind.ortvalue_from_numpy(array) for array in (x, labels)))
        assert all(isinstance(value, OrtValue) for value in results)
        assert results[0].numpy() == loss and np.array_equal(results[1].numpy(), logits) and results[0].shape() == []


def test_gradients_are_clipped_to_the_norm(tmp_path):
    clip = onnxblock.optim.ClipGradNorm(0.01)
    state, module, optimizer = generate(tmp_path, optimizer=onnxblock.optim.SGD(clip_grad=clip))
    optimizer.set_learning_rate(1.0)
    before = {name: state.parameters[name].data.copy() for name in TRAINED}
    module(*data())
    optimizer.step()
    change = np.sqrt(sum(np.sum((state.parameters[name].data - before[name]) ** 2) for name in TRAINED))
    assert change == pytest.approx(0.01, rel=1e-3)


def test_the_schedule_rises_and_falls(tmp_path):
    _, module, optimizer = generate(tmp_path)
    scheduler = LinearLRScheduler(optimizer, 2, 6, 0.4)
    rates = []
    for _ in range(6):
        module(*data())
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, [0.2, 0.4, 0.3, 0.2, 0.1, 0.0], atol=1e-12)


def test_wrong_arguments_are_errors(tmp_path):
    for options, message in [
        ({"ort_format": True}, "ort_format is not supported"),
        ({"requires_grad": ["fc1.bias"]}, "in requires_grad and in frozen_params"),
        ({"loss": "mse"}, "must be a LossType"),
    ]:
        arguments = {"requires_grad": TRAINED, "frozen_params": ["fc1.bias"]} | options
        with pytest.raises(onnx_train.Error, match=message):
            artifacts.generate_artifacts(onnx.load(MLP), artifact_directory=tmp_path, **arguments)
    with pytest.raises(onnx_train.UsageError, match="no model is at work"):
        onnxblock.loss.MSELoss()("logits")
