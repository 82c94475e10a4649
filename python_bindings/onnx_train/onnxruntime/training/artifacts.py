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
from ..._session import Session
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
_MOST_BYTES = 2**31 - 1  # of a protobuf message
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
        model: the forward model, an `onnx.ModelProto` or a path. One of more than 2 GB, whose tensors are in files beside
            it, is given as a path.
        requires_grad: names of the weights to train.
        frozen_params: names of weights that stay as they are, and are parameters of the checkpoint.
        loss: a `LossType`, or a block on top of the model's outputs; None takes the first output as the loss. A block adds
            nodes, inputs and initializers; it changes none that are there.
        optimizer: an `OptimType`, or a block of `onnxblock.optim` with options; None writes no optimizer model.
        artifact_directory: where to write; the current folder by default.
        prefix: of the names of the files.
        additional_output_names: outputs that a module gives after the loss.
        loss_input_names: the values that the loss is called with; all outputs by default.

    Raises:
        UsageError: for a weight that is to be trained and frozen, and an `onnx.ModelProto` of more than 2 GB.
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
    chosen = _OPTIMIZERS[optimizer]() if isinstance(optimizer, OptimType) else optimizer
    if not isinstance(chosen, (type(None), onnxblock.optim.AdamW, onnxblock.optim.SGD)):
        raise UsageError(f"generate_artifacts: optimizer is {type(chosen).__name__}; it must be an OptimType, or an AdamW or SGD of onnxblock.optim")
    proto, beside = _structure(model)
    _expect_floats(proto, requires_grad)
    if isinstance(loss, LossType) and loss_input_names is None and len(proto.graph.output) > 1:
        outputs = ", ".join(f"'{output.name}'" for output in proto.graph.output[:3])
        raise UsageError(
            f"generate_artifacts: the model has {len(proto.graph.output)} outputs ({outputs}{', ...' if len(proto.graph.output) > 3 else ''}), and "
            f"{loss.name} compares one with its target; name it: loss_input_names=['{proto.graph.output[0].name}'], or give a block"
        )
    inputs = list(loss_input_names or (output.name for output in proto.graph.output))
    forward, expression, proto = _with_loss(model, proto, loss, inputs)
    training = forward.build(
        expression,
        chosen.expression if chosen else "sgd",
        train=list(requires_grad),
        decay="*",
        accumulate=True,
        accumulate_mean="batches",  # the gradient of a parameter is the sum of those of the calls
        clip=chosen.clip_grad.max_norm if chosen and chosen.clip_grad else None,
    )
    _expect_trained(training, requires_grad)
    folder = Path(os.fsdecode(artifact_directory or "."))
    training.save(folder / f"{prefix}training_model.onnx")
    training.flatten("evaluate").save(folder / f"{prefix}eval_model.onnx")
    if chosen is not None:
        training.flatten("apply").save(folder / f"{prefix}optimizer_model.onnx")
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    write_checkpoint(
        folder / f"{prefix}checkpoint",
        {name: _value(tensors, name, beside) for name in requires_grad},
        {name: _value(tensors, name, beside) for name in frozen_params or ()},
        {},
        {},
        list(additional_output_names or ()),
    )


def _structure(model: Any) -> tuple[Any, str]:
    """The `onnx.ModelProto`, of a path without the tensors that are in other files, and the folder of these."""
    import onnx

    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        return onnx.load(path, load_external_data=False), os.path.dirname(os.path.abspath(path))
    try:
        is_too_large = model.ByteSize() > _MOST_BYTES
    except ValueError:  # some versions of protobuf count no further
        is_too_large = True
    if is_too_large:
        raise UsageError("generate_artifacts: the model has more than 2 GB; give the path of its file")
    return model, ""


def _expect_floats(proto: Any, names: Sequence[str]) -> None:
    """Throws for initializers that hold no floats, such as the shape of a Reshape: they have no gradient."""
    import onnx

    types = onnx.TensorProto
    floats = (types.FLOAT, types.DOUBLE, types.FLOAT16, types.BFLOAT16)
    integers = {tensor.name for tensor in proto.graph.initializer if tensor.data_type not in floats}
    wrong = [name for name in names if name in integers]
    if wrong:
        more = f" and {len(wrong) - 1} more, which are no floats and have" if len(wrong) > 1 else ", which is no float and has"
        raise UsageError(
            f"generate_artifacts: requires_grad names '{wrong[0]}'{more} no gradient; "
            "take [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]"
        )


def _expect_trained(training: Model, names: Sequence[str]) -> None:
    """Throws for weights that the training model leaves as they are, because the loss does not depend on them."""
    left = list(names)
    for entry in ("apply", "accumulate"):  # the second one updates running statistics
        if left:
            updated = {port.of for port in Session(training.flatten(entry)).outputs("predict") if port.role == "next"}
            left = [name for name in left if name not in updated]
    if left:
        raise UsageError(f"generate_artifacts: the loss does not depend on '{left[0]}' of requires_grad; leave it out, or put it in frozen_params")


def _value(tensors: dict[str, Any], name: str, folder: str) -> Any:
    """The contents of an initializer, which may be in another file of `folder`."""
    import onnx

    if name not in tensors:
        raise UsageError(f"generate_artifacts: the model has no weight '{name}'")
    return onnx.numpy_helper.to_array(tensors[name], folder)


def _with_loss(model: Any, proto: Any, loss: Any, inputs: list[str]) -> tuple[Model, Any, Any]:
    """The forward model, the loss that `build` takes for it, and the model with the nodes of a custom loss."""
    if isinstance(loss, LossType):
        function, target = _LOSSES[loss]
        return load(model), function(inputs[0], inputs[1] if len(inputs) > 1 else target), proto
    if loss is None:
        return load(model), losses.output(inputs[0]), proto
    if not isinstance(loss, onnxblock.Block):
        raise UsageError(f"generate_artifacts: loss is {type(loss).__name__}; it must be a LossType or an onnxblock.Block")
    import onnx

    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    with onnxblock.blocks.base_model(copied):
        result = loss(*inputs)
    name = result[0] if isinstance(result, (tuple, list)) else result
    if any(onnx.external_data_helper.uses_external_data(tensor) for tensor in copied.graph.initializer):
        return load(model), _added(proto, copied, name), copied
    if name not in [output.name for output in copied.graph.output]:
        copied.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return load(copied), losses.output(name), copied


def _added(before: Any, after: Any, result: str) -> Any:
    """What a custom loss has added, as a model of its own, which reads values of the other one by their names.

    So the tensors of the other one stay in their files, however large they are.
    """
    import onnx

    nodes = list(after.graph.node)
    old = len(before.graph.node)
    if any(a != b for a, b in zip(before.graph.node, nodes)) or len(nodes) < old:
        raise UnsupportedError("generate_artifacts: the loss changes nodes of a model with tensors in other files; it may add some")
    known = {value.name for field in (before.graph.input, before.graph.initializer) for value in field}
    initializers = [tensor for tensor in after.graph.initializer if tensor.name not in known]
    inputs = [value for value in after.graph.input if value.name not in known]
    own = {value.name for value in (*initializers, *inputs)} | {name for node in nodes[old:] for name in node.output}
    types = {value.name: value for value in (*after.graph.output, *after.graph.input, *after.graph.value_info)}
    types |= {
        tensor.name: onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in before.graph.initializer
    }
    read = dict.fromkeys(name for node in nodes[old:] for name in node.input if name and name not in own)
    for name in read:
        if name not in types:
            raise UnsupportedError(f"generate_artifacts: the loss reads '{name}', whose type is not known; add a value_info")
    output = onnx.helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes[old:], "loss", [*(types[name] for name in read), *inputs], [output], initializers)
    return onnx.helper.make_model(graph, opset_imports=after.opset_import, ir_version=after.ir_version)
