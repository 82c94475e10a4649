"""A new head on a model that is quantized: int8 weights, as ONNX Runtime's quantizer and Brevitas write them."""

import numpy as np
import onnx
import pytest
import tool
from onnx import TensorProto as T
from onnx import helper, numpy_helper

RNG = np.random.default_rng(0)
N = helper.make_node


def classifier(path, stored):
    """Two layers in pairs, with the result rounded, too; the head's weight in integers, or a float that is rounded."""
    w, v = RNG.normal(size=(4, 6)), RNG.normal(size=(6, 3))
    ws, vs = (np.float32(np.abs(a).max() / 127) for a in (w, v))
    q = lambda a, s: np.clip(np.round(a / s), -128, 127).astype(np.int8)  # noqa: E731
    tensors = {
        "w_quantized": q(w, ws), "w_scale": ws, "z8": np.int8(0), "v_scale": vs, "xs": np.float32(0.03), "xz": np.uint8(128),
        "rs": np.float32(0.05), "rz": np.uint8(0), "ys": np.float32(0.1), "yz": np.uint8(128),
        "b_quantized": np.round(RNG.normal(size=6) / (0.03 * ws)).astype(np.int32), "b_scale": np.float32(0.03 * ws),
        "c_quantized": np.round(RNG.normal(size=3) / (0.05 * vs)).astype(np.int32), "c_scale": np.float32(0.05 * vs),
    } | ({"v_quantized": q(v, vs)} if stored else {"v": v.astype(np.float32)})  # fmt: skip
    head = [] if stored else [N("QuantizeLinear", ["v", "v_scale", "z8"], ["v_quantized"])]
    nodes = [*head] + [N(op, i.split(), [o]) for op, i, o in (
        ("QuantizeLinear", "x xs xz", "xq"), ("DequantizeLinear", "xq xs xz", "xd"),
        ("DequantizeLinear", "w_quantized w_scale z8", "wd"), ("DequantizeLinear", "b_quantized b_scale", "bd"),
        ("Gemm", "xd wd bd", "a"), ("Relu", "a", "r"), ("QuantizeLinear", "r rs rz", "rq"), ("DequantizeLinear", "rq rs rz", "rd"),
        ("DequantizeLinear", "v_quantized v_scale z8", "vd"), ("DequantizeLinear", "c_quantized c_scale", "cd"),
        ("Gemm", "rd vd cd", "y0"), ("QuantizeLinear", "y0 ys yz", "yq"), ("DequantizeLinear", "yq ys yz", "y"))]  # fmt: skip
    value = lambda name, size: helper.make_tensor_value_info(name, T.FLOAT, ["n", size])  # noqa: E731
    graph = helper.make_graph(nodes, "g", [value("x", 4)], [value("y", 3)],
                              [numpy_helper.from_array(np.asarray(a), n) for n, a in tensors.items()])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.mark.parametrize("stored", [True, False])
def test_a_new_head_trains_and_is_integers_in_the_export(tmp_path, stored):
    model = classifier(tmp_path / "m.onnx", stored)
    x = RNG.normal(size=(64, 4)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(np.int64) * 2 + (x[:, 1] > 0)
    tool.save(tmp_path / "d.npz", {"x": x, "labels": labels})
    said = tool.run("build", model, "-o", tmp_path / "t.onnx", "--head", "y=5")
    assert "5 outputs in place of 3" in said and "its outputs are floats" in said and "rounded in every step" in said, said
    assert "/replaced" not in said and "does not depend on" not in said and "others read" not in said, said
    assert not [t.name for t in onnx.load(tmp_path / "t.onnx").graph.initializer if "/replaced" in t.name]
    tool.run("fit", tmp_path / "t.onnx", "--data", tmp_path / "d.npz", "--epochs", 30, "--batch-size", 16, "--lr", 0.05, "--out", tmp_path / "run")
    losses = tool.losses(tmp_path / "run")
    assert losses[-4:].mean() < 0.5 * losses[:4].mean()
    last, exported = tmp_path / "run" / "last.onnx", tmp_path / "e.onnx"
    tool.run("export", last, "-o", exported)
    tool.run("predict", last, "--inputs", tmp_path / "d.npz", "-o", tmp_path / "p.npz")
    theirs = tool.session(exported).run(None, {"x": x})[0]
    assert theirs.shape == (64, 5)
    np.testing.assert_allclose(theirs, tool.load(tmp_path / "p.npz")["y"], atol=2e-3)
    types = {t.name: t.data_type for t in onnx.load(exported).graph.initializer}
    assert types["v_quantized"] == T.INT8 and types["c_quantized"] == T.INT32
