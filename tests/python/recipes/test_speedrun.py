"""What docs/recipes/speedrun.md trains: the first layer whitens, the pictures need more than a linear model, both networks
train, and test-time augmentation is the mean that it says, from the command and in an exported file."""

import sys

import numpy as np
import pytest
import tool
import torch

sys.path.append(str(tool.ROOT / "examples" / "recipes"))
sys.path.append(str(tool.ROOT / "models"))
import speed_networks  # noqa: E402
import speedrun  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("speedrun")
    speedrun.write_made(path / "pictures", training=300, test=100)
    return path


def test_what_the_first_layer_makes_of_the_pictures_is_not_correlated(folder):
    pixels, _ = speed_networks.cifar(folder / "pictures" / "data_batch_1.bin")
    filters = speed_networks.whitening(pixels, epsilon=0)
    seen = torch.nn.functional.conv2d(speed_networks.normalized(torch.from_numpy(pixels)), filters)
    rows = seen.movedim(1, -1).reshape(-1, speed_networks.PATCH).double()
    np.testing.assert_allclose((rows.T @ rows / len(rows)).numpy(), np.eye(speed_networks.PATCH), atol=1e-4)


def test_no_linear_model_knows_the_pictures():
    (x, y), (x_test, y_test) = (speedrun.made(1000, 1, 0.5), speedrun.made(500, 2, 0.5))
    x, x_test = (pixels.reshape(len(pixels), -1) / 255 - 0.5 for pixels in (x, x_test))
    gram = x @ x.T + 50 * np.eye(len(x))  # ridge regression of the classes
    classes = x_test @ (x.T @ np.linalg.solve(gram, np.eye(10)[y] - 0.1))
    assert (classes.argmax(1) == y_test).mean() < 0.3


def test_views_are_averaged_by_the_command_and_by_an_exported_file(folder):
    pictures = folder / "pictures"
    speed_networks.make(pictures, folder / "hlb.onnx", "hlb", widths=(8, 8, 8))
    tool.run("build", folder / "hlb.onnx", "-o", folder / "train.onnx", "--optimizer", "muon", "--freeze", "whiten.weight")
    tool.run("fit", folder / "train.onnx", "--data", pictures, "--steps", 4, "--out", folder / "run")
    speed = folder / "flip.onnx"
    tool.run("export", folder / "run" / "last.onnx", "-o", folder / "plain.onnx")
    tool.run("export", folder / "run" / "last.onnx", "--tta", "flip, shift(1)", "-o", speed)
    x = np.random.default_rng(0).normal(0, 100, (4, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "x.npz", image=x)
    tool.run("predict", folder / "run" / "last.onnx", "--inputs", folder / "x.npz", "--tta", "flip, shift(1)", "-o",
             folder / "y.npz")  # fmt: skip

    def logits(path, pixels):
        return tool.session(path).run(None, {"image": np.ascontiguousarray(pixels)})[0]

    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="reflect")
    shifts = [x, padded[:, :, :-2, :-2], padded[:, :, 2:, 2:]]
    mean = np.mean([logits(folder / "plain.onnx", view[..., ::step]) for view in shifts for step in (1, -1)], axis=0)
    assert np.abs(mean - logits(folder / "plain.onnx", x)).max() > 1e-3
    np.testing.assert_allclose(logits(speed, x), mean, atol=1e-5)
    np.testing.assert_allclose(np.load(folder / "y.npz")["logits"], mean, atol=1e-5)


def test_what_cannot_be_averaged_is_refused(tmp_path):
    model, to = tool.ROOT / "tests" / "fixtures" / "mlp.onnx", tmp_path / "y.npz"
    data = tool.save(tmp_path / "x.npz", {"x": np.zeros((2, 4), np.float32)})
    error = tool.run("predict", model, "--inputs", data, "--tta", "flip", "-o", to, status=1)
    assert "--tta takes pictures, float[N,C,H,W]" in error and "the model's inputs are 'x'" in error
    assert "there is no view 'flp'" in tool.run("eval", model, "--data", data, "--tta", "flp", status=2)
    assert not to.exists()
    weights = tmp_path / "weights.npz"
    assert "holds float32 weights alone: take a .onnx file" in tool.run("export", model, "--tta", "flip", "-o", weights, status=1)
