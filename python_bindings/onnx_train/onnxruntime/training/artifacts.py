"""The offline step: `generate_artifacts` makes the files that `onnx_train.onnxruntime.training.api` trains with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from ... import losses
from ..._errors import UnsupportedError, UsageError
from ..._model import Model, load
from . import onnxblock
from ._checkpoint import write_checkpoint

__all__ = ["LossType", "OptimType", "generate_artifacts"]


class LossType(Enum):
    """Losses of `generate_artifacts`. The target's input is ``labels`` for CrossEntropyLoss, ``target`` for the others.

    >>> from onnx_train.onnxruntime.training import artifacts
    >>> [loss.name for loss in artifacts.LossType]
    ['MSELoss', 'CrossEntropyLoss', 'BCEWithLogitsLoss', 'L1Loss']
    """

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(Enum):
    """Optimizers of `generate_artifacts`.

    >>> from onnx_train.onnxruntime.training import artifacts
    >>> [optimizer.name for optimizer in artifacts.OptimType]
    ['AdamW', 'SGD']
    """

    AdamW = 1
    SGD = 2


_LOSSES = {
    LossType.MSELoss: (losses.mse, "target"),
    LossType.CrossEntropyLoss: (losses.cross_entropy, "labels"),
    LossType.BCEWithLogitsLoss: (losses.bce_with_logits, "target"),
    LossType.L1Loss: (losses.l1, "target"),
}
_OPTIMIZERS = {OptimType.AdamW: onnxblock.optim.AdamW, OptimType.SGD: onnxblock.optim.SGD}


def generate_artifacts(
    model: Any,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.optim.AdamW | onnxblock.optim.SGD | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: Any = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
) -> None:
    """Writes ``training_model.onnx``, ``eval_model.onnx``, ``optimizer_model.onnx`` and ``checkpoint``.

    Args:
        model: the forward model, an `onnx.ModelProto` or a path.
        requires_grad: names of the weights to train.
        frozen_params: names of weights that stay as they are, and are parameters of the checkpoint.
        loss: a `LossType`, or a block on top of the model's outputs; None takes the first output as the loss.
        optimizer: an `OptimType`, or a block of `onnxblock.optim` with options; None writes no optimizer model.
        artifact_directory: where to write; the current folder by default.
        prefix: of the names of the files.
        additional_output_names: outputs that a module gives after the loss.
        loss_input_names: the values that the loss is called with; all outputs by default.

    Raises:
        UsageError: for a weight that is to be trained and frozen.
        UnsupportedError: for ``ort_format``, ``custom_op_library`` and ``nominal_checkpoint``, and for a model that
            cannot be trained.

    >>> import onnx
    >>> from onnx_train.onnxruntime.training import artifacts
    >>> artifacts.generate_artifacts(onnx.load("mlp.onnx"), ["fc1.weight"], None, artifacts.LossType.CrossEntropyLoss)
    """
    for name, value in (("ort_format", ort_format), ("custom_op_library", custom_op_library),
                        ("nominal_checkpoint", nominal_checkpoint)):  # fmt: skip
        if value:
            raise UnsupportedError(f"generate_artifacts: {name} is not supported; leave it out")
    both = sorted(set(requires_grad or ()) & set(frozen_params or ()))
    if both:
        raise UsageError(f"generate_artifacts: '{both[0]}' is in requires_grad and in frozen_params")
    if not requires_grad:
        raise UsageError("generate_artifacts: requires_grad names no weight to train")
    import onnx

    proto = onnx.load(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else model
    inputs = list(loss_input_names or (output.name for output in proto.graph.output))
    forward, expression = _with_loss(proto, loss, inputs)
    chosen = _OPTIMIZERS[optimizer]() if isinstance(optimizer, OptimType) else optimizer
    training = forward.build(
        expression,
        chosen.expression if chosen else "sgd",
        train=list(requires_grad),
        accumulate=True,
        accumulate_mean="batches",  # the gradient of a parameter is the sum of those of the calls
        clip=chosen.clip_grad.max_norm if chosen and chosen.clip_grad else None,
    )
    folder = Path(artifact_directory or ".")
    training.save(folder / f"{prefix}training_model.onnx")
    training.flatten("evaluate").save(folder / f"{prefix}eval_model.onnx")
    if chosen is not None:
        training.flatten("apply").save(folder / f"{prefix}optimizer_model.onnx")
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for name in (*requires_grad, *(frozen_params or ())):
        if name not in values:
            raise UsageError(f"generate_artifacts: the model has no weight '{name}'")
    write_checkpoint(
        folder / f"{prefix}checkpoint",
        {name: values[name] for name in requires_grad},
        {name: values[name] for name in frozen_params or ()},
        {},
        {},
        list(additional_output_names or ()),
    )


def _with_loss(proto: Any, loss: Any, inputs: list[str]) -> tuple[Model, losses.Loss]:
    """The forward model, with the nodes of a custom loss, and the loss of it."""
    if isinstance(loss, LossType):
        function, target = _LOSSES[loss]
        return load(proto), function(inputs[0], inputs[1] if len(inputs) > 1 else target)
    if loss is None:
        return load(proto), losses.output(inputs[0])
    if not isinstance(loss, onnxblock.Block):
        raise UsageError(f"generate_artifacts: loss is {type(loss).__name__}; it must be a LossType or an onnxblock.Block")
    import onnx

    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    with onnxblock.blocks.base_model(copied):
        result = loss(*inputs)
    name = result[0] if isinstance(result, (tuple, list)) else result
    if name not in [output.name for output in copied.graph.output]:
        copied.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []))
    return load(copied), losses.output(name)
