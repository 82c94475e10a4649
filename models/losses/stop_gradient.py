"""What PyTorch's `detach` is for the exporter: it writes a call of `onnx_train.StopGradient`, where gradients end."""

import onnx
import torch
from onnx import helper


class _StopGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return torch.zeros_like(gradient)

    @staticmethod
    def symbolic(graph, x):
        return graph.op("onnx_train::StopGradient", x).setType(x.type())


def stop_gradient(x):
    return _StopGradient.apply(x)


def declare_stop_gradient(path):
    """Gives the model in the file the function's body, Identity, so that every runtime runs it."""
    model = onnx.load(path)
    opsets = [helper.make_opsetid("", next(o.version for o in model.opset_import if o.domain == ""))]
    if any(f.name == "StopGradient" for f in model.functions):
        return
    body = [helper.make_node("Identity", ["x"], ["y"])]
    model.functions.append(helper.make_function("onnx_train", "StopGradient", ["x"], ["y"], body, opsets))
    if all(o.domain != "onnx_train" for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("onnx_train", 1))
    onnx.checker.check_model(model)
    onnx.save(model, path)
