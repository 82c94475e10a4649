"""The names of ONNX Runtime's on-device training: its published steps run, and the numbers are PyTorch's."""

import inspect
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
    (tmp_path / "tests").symlink_to(tool.ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    names = {}
    text = (tool.ROOT / "docs" / "from_onnxruntime_training.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "from_onnxruntime_training.md", "exec"), names)
    assert names["losses"][-1] < 0.5 * names["losses"][0]
    (served,) = tool.session("inference_model.onnx").run(None, {"x": names["data"]})
    np.testing.assert_allclose(served, names["logits"], rtol=1e-5, atol=1e-5)


class AdamWOptimizer:
    """ONNX Runtime's operator of this name, with the attributes of OptimType.AdamW."""

    def __init__(self, weights):
        self.states, self.steps = [(w, torch.zeros_like(w), torch.zeros_like(w)) for w in weights], 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        rate = 1e-3 * (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for w, m, v in self.states:
            m.mul_(0.9).add_(w.grad, alpha=0.1)
            v.mul_(0.999).addcmul_(w.grad, w.grad, value=0.001)
            w.addcdiv_(m, v.sqrt().add_(1e-6), value=-rate)
            w.grad = None


@pytest.mark.parametrize("kind", ["enum", "block"])
@pytest.mark.parametrize("name", ["CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss", "L1Loss"])
def test_losses_and_steps_are_pytorchs(tmp_path, name, kind):
    function = {"CrossEntropyLoss": F.cross_entropy, "MSELoss": F.mse_loss, "L1Loss": F.l1_loss,
                "BCEWithLogitsLoss": F.binary_cross_entropy_with_logits}[name]  # fmt: skip
    loss = artifacts.LossType[name] if kind == "enum" else getattr(onnxblock.loss, name)()
    state, module, optimizer = generate(tmp_path, loss)
    weights = {n: torch.tensor(p.data.copy(), requires_grad=n in TRAINED) for n, p in state.parameters.items()}
    theirs = AdamWOptimizer([weights[n] for n in TRAINED])
    x, target = data(name == "CrossEntropyLoss")
    assert module.input_names() == ["x", "labels" if name == "CrossEntropyLoss" else "target"]
    for _ in range(5):
        h = torch.tanh(torch.from_numpy(x) @ weights["fc1.weight"] + weights["fc1.bias"])
        expected = function(h @ weights["fc2.weight"] + weights["fc2.bias"], torch.from_numpy(target))
        assert module.eval()(x, target) == pytest.approx(expected.item(), rel=1e-5)
        assert module.train()(x, target) == pytest.approx(expected.item(), rel=1e-5)
        optimizer.step()
        module.lazy_reset_grad()
        expected.backward()
        theirs.step()
    for key in TRAINED:
        np.testing.assert_allclose(state.parameters[key].data, weights[key].detach(), rtol=1e-4, atol=1e-5)


LOSSES = {
    "MSELoss": lambda x, t: (x - t) ** 2,
    "L1Loss": lambda x, t: (x - t).abs(),
    "BCEWithLogitsLoss": lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
    "CrossEntropyLoss": lambda x, t: F.cross_entropy(x, t, reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_blocks_take_the_keywords_of_the_package_and_losses_that_other_blocks_reduce(tmp_path, name):
    """A clipped mean of the losses of the elements, with every name given by its keyword."""
    is_classes = name == "CrossEntropyLoss"
    keywords = ("scores_input_name", "labels_name") if is_classes else ("loss_input_name", "target_name")

    class Clipped(onnxblock.Block):
        def __init__(self):
            super().__init__(temp_file_name="unused.onnx")
            self.loss = getattr(onnxblock.loss, name)(reduction="none")
            self.clip, self.mean = onnxblock.blocks.Clip(clip_min=0.1, clip_max=1.0), onnxblock.blocks.ReduceMean()
            self.two, self.mul = onnxblock.blocks.Constant(value_float=2.0), onnxblock.blocks.Mul()

        def build(self, prediction):
            losses = self.loss(**dict(zip(keywords, (prediction, "wanted"))))
            return self.mul(input_name1=self.two(), input_name2=self.mean(input_name=self.clip(clip_input_name=losses)))

    state, module, _ = generate(tmp_path, Clipped())
    assert module.input_names() == ["x", "wanted"]
    x, target = data(is_classes)
    weights = {n: torch.tensor(p.data.copy(), requires_grad=True) for n, p in state.parameters.items()}
    h = torch.tanh(torch.from_numpy(x) @ weights["fc1.weight"] + weights["fc1.bias"])
    expected = 2 * LOSSES[name](h @ weights["fc2.weight"] + weights["fc2.bias"], torch.from_numpy(target)).clamp(0.1, 1).mean()
    expected.backward()
    assert np.asarray(module(x, target)).item() == pytest.approx(expected.item(), rel=1e-5)
    for key in TRAINED:
        np.testing.assert_allclose(state.parameters[key].grad, weights[key].grad, rtol=1e-4, atol=1e-6)


def test_every_block_has_the_parameters_of_the_package():
    """Of onnxruntime-training 1.19.2: the constructors' and those of build."""
    names = lambda function: [name for name in inspect.signature(function).parameters if name != "self"]
    blocks, one = onnxblock.blocks, ["input_name"]
    expected = {
        **{name: ([], ["input_name1", "input_name2"]) for name in ("Add", "Sub", "Mul", "Div")},
        **{name: ([], one) for name in ("Sigmoid", "Log", "Neg", "Abs")},
        **{name: (["keepdims"], one) for name in ("ReduceMean", "ReduceSum")},
        "Pow": (["exponent"], ["pow_input_name"]), "Constant": (["value_float"], []), "Cast": (["to"], ["cast_input_name"]),
        "SequenceConstruct": ([], ["sequence_input_names"]), "ReduceAllL2": ([], ["reduce_node_input_names"]),
        "Clip": (["clip_min", "clip_max"], ["clip_input_name"]), "PassThrough": ([], ["input_names"]),
        "InputLike": (["like"], ["input_name"]),
        "LabelEncoder": (["default_float", "default_int64", "default_string", "keys_floats", "keys_int64s", "keys_strings",
                          "values_floats", "values_int64s", "values_strings"], ["label_encoder_input_name"]),
        "Linear": (["in_features", "out_features", "bias", "alpha", "beta"], ["linear_input_name"]),
        "MSELoss": (["reduction"], ["loss_input_name", "target_name"]), "L1Loss": (["reduction"], ["loss_input_name", "target_name"]),
        "CrossEntropyLoss": (["weight", "reduction", "ignore_index"], ["scores_input_name", "labels_name"]),
        "BCEWithLogitsLoss": (["weight", "reduction", "pos_weight"], ["loss_input_name", "target_name"]),
    }  # fmt: skip
    for name, (made, built) in expected.items():
        block = getattr(blocks, name, None) or getattr(onnxblock.loss, name)
        assert [n for n in names(block.__init__) if n != "temp_file_name"] == made, name
        assert names(block.build) == built, name
    assert names(onnxblock.optim.AdamW.__init__) == ["bias_correction", "betas", "eps", "weight_decay", "clip_grad"]
    assert names(onnxblock.optim.SGD.__init__) == ["clip_grad"] and names(onnxblock.optim.ClipGradNorm.__init__) == ["max_norm"]
    assert names(artifacts.generate_artifacts) == [
        "model", "requires_grad", "frozen_params", "loss", "optimizer", "artifact_directory", "prefix", "ort_format",
        "custom_op_library", "additional_output_names", "nominal_checkpoint", "loss_input_names",
    ]  # fmt: skip


def test_blocks_build_what_onnx_runtime_computes(tmp_path):
    class All(onnxblock.ForwardBlock):
        def build(self, name):
            b = onnxblock.blocks
            linear = b.Linear(3, 2, alpha=0.5)(name)
            norm = b.ReduceAllL2()(name, linear)
            code = b.LabelEncoder(keys_int64s=[1], values_int64s=[5], default_int64=7)(b.Cast(onnx.TensorProto.INT64)(b.InputLike("x")("other")))
            mean = b.ReduceMean(keepdims=False)(b.Cast(onnx.TensorProto.FLOAT)(code))
            return b.Add()(b.Mul()(norm, b.ReduceSum(keepdims=False)(b.Clip(clip_max=0.5)(name))), mean)

    model = onnx.load(MLP)
    with onnxblock.base(model) as accessor:
        block = All()
        block("logits")
        weights = {t.name: onnx.numpy_helper.to_array(t) for t in accessor.model.graph.initializer}
    assert "linear.weight" not in [t.name for t in model.graph.initializer], "a copy is changed"
    onnx.save(block.to_model_proto(), tmp_path / "all.onnx")
    x = data()[0]
    (found,) = tool.session(tmp_path / "all.onnx").run(None, {"x": x, "other": np.round(x)})
    y = np.tanh(x @ weights["fc1.weight"] + weights["fc1.bias"]) @ weights["fc2.weight"] + weights["fc2.bias"]
    linear = 0.5 * (y @ weights["linear.weight"]) + weights["linear.bias"]
    norm = np.sqrt((y**2).sum() + (linear**2).sum())
    np.testing.assert_allclose(found, norm * np.minimum(y, 0.5).sum() + np.where(np.round(x) == 1, 5, 7).mean(), rtol=1e-4)


@pytest.mark.parametrize("kind", ["enum", "block"])
def test_a_model_with_tensors_in_other_files_is_given_by_its_path(tmp_path, kind, monkeypatch):
    """As those of more than 2 GB are, which no message holds: here nothing may read the tensors into one."""
    (tmp_path / "model").mkdir()
    onnx.save(onnx.load(MLP), tmp_path / "model/m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    expected = tmp_path / "whole"
    expected.mkdir()

    class Loss(onnxblock.Block):
        def build(self, logits):
            b = onnxblock.blocks
            penalty = b.ReduceSum(keepdims=False)(b.Pow(2.0)("fc1.weight"))
            return b.Add()(onnxblock.loss.CrossEntropyLoss()(logits, "wanted"), b.Mul()(penalty, b.Constant(0.01)()))

    loss = artifacts.LossType.CrossEntropyLoss if kind == "enum" else Loss()
    generate(expected, loss)
    load = onnx.load

    def load_without_tensors(path, *args, load_external_data=True, **kwargs):
        assert not load_external_data
        return load(path, *args, load_external_data=False, **kwargs)

    monkeypatch.setattr(onnx, "load", load_without_tensors)
    artifacts.generate_artifacts(tmp_path / "model/m.onnx", TRAINED, ["fc1.bias"], loss, artifacts.OptimType.AdamW, tmp_path)
    x, target = data()
    results = []
    for folder in (expected, tmp_path):
        state, module, optimizer = start(folder)
        losses = []
        for _ in range(3):
            losses.append(module(x, target))
            optimizer.step()
            module.lazy_reset_grad()
        results.append((losses, {name: parameter.data.copy() for name, parameter in state.parameters.items()}))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-6)
    for name, value in results[0][1].items():
        np.testing.assert_allclose(results[1][1][name], value, rtol=1e-6, atol=1e-7)


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
