"""`onnx-train grad` against PyTorch in float64, on what both of PyTorch's exporters write."""

import numpy as np
import pytest
import reference
import tool

TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
WITH_BATCH_NORM = ["cnn", "resnet18", "mobilenet", "unet_bilinear", "deeplab", "yolo"]
CASES = [(name, "train") for name in ["mlp", *WITH_BATCH_NORM, "bert", "masked_lm", "gpt2", "gpt2_tied", "dlrm", "lstm", "gru"]]
CASES += [(name, "frozen") for name in WITH_BATCH_NORM]


def compare(example, path, mode, dtype, folder, *options):
    inputs = tool.save(folder / "inputs.npz", reference.arrays(example))
    outputs = folder / "outputs.npz"
    tool.run("grad", path, "--inputs", inputs, "--loss", example.loss, "--mode", mode, "-o", outputs, *options)
    ours, theirs = tool.load(outputs), reference.gradients(example, mode)

    floor = 1e-3 * np.sqrt(sum(np.sum(g**2) for g in theirs["gradients"].values()))
    errors = {"loss": abs(ours["loss"] - theirs["loss"]) / abs(theirs["loss"])}
    errors["logits"] = reference.distance(ours["output/logits"], theirs["logits"], 0)
    for name, expected in theirs["inputs"].items():
        errors[f"grad_input/{name}"] = reference.distance(ours[f"grad_input/{name}"], expected, floor)
    initializers = reference.Initializers(path)
    for name, expected in theirs["gradients"].items():
        actual = initializers.gradient(ours, theirs["weights"][name])
        errors[name] = reference.distance(actual, expected, floor)
    for name, (before, after) in theirs["buffers"].items():
        if mode == "train" and name.endswith(("running_mean", "running_var")):
            [(found, _)] = initializers.find(before)
            errors[name] = reference.distance(ours[f"next/{found}"], after, 0)
    if mode == "frozen":
        assert not [key for key in ours if key.startswith("next/")]

    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not wrong, f"{len(wrong)} of {len(errors)} differ: {wrong}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name, mode", CASES)
def test_gradients_are_those_of_pytorch(exported, tmp_path, name, mode, dtype):
    example, path = exported(name, double=dtype == "float64")
    compare(example, path, mode, dtype, tmp_path)


@pytest.mark.parametrize("name", ["mlp", "cnn", "unet_bilinear"])
def test_a_float32_file_can_be_differentiated_in_float64(exported, tmp_path, name):
    example, path = exported(name)
    compare(example, path, "train", "float64", tmp_path, "--dtype", "float64")


def test_train_selects_the_weights(exported, tmp_path):
    example, path = exported("mlp")
    inputs = tool.save(tmp_path / "inputs.npz", reference.arrays(example))
    outputs = tmp_path / "outputs.npz"
    tool.run("grad", path, "--inputs", inputs, "--loss", "cross_entropy", "--train", "0.*", "-o", outputs)
    grads = {key for key in tool.load(outputs) if key.startswith("grad/")}
    assert grads == {"grad/0.weight", "grad/0.bias"}
