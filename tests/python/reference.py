"""What PyTorch computes: gradients and loss curves in float64, from the weights that an exported file holds."""

import ast
import copy
from dataclasses import replace

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional as F


def to_double(example):
    def double(tensor):
        return tensor.double() if tensor.is_floating_point() else tensor

    inputs = {name: double(tensor) for name, tensor in example.inputs.items()}
    return replace(example, module=copy.deepcopy(example.module).double(), inputs=inputs)


def cross_entropy(logits, labels):
    """Classes come last but in images, where they are channels."""
    if logits.dim() == 4:
        return F.cross_entropy(logits, labels)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


LOSSES = {
    "cross_entropy": cross_entropy,
    "bce_with_logits": lambda logits, labels: F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype)),
}


def arrays(example):
    """Inputs and labels as the command reads them."""
    return {**{k: v.numpy() for k, v in example.inputs.items()}, "labels": example.labels.numpy()}


def gradients(example, mode):
    """One forward and backward pass. Returns a dictionary with loss, logits, and by name inputs' gradients, weights,
    weights' gradients, buffers afterwards."""
    example = to_double(example)
    module = example.module.train(mode == "train")
    before = {k: v.clone() for k, v in module.named_buffers()}
    inputs = {k: v.requires_grad_() if v.is_floating_point() else v for k, v in example.inputs.items()}
    logits = module(*inputs.values())
    loss = LOSSES[example.loss](logits, example.labels)
    loss.backward()
    return {
        "loss": loss.item(),
        "logits": logits.detach().numpy(),
        "inputs": {k: v.grad.numpy() for k, v in inputs.items() if v.is_floating_point()},
        "weights": {k: v.detach().numpy() for k, v in module.named_parameters()},
        "gradients": {k: v.grad.numpy() for k, v in module.named_parameters()},
        "buffers": {k: (before[k].numpy(), v.numpy()) for k, v in module.named_buffers()},
    }


def loss_curve(example, data, batch_size, steps, make_optimizer):
    """The losses of `steps` steps over `data` in order, again and again. make_optimizer(parameters) -> optimizer."""
    example = to_double(example)
    module = example.module.train()
    optimizer = make_optimizer(list(module.parameters()))
    tensors = {k: torch.from_numpy(v) for k, v in data.items()}
    tensors = {k: v.double() if v.is_floating_point() else v for k, v in tensors.items()}
    count = len(tensors["labels"])
    losses = []
    for step in range(steps):
        start = step * batch_size % count
        batch = {k: v[start : start + batch_size] for k, v in tensors.items()}
        labels = batch.pop("labels")
        loss = LOSSES[example.loss](module(*batch.values()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def repeated(example, batches, seed=1):
    """The example's inputs drawn anew as one data set of `batches` batches: floats are normal, those that
    the loss takes for probabilities between 0 and 1, integers permuted."""
    rng = np.random.default_rng(seed)
    data = {}
    for name, value in arrays(example).items():
        parts = []
        for _ in range(batches):
            part = value.astype(value.dtype, copy=True)
            if name == "labels" and example.loss == "bce_with_logits":
                part = rng.random(part.shape).astype(part.dtype)
            elif np.issubdtype(part.dtype, np.floating):
                part = rng.standard_normal(part.shape).astype(part.dtype)
            elif name != "attention_mask":
                part = rng.permuted(part.reshape(-1)).reshape(part.shape)
            parts.append(part)
        data[name] = np.concatenate(parts)
    return data


class Initializers:
    """The float initializers of a file, found by value: exporters rename, transpose and merge weights."""

    def __init__(self, path):
        graph = onnx.load(path).graph
        tensors = graph.initializer
        # What the dynamo exporter folded from one parameter has that parameter's name and layout in our gradients.
        self.folded = {}
        for info in graph.value_info:
            for entry in info.metadata_props:
                if entry.key == "pkg.onnxscript.optimizer.folded_from":
                    sources = ast.literal_eval(entry.value)
                    self.folded[info.name] = sources[0] if len(sources) == 1 else None
        arrays = {t.name: numpy_helper.to_array(t) for t in tensors}
        for node in graph.node:  # Paddle's exporter keeps weights in them
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.values = {name: array for name, array in arrays.items() if np.issubdtype(array.dtype, np.floating)}

    def find(self, weight):
        """Every (name, transposed) whose value is `weight`'s, but for dimensions of 1; a kernel with channels last is
        transposed, too."""
        found = []
        for name, value in self.values.items():
            for transposed in False, True:
                if np.array_equal(turned(value, transposed).squeeze(), weight.squeeze().astype(value.dtype)):
                    found.append((name, transposed))
                    break
        return found

    def gradient(self, gradients, weight):
        """Of a weight: the sum over the initializers that hold it, in the weight's own shape."""
        parts = {}
        for name, transposed in self.find(weight):
            if f"grad/{name}" not in gradients:
                name, transposed = self.folded[name], False
            parts[name] = turned(gradients[f"grad/{name}"], transposed)
        assert parts, f"no initializer holds the weight of shape {weight.shape}"
        return sum(part.reshape(weight.shape) for part in parts.values())


def turned(value, transposed):
    """PyTorch's order of a matrix that is stored transposed, or of a kernel that is stored as HWIO."""
    if not transposed:
        return value
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


def distance(actual, expected, floor):
    """Relative distance in the Euclidean norm. `floor` stands in for a norm that is smaller: a gradient that is zero
    by mathematics is noise in both, and means nothing relative to itself."""
    return np.linalg.norm(np.ravel(actual - expected)) / max(np.linalg.norm(np.ravel(expected)), floor)
