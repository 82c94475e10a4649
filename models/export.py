"""Exports a PyTorch module as a forward ONNX model, by either of PyTorch's exporters, with a dynamic batch."""

import contextlib
import io
import logging
import warnings

import onnx
import torch


@contextlib.contextmanager
def quiet():
    """The exporters report progress and deprecations; failures still raise."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def export(module, inputs, path, exporter="dynamo", optimize=False, train=False, outputs=("logits",), sizes=None,
           opset=None):
    """Writes `module` as it runs on `inputs` (name -> tensor, the batch on axis 0) to `path`.

    exporter: "dynamo", or "torchscript" for the older one.
    optimize: fold constants, and with them batch normalization into convolutions.
    train: export in train mode, which keeps dropout.
    sizes: the open axes of each input, as torch.export takes them; with "torchscript", axis -> name. By default the batch.
        Without any, {}, every size is fixed.
    opset: the version to write; by default 17 with "torchscript", and what PyTorch takes with "dynamo".
    """
    was_training = module.training
    module.train(train)
    arguments = tuple(inputs.values())
    names = dict(input_names=list(inputs), output_names=list(outputs))
    with quiet():
        if exporter == "dynamo":
            sizes = {0: torch.export.Dim("batch")} if sizes is None else sizes
            torch.onnx.export(
                module, arguments, str(path), dynamo=True, optimize=optimize, external_data=False, verbose=False,
                dynamic_shapes=tuple(sizes for _ in arguments) if sizes else None, opset_version=opset, **names,
            )  # fmt: skip
        else:
            mode = torch.onnx.TrainingMode
            torch.onnx.export(
                module, arguments, str(path), dynamo=False, do_constant_folding=optimize, opset_version=opset or 17,
                training=mode.TRAINING if train else mode.EVAL if optimize else mode.PRESERVE,
                dynamic_axes=None if sizes == {} else {name: {0: "batch"} for name in outputs}
                | {name: sizes or {0: "batch"} for name in inputs}, **names,
            )  # fmt: skip
    module.train(was_training)
    strip_stack_traces(path)


def strip_stack_traces(path):
    """The dynamo exporter notes for each node where in the sources it came from, with the paths of this machine."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [p for p in node.metadata_props if p.key != "pkg.torch.onnx.stack_trace"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)
