"""Messages that name what the user meant."""

import numpy as np
import onnx
import pytest
import tool

import onnx_train

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


def test_positions_that_the_model_does_not_have_are_found_before_a_run(tmp_path):
    onnx.save(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (int64[N,T] ids) => (float[N,T,3] y)
      <float[5,3] tokens = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, float[4,3] positions = {1,2,3,4,5,6,7,8,9,1,2,3},
       int64 zero = {0}, int64 one = {1}>
      { t = Gather(tokens, ids) s = Shape<start=1>(ids) l = Squeeze(s) r = Range(zero, l, one)
        p = Gather(positions, r) y = Add(t, p) }"""), tmp_path / "model.onnx")  # fmt: skip
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy(axis=-1)")
    np.save(tmp_path / "data.npy", np.arange(64, dtype=np.uint16) % 3)
    fit = ["fit", tmp_path / "train.onnx", "--data", tmp_path / "data.npy", "--epochs", 1, "--batch-size", 2, "--out",
           tmp_path / "run"]  # fmt: skip
    said = tool.run(*fit, "--block-size", 6, status=1)
    assert "index 4 is outside of an axis of size 4" in said and "--block-size" in said
    assert not (tmp_path / "run").exists()
    tool.run(*fit, "--block-size", 4)


def test_a_loss_model_is_no_term_of_a_sum(tmp_path):
    said = tool.run("build", MLP, "-o", tmp_path / "train.onnx", "--loss", "0.5*mse + 0.5*loss.onnx", status=1)
    assert "a file is no term of an expression: a loss model stands alone" in said


def test_a_model_over_its_own_file_is_refused(tmp_path):
    path = tmp_path / "mlp.onnx"
    path.write_bytes(MLP.read_bytes())
    train = tmp_path / "train.onnx"
    tool.run("build", path, "-o", train)
    (tmp_path / "link.onnx").symlink_to(train)
    data = tool.save(tmp_path / "data.npz", {"x": np.ones((2, 4), np.float32)})
    before = {file: file.read_bytes() for file in (path, train, data)}
    for command in (("build", path, "-o", path), ("export", train, "-o", train), ("flatten", train, "-o", train),
                    ("export", train, "-o", tmp_path / "link.onnx")):  # fmt: skip
        assert "is MODEL, which is read; give --output another file" in tool.run(*command, status=2)
    assert f"{data} is --data, which is read" in tool.run("predict", path, "--inputs", data, "-o", data, status=2)
    assert {file: file.read_bytes() for file in before} == before


def test_a_jacobian_has_no_loss(tmp_path):
    data = tool.save(tmp_path / "data.npz", {"x": np.ones((2, 4), np.float32)})
    said = tool.run("grad", MLP, "--inputs", data, "--jacobian", "--loss", "mse", "-o", tmp_path / "g.npz", status=2)
    assert "are of the outputs, not of a loss: leave out --loss" in said


def test_python_names_what_it_cannot_read():
    with pytest.raises(onnx_train.UsageError, match="a model is a path, the bytes of a file .* not int"):
        onnx_train.build(3)
    strings = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[N,6] x, string[N] s) =>
      (float[N,3] y, string[N] z) <float[6,3] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}> {
        y = MatMul(x, w) z = Identity(s) }""")  # fmt: skip
    with pytest.raises(onnx_train.UnsupportedError, match="'s' has strings"):
        onnx_train.Session(strings, threads=1).inputs("predict")
