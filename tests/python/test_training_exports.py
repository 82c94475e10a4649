"""A model that was exported in training mode computes, in `predict` and `show --plan`, what its module computes in
evaluation mode."""

import numpy as np
import pytest
import tool
import torch
from export import export
from torch import nn

ROOT = tool.ROOT


class Residual(nn.Module):
    """Batch normalization and dropout in all places where an exporter might treat them apart."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3))
        self.second = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6, momentum=0.3), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(6 * 4 * 4, 5), nn.BatchNorm1d(5), nn.Dropout())

    def forward(self, x):
        h = self.first(x)
        return self.head(h + self.second(h))


def with_statistics(module):
    """Running statistics that differ from those of any batch, and from those of a fresh module."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(part.running_mean, -1, 1)
            nn.init.uniform_(part.running_var, 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 2)
    return module


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("train", [True, False])
def test_predict_runs_inference_whatever_mode_a_model_was_exported_in(exporter, train, tmp_path):
    torch.manual_seed(0)
    module, x = with_statistics(Residual()), torch.randn(7, 3, 4, 4)
    model = tmp_path / "model.onnx"
    export(module, {"x": x}, model, exporter, train=train)
    tool.run("predict", model, "--inputs", tool.save(tmp_path / "x.npz", {"x": x.numpy()}), "-o", tmp_path / "y.npz")
    with torch.no_grad():
        want = module.eval()(x).numpy()
    np.testing.assert_allclose(tool.load(tmp_path / "y.npz")["logits"], want, rtol=1e-5, atol=1e-5)
    plan = tool.run("show", model, "--plan", "--batch", 2)
    assert "Conv" in plan and "Dropout" not in plan


def test_the_shipped_digits_model_predicts(tmp_path):
    tool.run("predict", ROOT / "models" / "digits_cnn.onnx", "--inputs", ROOT / "models" / "data" / "digits_test.npz",
             "-o", tmp_path / "y.npz")  # fmt: skip
    logits = tool.load(tmp_path / "y.npz")["logits"]
    assert len(logits) == len(tool.load(ROOT / "models" / "data" / "digits_test.npz")["labels"])
    assert np.isfinite(logits).all()
    assert "Conv" in tool.run("show", ROOT / "models" / "digits_cnn.onnx", "--plan")
