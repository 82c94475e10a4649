"""Batch normalization, node by node, against PyTorch in float64: frozen backbones, and layers without running
statistics, as PyTorch's exporters write them."""

import copy
import io

import numpy as np
import onnx
import pytest
import tool
import torch
from export import export
from torch import nn
from torch.nn import functional as F

import onnx_train


EXACT = {"eps": 2.0**-17, "momentum": 0.25}  # as float32, too, in which ONNX keeps them


class Net(nn.Module):
    def __init__(self, norm=nn.BatchNorm2d, **options):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(2, 4, 3), norm(4, **EXACT, **options), nn.ReLU(), nn.Conv2d(4, 5, 3))
        last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3))
        self.head = nn.Sequential(nn.BatchNorm2d(5, **EXACT), nn.ReLU(), *last)

    def forward(self, x):
        return self.head(self.backbone(x))


def made(norm=nn.BatchNorm2d, **options):
    torch.manual_seed(0)
    net = Net(norm, **options)
    for name, parameter in [*net.named_parameters(), *net.named_buffers()]:
        if parameter.is_floating_point() and parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 2)
    return net, torch.randn(6, 2, 8, 8) * 2 + 1, torch.tensor([0, 1, 2, 0, 1, 2])


def gradients(net, x, labels, frozen):
    """With the `frozen` modules as PyTorch users freeze them: requires_grad_(False) and eval()."""
    net = copy.deepcopy(net).double().train()
    for part in frozen:
        net.get_submodule(part).eval().requires_grad_(False)
    loss = F.cross_entropy(net(x.double()), labels)
    loss.backward()
    found = {f"grad/{name}": p.grad for name, p in net.named_parameters() if p.grad is not None}
    moved = {f"next/{name}": b for name, b in net.named_buffers() if "running" in name}
    return {"loss": loss.detach(), **found}, moved


def grad(model, x, labels, folder, *options):
    inputs = tool.save(folder / "x.npz", {"x": x.numpy(), "labels": labels.numpy()})
    tool.run("grad", model, "--inputs", inputs, "-o", folder / "g.npz", "--dtype", "float64", *options)
    return tool.load(folder / "g.npz")


def assert_equal(ours, theirs):
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    "frozen, options",
    [
        (["backbone"], ["--freeze", "backbone*"]),
        (["backbone"], ["--train", "head*"]),
        (["head.0"], ["--freeze", "head.0*"]),  # frozen between trained layers
        (["backbone", "head.0"], ["--train", "head.4*"]),
    ],
)
def test_frozen_layers_normalize_with_their_running_statistics(frozen, options, tmp_path):
    net, x, labels = made()
    export(net, {"x": x}, tmp_path / "m.onnx", "torchscript")
    theirs, moved = gradients(net, x, labels, frozen)
    ours = grad(tmp_path / "m.onnx", x, labels, tmp_path, *options)
    assert_equal(ours, theirs)
    assert {key for key in ours if key.startswith("grad/")} == theirs.keys() - {"loss"}
    kept = {key for key in moved if any(key.startswith(f"next/{part}") for part in frozen)}
    assert {key for key in ours if key.startswith("next/")} == moved.keys() - kept
    assert_equal(ours, {key: moved[key] for key in moved.keys() - kept})


def test_preserve_follows_an_export_with_a_backbone_in_evaluation_mode(tmp_path):
    net, x, labels = made()
    net.train().backbone.eval()
    with_mode = copy.deepcopy(net)
    torch.onnx.export(with_mode, (x,), str(tmp_path / "m.onnx"), dynamo=False, input_names=["x"], opset_version=17,
                      training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)  # fmt: skip
    net.head.load_state_dict(with_mode.head.state_dict())  # exporting ran it
    reference = copy.deepcopy(net).double()
    loss = F.cross_entropy(reference(x.double()), labels)
    loss.backward()
    theirs = {f"grad/{name}": p.grad for name, p in reference.named_parameters()}
    ours = grad(tmp_path / "m.onnx", x, labels, tmp_path, "--mode", "preserve")
    assert_equal(ours, {"loss": loss.detach(), **theirs})
    assert {key for key in ours if key.startswith("next/")} == {"next/head.0.running_mean", "next/head.0.running_var"}
    said = tool.run("build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx")
    assert "--mode preserve" in said


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize(
    "norm, options", [(nn.BatchNorm2d, {"track_running_stats": False}), (nn.InstanceNorm2d, {"affine": True})]
)
def test_layers_without_running_statistics_use_their_batch(exporter, norm, options, tmp_path):
    net, x, labels = made(norm, **options)
    unfolded = {"external_data": False, "optimize": False}
    if exporter == "torchscript":
        unfolded = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    torch.onnx.export(net.eval(), (x,), str(tmp_path / "m.onnx"), dynamo=exporter == "dynamo", input_names=["x"],
                      output_names=["logits"], verbose=False, **unfolded)  # fmt: skip
    inputs = tool.save(tmp_path / "x.npz", {"x": x.numpy()})
    tool.run("build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx")
    tool.run("export", tmp_path / "t.onnx", "-o", tmp_path / "e.onnx")
    for model in ("m.onnx", "t.onnx", "e.onnx"):
        tool.run("predict", tmp_path / model, "--inputs", inputs, "-o", tmp_path / "y.npz")
        ours = tool.load(tmp_path / "y.npz")["logits"]
        np.testing.assert_allclose(ours, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    frozen = grad(tmp_path / "m.onnx", x, labels, tmp_path, "--mode", "frozen")
    net.double()
    loss = F.cross_entropy(net(x.double()), labels)
    loss.backward()
    found = {f"grad/{name}": p.grad for name, p in net.named_parameters() if f"grad/{name}" in frozen}
    assert "grad/backbone.1.weight" in found
    assert_equal(frozen, {"loss": loss.detach(), **found})


def test_a_last_batch_of_one_sample_is_refused_before_the_first_step(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    export(net, {"x": torch.randn(5, 3)}, tmp_path / "m.onnx", "torchscript")
    tool.run("build", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx")
    data = {"x": np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32), "labels": np.arange(9) % 2}
    fit = ("fit", tmp_path / "t.onnx", "--data", tool.save(tmp_path / "d.npz", data), "--batch-size", 8)
    error = tool.run(*fit, "--epochs", 1, "--out", tmp_path / "a", status=1)
    assert "the last of 9 samples is a batch of its own" in error and "more than 1 value per channel" in error
    tool.run(*fit, "--steps", 1, "--out", tmp_path / "b")  # does not reach it


def test_an_empty_batch_leaves_the_state_as_it_was():
    """Its mean and variance are no numbers, and would be those of the network from then on."""
    net, x, labels = made()
    file = io.BytesIO()
    torch.onnx.export(net, (x,), file, dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, input_names=["x"], dynamic_axes={"x": {0: "N"}})  # fmt: skip
    training = onnx_train.build(file.getvalue(), "cross_entropy", "adamw")
    session = onnx_train.Session(training, threads=1)
    session.step(x.numpy(), labels.numpy())
    before = {name: np.array(value) for name, value in session.state.items()}
    with pytest.raises(onnx_train.Error, match="the batch of entry point .step. is empty"):
        session.step(x.numpy()[:0], labels.numpy()[:0])
    for name, value in before.items():
        np.testing.assert_array_equal(session.state[name], value, err_msg=name)


def test_gradients_that_are_no_numbers_are_refused():
    """The slope of a root at 0 is infinite, its value is not."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {0, 0}> { h = MatMul(x, w) a = Abs(h) y = Sqrt(a) }""")
    batch = {"x": np.ones((3, 2), np.float32), "target": np.ones((3, 1), np.float32)}
    session = onnx_train.Session(onnx_train.build(model, "mse(y, target)", "sgd"), threads=1)
    with pytest.raises(onnx_train.DataError, match="the norm of the gradients is NaN, though the loss is finite"):
        session.step(batch)
    session = onnx_train.Session(onnx_train.build(model, "mse(y, target)", "sgd"), threads=1, allow_non_finite=True)
    assert session.step(batch).loss == 1
