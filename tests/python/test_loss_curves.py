"""Fifty steps of `onnx-train fit` against PyTorch from the same weights on the same batches."""

import numpy as np
import pytest
import reference
import tool
import torch
import networks

STEPS = 50
BATCHES = 5
TOLERANCE = {"float32": 1e-3, "float64": 1e-8}
# Rates are float32 numbers, as the input learning_rate is. ResNet-18 in miniature is chaotic at the rates of the others:
# a difference in the last bit grows tenfold in each step, in PyTorch alone, too.
OPTIMIZERS = {
    "sgd": ("sgd(momentum=0.9)", 2**-7, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
    "adamw": ("adamw(weight_decay=0.1)", 2**-9, lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1)),
}
SLOWER = {"resnet18": 2**-5}


def fit(path, data, folder, batch_size, optimizer, rate, *options, steps=STEPS, build=(), loss="cross_entropy"):
    """Builds a training model from `path` and trains it on batches in the order of the data."""
    inputs, model, out = folder / "data.npz", folder / "train.onnx", folder / "run"
    tool.save(inputs, data)
    tool.run("build", path, "-o", model, "--loss", loss, "--optimizer", optimizer, *build)
    tool.run("fit", model, "--data", inputs, "--steps", steps, "--batch-size", batch_size, "--lr", rate,
             "--schedule", "constant", "--no-shuffle", "--out", out, *options)  # fmt: skip
    return tool.losses(out)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", networks.EXAMPLES)
def test_losses_are_those_of_pytorch(exported, tmp_path, name, optimizer, dtype):
    example, path = exported(name, double=dtype == "float64")
    data = reference.repeated(example, BATCHES)
    batch_size = len(example.labels)
    expression, rate, make_optimizer = OPTIMIZERS[optimizer]
    rate *= SLOWER.get(name, 1)
    ours = fit(path, data, tmp_path, batch_size, expression, rate, build=["--decay", "*"], loss=example.loss)
    theirs = reference.loss_curve(example, data, batch_size, STEPS, lambda p: make_optimizer(p, rate))
    assert len(ours) == STEPS
    errors = np.abs(ours - theirs) / theirs
    assert errors.max() <= TOLERANCE[dtype], f"step {errors.argmax()}: {ours[errors.argmax()]}, {errors.max():.1e}"


def test_adamw_decays_neither_biases_nor_norms(exported, tmp_path):
    """The default groups: matrices decay, vectors do not."""

    def groups(parameters):
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() <= 1]
        return torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
                                 lr=2**-7, weight_decay=0.5)  # fmt: skip

    example, path = exported("cnn", double=True)
    data = reference.repeated(example, BATCHES)
    ours = fit(path, data, tmp_path, len(example.labels), "adamw(weight_decay=0.5)", 2**-7)
    theirs = reference.loss_curve(example, data, len(example.labels), STEPS, groups)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)


@pytest.mark.parametrize(
    "expression, make",
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=2**-5)),
        (
            "sgd(momentum=0.9, nesterov=1, weight_decay=0.01)",
            lambda p: torch.optim.SGD(p, lr=2**-5, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
        (
            "sgd(momentum=0.9, dampening=0.5)",
            lambda p: torch.optim.SGD(p, lr=2**-5, momentum=0.9, dampening=0.5),
        ),
        ("adam(weight_decay=0.01)", lambda p: torch.optim.Adam(p, lr=2**-5, weight_decay=0.01)),
    ],
)
def test_optimizers_are_defined_as_in_pytorch(exported, tmp_path, expression, make):
    example, path = exported("mlp", double=True)
    data = reference.repeated(example, BATCHES)
    ours = fit(path, data, tmp_path, len(example.labels), expression, 2**-5, build=["--decay", "*"])
    theirs = reference.loss_curve(example, data, len(example.labels), STEPS, make)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)


def test_gradients_are_clipped_by_their_global_norm(exported, tmp_path):
    class Clipped(torch.optim.SGD):
        def step(self):
            torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.25)
            super().step()

    example, path = exported("mlp", double=True)
    data = reference.repeated(example, BATCHES)
    ours = fit(path, data, tmp_path, len(example.labels), "sgd", 0.5, build=["--clip", 0.25])
    theirs = reference.loss_curve(example, data, len(example.labels), STEPS, lambda p: Clipped(p, lr=0.5))
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)
