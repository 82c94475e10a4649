"""--detect-anomaly: the first node that a loss or gradients which are not finite come from, in the model's own names."""

import numpy as np
import onnx
import pytest
import tool

import onnx_train

# The square root's derivative is infinite at 0, where the loss is finite.
ROOT_OF_SQUARE = """<ir_version: 10, opset_import: ["" : 21]>
network (float[batch, 3] x) => (float[batch, 2] y)
<float[3, 2] weight = {1, 2, 3, 4, 5, 6}>
{
  [linear] h = MatMul (x, weight)
  [square] s = Mul (h, h)
  [root] y = Sqrt (s)
}"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(ROOT_OF_SQUARE), path)
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "mse", "--optimizer", "sgd(lr=0.01)")
    return tmp_path / "train.onnx"


def batch(value):
    return {"x": np.full((4, 3), value, np.float32), "labels": np.ones((4, 2), np.float32)}


def test_the_run_stops_at_the_first_node_and_changes_nothing(model, tmp_path):
    data = tool.save(tmp_path / "data.npz", batch(0))
    arguments = ["fit", model, "--data", data, "--steps", 3, "--out", tmp_path / "run", "--overwrite"]
    error = tool.run(*arguments, "--detect-anomaly", status=1)
    assert "step 1: the norm of the gradients is NaN: node " in error and "is the first node that it comes from" in error
    assert "element 0 of 'grad/s" in error and "'y' float[4,2] from 0 to 0" in error
    assert "is the first node" not in tool.run(*arguments, status=1)


def test_a_run_that_is_finite_goes_on_as_without_it(model):
    plain, watched = (onnx_train.Session(str(model), detect_anomaly=on) for on in (False, True))
    for _ in range(3):
        assert abs(plain.step(batch(1)).loss - watched.step(batch(1)).loss) < 1e-6


def test_a_weight_that_is_not_finite_shows_in_the_ranges(model):
    session = onnx_train.Session(str(model), detect_anomaly=True)
    weight = session.state["weight"].copy()
    weight[1, 1] = np.nan
    session.state["weight"] = weight
    with pytest.raises(onnx_train.DataError, match=r"node 'linear' \(MatMul\).*'weight' float\[3,2\] from 1 to 6, 1 of 6 not"):
        session.step(batch(1))
