"""What we write is plain ONNX: its own checker accepts it, and ONNX Runtime computes what we compute."""

import numpy as np
import onnx
import pytest
import reference
import tool
import networks

STEPS = 10
BATCHES = 3
RATE = 2**-8
DROPOUT = {"mlp": 0.3, "cnn": 0.3, "gpt2": 0.1}  # exported in train mode, which keeps it
# AdamW makes a whole step of a gradient near zero, whatever its rounding, and the statistics of small batches make that
# larger: after two such steps two processors' losses are apart by more than a bound on rounding says.
SENSITIVE = {"resnet18"}


def build(exported, name, folder, *options, optimizer="adamw", **sizes):
    example, path = exported(name, **sizes)
    model = folder / "train.onnx"
    tool.run("build", path, "-o", model, "--loss", example.loss, "--optimizer", optimizer, *options)
    return example, model


def flatten(model, entry, folder):
    path = folder / f"{entry}.onnx"
    tool.run("flatten", model, "--entry", entry, "-o", path)
    return path


@pytest.mark.parametrize("name, dropout", [*((name, False) for name in networks.EXAMPLES), *((n, True) for n in DROPOUT)])
def test_flattened_step_gives_our_losses_on_onnx_runtime(exported, tmp_path, name, dropout):
    sizes = {"dropout": DROPOUT[name], "train": True} if dropout else {}
    optimizer = "sgd(momentum=0.9)" if name in SENSITIVE else "adamw"
    example, model = build(exported, name, tmp_path, optimizer=optimizer, **sizes)
    data = reference.repeated(example, BATCHES)
    batch_size = len(example.labels)
    inputs, out = tool.save(tmp_path / "data.npz", data), tmp_path / "run"
    tool.run("fit", model, "--data", inputs, "--steps", STEPS, "--batch-size", batch_size, "--lr", RATE,
             "--schedule", "constant", "--no-shuffle", "--out", out)  # fmt: skip
    theirs = tool.run_steps(model, flatten(model, "step", tmp_path), data, batch_size, STEPS, RATE)
    np.testing.assert_allclose(tool.losses(out), theirs, rtol=1e-4)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("name", networks.EXAMPLES)
def test_all_files_pass_the_checker(exported, tmp_path, name, accumulate):
    options = ["--accumulate"] if accumulate else []
    _, model = build(exported, name, tmp_path, *options)
    onnx.checker.check_model(onnx.load(model), full_check=True)
    entries = [info.algorithm.name for info in onnx.load(model).training_info]
    assert {"accumulate", "apply", "evaluate"} <= set(entries) if accumulate else {"step", "evaluate"} <= set(entries)
    for entry in ["predict", *entries]:
        path = flatten(model, entry, tmp_path)
        onnx.checker.check_model(onnx.load(path), full_check=True)
    tool.run("export", model, "-o", tmp_path / "inference.onnx")
    inference = onnx.load(tmp_path / "inference.onnx")
    onnx.checker.check_model(inference, full_check=True)
    assert not inference.training_info and not inference.functions


@pytest.mark.parametrize("name", networks.EXAMPLES)
def test_a_training_model_is_an_inference_model(exported, tmp_path, name):
    example, model = build(exported, name, tmp_path)
    _, original = exported(name)
    tool.run("export", model, "-o", tmp_path / "inference.onnx")
    feeds = {k: v.numpy() for k, v in example.inputs.items()}
    [expected] = tool.session(original).run(None, feeds)
    for path in model, tmp_path / "inference.onnx":
        [actual] = tool.session(path).run(None, feeds)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", networks.EXAMPLES)
def test_predict_agrees_with_onnx_runtime(exported, tmp_path, name):
    example, path = exported(name)
    feeds = {k: v.numpy() for k, v in example.inputs.items()}
    inputs = tool.save(tmp_path / "inputs.npz", feeds)
    tool.run("predict", path, "--data", inputs, "-o", tmp_path / "outputs.npz")
    [expected] = tool.session(path).run(None, feeds)
    np.testing.assert_allclose(tool.load(tmp_path / "outputs.npz")["logits"], expected, rtol=1e-4, atol=1e-5)


def test_accumulated_gradients_are_those_of_one_batch(exported, tmp_path):
    """accumulate twice, then apply, on ONNX Runtime: the same weights as a step on both halves at once."""
    example, whole = build(exported, "mlp", tmp_path, optimizer="sgd")
    data = reference.arrays(example)
    half = len(data["labels"]) // 2
    step = tool.session(flatten(whole, "step", tmp_path))
    weights = tool.state_of(onnx.load(whole))

    def feeds(runtime, values):
        return {i.name: values[i.name] for i in runtime.get_inputs() if i.name in values}

    def run(runtime, values):
        names = [o.name for o in runtime.get_outputs()]
        return dict(zip(names, runtime.run(None, feeds(runtime, values))))

    rate = {"learning_rate": np.array(0.5, np.float32)}
    expected = run(step, {**weights, **data, **rate})

    _, cut = build(exported, "mlp", tmp_path, "--accumulate", optimizer="sgd")
    state = tool.state_of(onnx.load(cut))
    accumulate, apply = tool.session(flatten(cut, "accumulate", tmp_path)), tool.session(flatten(cut, "apply", tmp_path))
    for start in (0, half):
        batch = {name: value[start : start + half] for name, value in data.items()}
        results = run(accumulate, {**state, **batch})
        state |= {k.removeprefix("next/"): v for k, v in results.items() if k.startswith("next/")}
    results = run(apply, {**state, **rate})
    for name, value in expected.items():
        if name.startswith("next/") and not name.startswith("next/state/"):
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6)
