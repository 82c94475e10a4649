"""DFT, STFT and MelWeightMatrix: values and gradients are PyTorch's, in float64."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)
GAIN = np.array([1.5])


def compare(nodes, shape, constants, program, folder, opset=20):
    """The gradients of x of this shape, and of a gain that it is multiplied by before the nodes read it as `z`;
    `program(z)` is y in PyTorch."""
    path, result = folder / "model.onnx", folder / "result.npz"
    x = RNG.normal(size=shape)
    y = program(torch.from_numpy(x).requires_grad_())
    target = RNG.normal(size=y.shape)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "gain"], ["z"]), *nodes], "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants | {"gain": GAIN}).items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    tool.run("grad", path, "--inputs", tool.save(folder / "data.npz", {"x": x, "target": target}), "-o", result,
             "--dtype", "float64", "--loss", "mse(y, target)", "--train", "gain")  # fmt: skip
    found = tool.load(result)
    tx, gain = torch.from_numpy(x).requires_grad_(), torch.from_numpy(GAIN).requires_grad_()
    loss = ((program(tx * gain) - torch.from_numpy(target)) ** 2).mean()
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(found["grad_input/x"], tx.grad.numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["grad/gain"], gain.grad.numpy(), rtol=1e-9)


def numbers(x):
    """Complex numbers of real or complex ones in ONNX's form."""
    return torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]


FFTS = {
    "real": ({}, None, (2, 7, 3, 1), 1, lambda z: torch.fft.fft(z, dim=1)),
    "complex": ({}, None, (2, 8, 2), 1, lambda z: torch.fft.fft(z, dim=1)),
    "onesided": ({"onesided": 1}, None, (2, 3, 8, 1), -2, lambda z: torch.fft.rfft(z, dim=-1)),
    "inverse": ({"inverse": 1}, None, (2, 5, 2), 1, lambda z: torch.fft.ifft(z, dim=1)),
    "longer": ({}, 9, (2, 6, 1), 1, lambda z: torch.fft.fft(z, n=9, dim=1)),
    "shorter": ({"onesided": 1}, 5, (2, 8, 1), 1, lambda z: torch.fft.rfft(z, n=5, dim=1)),
    "one": ({}, None, (3, 1, 2), 1, lambda z: torch.fft.fft(z, dim=1)),
}


@pytest.mark.parametrize("name", FFTS)
def test_dft(name, tmp_path):
    attributes, length, shape, axis, program = FFTS[name]
    constants = {"axis": np.int64(axis)} | ({} if length is None else {"length": np.int64(length)})
    nodes = [helper.make_node("DFT", ["z", "length" if length else "", "axis"], ["y"], **attributes)]
    compare(nodes, shape, constants, lambda x: torch.view_as_real(program(numbers(x)) + 0j), tmp_path)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft(windowed, onesided, tmp_path):
    window = np.hanning(8) if windowed else np.ones(8)
    constants = {"step": np.int64(3), "length": np.int64(8)} | ({"window": window} if windowed else {})
    inputs = ["z", "step", "window" if windowed else "", "length"]

    def program(x):
        z = torch.stft(x[..., 0], 8, 3, window=torch.from_numpy(window), center=False, onesided=bool(onesided),
                       return_complex=True)  # fmt: skip
        return torch.view_as_real(z.transpose(1, 2))

    compare([helper.make_node("STFT", inputs, ["y"], onesided=onesided)], (2, 30, 1), constants, program, tmp_path)


def test_a_mel_spectrogram_is_that_of_onnx_runtime(tmp_path):
    constants = {"step": np.int64(4), "length": np.int64(16), "mels": np.int64(6), "rate": np.int64(8000),
                 "low": np.float32(20), "high": np.float32(3800), "two": np.float32(2), "axes": np.int64([-1])}  # fmt: skip
    nodes = [
        helper.make_node("HannWindow", ["length"], ["window"]),
        helper.make_node("STFT", ["x", "step", "window"], ["z"]),
        helper.make_node("Pow", ["z", "two"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "axes"], ["power"], keepdims=0),
        helper.make_node("MelWeightMatrix", ["mels", "length", "rate", "low", "high"], ["weights"]),
        helper.make_node("MatMul", ["power", "weights"], ["y"]),
    ]
    path = tmp_path / "model.onnx"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    x = RNG.normal(size=(3, 64, 1)).astype("f")
    tool.run("predict", path, "--inputs", tool.save(tmp_path / "x.npz", {"x": x}), "-o", tmp_path / "y.npz")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(tool.load(tmp_path / "y.npz")["y"], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
    # Cosines, sines and mels are no weights.
    assert "no weights" in tool.run("check", path, status=1)
