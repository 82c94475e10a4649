"""Gradients of convolutions and pools in many forms: ours by kernels, ONNX Runtime's by the bodies of our functions,
and PyTorch's."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from torch.nn import functional as F

RATE = 0.5

# name: (operator, sizes of x, sizes of w or None, what PyTorch calls it)
CASES = {
    "plain": ("Conv", (2, 3, 7, 8), (4, 3, 3, 3), lambda x, w, b: F.conv2d(x, w, b)),
    "strides leave elements over": (
        "Conv <strides = [3, 2], pads = [1, 0, 1, 0]>", (2, 3, 9, 8), (4, 3, 3, 3),
        lambda x, w, b: F.conv2d(x, w, b, stride=(3, 2), padding=(1, 0))),
    "dilated, uneven pads": (
        "Conv <dilations = [2, 1], pads = [2, 0, 1, 1]>", (2, 3, 7, 8), (4, 3, 3, 2),
        lambda x, w, b: F.conv2d(F.pad(x, (0, 1, 2, 1)), w, b, dilation=(2, 1))),
    "same_upper": (
        "Conv <auto_pad = \"SAME_UPPER\", strides = [2, 2]>", (2, 3, 7, 8), (4, 3, 3, 3),
        lambda x, w, b: F.conv2d(F.pad(x, (0, 1, 1, 1)), w, b, stride=2)),
    "groups": (
        "Conv <group = 2, strides = [2, 1], dilations = [1, 2]>", (2, 4, 7, 8), (6, 2, 2, 3),
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), dilation=(1, 2), groups=2)),
    "depthwise": (
        "Conv <group = 4, pads = [1, 1, 1, 1]>", (2, 4, 6, 6), (8, 1, 3, 3),
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=4)),
    "one axis": (
        "Conv <strides = [2], pads = [1, 1]>", (2, 3, 9), (4, 3, 4), lambda x, w, b: F.conv1d(x, w, b, 2, 1)),
    "three axes": (
        "Conv <strides = [1, 2, 1], pads = [1, 0, 1, 1, 0, 1]>", (2, 3, 4, 5, 6), (4, 3, 3, 2, 3),
        lambda x, w, b: F.conv3d(x, w, b, (1, 2, 1), (1, 0, 1))),
    "transposed": (
        "ConvTranspose <strides = [2, 3], pads = [1, 0, 1, 0], output_padding = [1, 2]>", (2, 3, 4, 5), (3, 4, 3, 2),
        lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2))),
    "transposed in groups": (
        "ConvTranspose <group = 2, dilations = [2, 1]>", (2, 4, 4, 5), (4, 2, 3, 3),
        lambda x, w, b: F.conv_transpose2d(x, w, b, groups=2, dilation=(2, 1))),
    "max": (
        "MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 0]>", (2, 3, 7, 8), None,
        lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0))),
    "max, dilated, ceil": (
        "MaxPool <kernel_shape = [2, 2], strides = [2, 3], dilations = [2, 1], ceil_mode = 1>", (2, 3, 8, 10), None,
        lambda x: F.max_pool2d(x, 2, (2, 3), dilation=(2, 1), ceil_mode=True)),
    "average": (
        "AveragePool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 1, 1, 1]>", (2, 3, 7, 8), None,
        lambda x: F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False)),
    "average with padding, ceil": (
        "AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1, "
        "count_include_pad = 1>", (2, 3, 6, 8), None,
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True)),
    "average of three axes": (
        "AveragePool <kernel_shape = [2, 2, 3], strides = [1, 2, 2]>", (2, 2, 4, 5, 6), None,
        lambda x: F.avg_pool3d(x, (2, 2, 3), (1, 2, 2))),
    "power": (
        "LpPool <p = 2, kernel_shape = [2, 3], strides = [2, 1]>", (2, 3, 6, 7), None,
        lambda x: torch.sqrt(F.avg_pool2d(x * x, (2, 3), (2, 1)) * 6)),
    "global average": ("GlobalAveragePool", (2, 3, 4, 5), None, lambda x: x.mean((2, 3), keepdim=True)),
    "global max": ("GlobalMaxPool", (2, 3, 4, 5), None, lambda x: x.amax((2, 3), keepdim=True)),
    "fold": (
        "Col2Im <strides = [2, 1], pads = [1, 1, 1, 1]>", (2, 2 * 6, 3 * 8), None,
        lambda x: F.fold(x, (6, 7), (3, 2), stride=(2, 1), padding=1)),
}  # fmt: skip


def weights_of(case):
    """`offset` is added to x: its gradient is x's, summed over the batch."""
    operator, x, w, _ = case
    weights = {"offset": (1, *x[1:])}
    if w:
        weights |= {"w": w, "b": (w[1] * (2 if "group" in operator else 1) if "Transpose" in operator else w[0],)}
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(size).astype(np.float32) for name, size in weights.items()}


def forward_model(case, weights, path):
    operator, x, w, _ = case
    name, _, attributes = operator.partition(" ")
    sizes = ",".join(map(str, ["batch", *x[1:]]))
    more = ", w, b" if w else ", image, block" if name == "Col2Im" else ""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[{sizes}] x) => (float y) {{
          moved = Add (x, offset)
          image = Constant <value_ints = [6, 7]> ()
          block = Constant <value_ints = [3, 2]> ()
          y = {name} {attributes} (moved{more})
        }}""")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in weights.items())
    onnx.save(model, path)


def gradients_of_torch(case, weights, data):
    parameters = {k: torch.from_numpy(v).double().requires_grad_() for k, v in weights.items()}
    x, target = (torch.from_numpy(data[k]).double() for k in ("x", "target"))
    y = case[3](x + parameters["offset"], *([parameters["w"], parameters["b"]] if case[2] else []))
    F.mse_loss(y, target).backward()
    return {k: v.grad.numpy() for k, v in parameters.items()}


def gradients_of_onnx_runtime(forward, weights, data, folder):
    """From one step of SGD."""
    train, step = folder / "train.onnx", folder / "step.onnx"
    tool.run("build", forward, "-o", train, "--loss", "mse(y, target)", "--optimizer", "sgd")
    tool.run("flatten", train, "--entry", "step", "-o", step)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    runtime = onnxruntime.InferenceSession(step, options, providers=["CPUExecutionProvider"])
    feeds = {**data, **weights, "learning_rate": np.array(RATE, np.float32), "state/step": np.array(0, np.int64)}
    outputs = [f"next/{name}" for name in weights]
    return {name: (weights[name] - after) / RATE for name, after in zip(weights, runtime.run(outputs, feeds))}


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree(tmp_path, name):
    case = CASES[name]
    weights, forward = weights_of(case), tmp_path / "forward.onnx"
    forward_model(case, weights, forward)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(case[1]).astype(np.float32)
    [y] = onnxruntime.InferenceSession(forward).run(None, {"x": x})
    data = {"x": x, "target": rng.standard_normal(y.shape).astype(np.float32)}
    expected = gradients_of_torch(case, weights, data)

    inputs, found = tool.save(tmp_path / "inputs.npz", data), tmp_path / "gradients.npz"
    tool.run("grad", forward, "--inputs", inputs, "--loss", "mse(y, target)", "-o", found)
    ours, theirs = tool.load(found), gradients_of_onnx_runtime(forward, weights, data, tmp_path)
    for weight, gradient in expected.items():
        tolerance = 1e-5 * np.abs(gradient).max()
        np.testing.assert_allclose(ours[f"grad/{weight}"], gradient, rtol=0, atol=tolerance, err_msg=weight)
        # The step's difference has lost digits of the gradient to the weight.
        np.testing.assert_allclose(theirs[weight], gradient, rtol=0, atol=tolerance + 1e-6, err_msg=weight)
