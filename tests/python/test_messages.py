"""Messages that name what the user meant."""

import numpy as np
import onnx
import pytest
import tool

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"


def model(path, body, output="float[N,3] y"):
    onnx.save(onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[N,6] x) => ({output})
      <float[6,3] weights = {{1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}}> {{ {body} }}"""), path)  # fmt: skip
    return path


@pytest.mark.parametrize("body, message", [
    ("h = MatMul(x, weights) y = Tahn(h)", "is not known here; opset 21 does not have it; did you mean 'Tan', 'Atan', 'Tanh'?"),
    ("h = MatMul(x, weights) y = Swish(h)", "opset 21 does not have it; export with another opset"),
    ("h = MatMul(x, wieghts) y = Relu(h)", "node 'h' (MatMul) reads 'wieghts', which is no input, no initializer and no "
     "output of a node; did you mean 'weights'?"),
    ("a = Add(b, x) b = Add(a, x) y = MatMul(a, weights)", "the graph has a cycle"),
])  # fmt: skip
def test_misspelt_operators_and_names(body, message, tmp_path):
    assert message in tool.run("check", model(tmp_path / "model.onnx", body), status=1)


@pytest.mark.parametrize("pattern, similar", [("fc3.*", "'fc1.weight', 'fc1.bias', 'fc2.weight'"),
                                              ("*.wieght", "'fc1.weight', 'fc2.weight'?"),
                                              ("fc1.wieght", "'fc1.weight'")])  # fmt: skip
def test_a_group_that_matches_nothing_names_close_weights(pattern, similar, tmp_path):
    said = tool.run("build", MLP, "-o", tmp_path / "train.onnx", "--group", f"{pattern}: lr=10x", status=1)
    assert f"--group '{pattern}' matches none of the 4 weights; did you mean {similar}" in said


def test_a_model_without_gradients_is_an_error(tmp_path):
    path = model(tmp_path / "model.onnx", "h = MatMul(x, weights) r = Round(h) y = Identity(r)")
    data = tool.save(tmp_path / "data.npz", {"x": np.ones((2, 6), np.float32), "labels": [0, 1]})
    said = tool.run("grad", path, "--inputs", data, "-o", tmp_path / "grad.npz", status=1)
    assert "the loss depends on none of the weights and float inputs" in said
    assert not (tmp_path / "grad.npz").exists()


def test_small_budgets_of_memory_have_a_number(tmp_path):
    tool.run("build", MLP, "-o", tmp_path / "train.onnx")
    data = tool.save(tmp_path / "data.npz", {"x": np.ones((64, 4), np.float32), "labels": np.zeros(64, np.int64)})
    said = tool.run("fit", tmp_path / "train.onnx", "--data", data, "--batch-size", 32, "--epochs", 1, "--memory", 500,
                    "--out", tmp_path / "run", status=1)  # fmt: skip
    assert "the budget is 500 B" in said and " KB at the least" in said and "0.0 MB" not in said
