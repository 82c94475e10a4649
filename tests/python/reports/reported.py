"""Models as people described them in public threads, in a few lines each, and what the tests of them share."""

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng()
FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test draws its own numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def floats(*shape, scale=1.0):
    return (RNG.normal(size=shape) * scale).astype(np.float32)


def node(op, inputs, outputs, name=None, domain="", **attributes):
    """A node; names that are separated by spaces are several."""
    split = [text.split() if isinstance(text, str) else text for text in (inputs, outputs)]
    return helper.make_node(op, *split, name=name or split[1][0], domain=domain, **attributes)


def value(name, *shape, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def save(path, nodes, inputs, outputs, weights, opset, ir_version, domains=(), weights_are_inputs=False, valid=True):
    """Writes the model; before IR version 4 initializers were inputs, too."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    listed = [value(t.name, *t.dims, dtype=t.data_type) for t in tensors] if weights_are_inputs else []
    graph = helper.make_graph(nodes, "reported", [*inputs, *listed], outputs, tensors)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    if valid:
        onnx.checker.check_model(model)
    onnx.save(model, path)
    return model


def gradients(model, batch, loss, *options):
    """What `grad` computes in float64: gradients by the names of weights, and by "input/NAME" of inputs."""
    folder = model.parent
    out = folder / "gradients.npz"
    tool.run("grad", model, "--inputs", tool.save(folder / "batch.npz", batch), "-o", out, "--loss", loss, "--dtype", "float64", *options)
    found = tool.load(out)
    grads = {name.removeprefix("grad/"): array for name, array in found.items() if name.startswith("grad/")}
    inputs = {name.replace("grad_input/", "input/"): array for name, array in found.items() if name.startswith("grad_input/")}
    return found["loss"], grads | inputs


def doubles(weights):
    """The float arrays as PyTorch's parameters in float64."""
    return {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in weights.items()
            if np.asarray(array).dtype == np.float32}  # fmt: skip


def expect_pytorchs(found, loss, parameters):
    """`found` of `gradients` is the float64 loss and its gradients by those parameters that it names, and no others."""
    value, grads = found
    loss.backward()
    np.testing.assert_allclose(value, loss.item(), rtol=1e-9)
    assert grads
    for name, array in grads.items():
        if name.startswith("input/"):
            continue
        np.testing.assert_allclose(array, parameters[name].grad.numpy(), rtol=1e-7, atol=1e-11, err_msg=name)


def run_refused(*arguments):
    """Runs a command that refuses; its error, which is one line."""
    text = tool.run(*arguments, status=1)
    lines = [line for line in text.splitlines() if line.startswith("onnx-train: ")]
    assert len(lines) == 1, text
    return lines[0]
