"""Models that blocks are at work on outside of `generate_artifacts`, and the parameters of checkpoints."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...._errors import UnsupportedError
from .._checkpoint import read_checkpoint, write_checkpoint
from .blocks import Block, base_model


@dataclass
class ModelAccessor:
    """What `base` gives.

    Attributes:
        model: the `onnx.ModelProto` that blocks add to.

    >>> import onnx
    >>> from onnx_train.onnxruntime.training import onnxblock
    >>> with onnxblock.base(onnx.load("mlp.onnx")) as accessor:
    ...     len(accessor.model.graph.node)
    3
    """

    model: Any


@contextlib.contextmanager
def base(model: Any, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Makes a copy of `model`, an `onnx.ModelProto`, the one that blocks add to; `model_path` has no effect.

    >>> import onnx
    >>> from onnx_train.onnxruntime.training import onnxblock
    >>> with onnxblock.base(onnx.load("mlp.onnx")) as accessor:
    ...     loss = onnxblock.loss.CrossEntropyLoss()("logits", labels_name="class")
    ...     [value.name for value in accessor.model.graph.input]
    ['x', 'class']
    """
    with base_model(copy.deepcopy(model)) as copied:
        yield ModelAccessor(copied)


@contextlib.contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Makes an empty model the one that blocks add to.

    >>> from onnx_train.onnxruntime.training import onnxblock
    >>> with onnxblock.empty_base(opset_version=17) as accessor:
    ...     name = onnxblock.blocks.Constant(2.0)()
    ...     [tensor.name for tensor in accessor.model.graph.initializer] == [name]
    True
    """
    import onnx

    opset = onnx.helper.make_opsetid("", opset_version or onnx.defs.onnx_opset_version())
    graph = onnx.helper.make_graph([], "graph", [], [])
    with base_model(onnx.helper.make_model(graph, opset_imports=[opset])) as model:
        yield ModelAccessor(model)


@contextlib.contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises UnsupportedError: operators come from ONNX's domains and from functions of the model.

    >>> import onnx_train
    >>> from onnx_train.onnxruntime.training import onnxblock
    >>> try:
    ...     with onnxblock.custom_op_library("ops.so"):
    ...         pass
    ... except onnx_train.UnsupportedError as error:
    ...     print(error)
    custom_op_library is not supported; a local function of the model can define an operator
    """
    raise UnsupportedError("custom_op_library is not supported; a local function of the model can define an operator")
    yield


class TrainingBlock(Block):
    """A loss for ``generate_artifacts(loss=block)``, which builds the training model.

    >>> import onnx
    >>> import onnx_train
    >>> from onnx_train.onnxruntime.training import artifacts, onnxblock
    >>> class Loss(onnxblock.TrainingBlock):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.loss = onnxblock.loss.CrossEntropyLoss()
    ...     def build(self, scores):
    ...         return self.loss(scores)
    >>> artifacts.generate_artifacts(onnx.load("mlp.onnx"), ["fc1.weight"], loss=Loss())
    """

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Raises UnsupportedError: `generate_artifacts` takes the names.

        >>> import onnx_train
        >>> try:
        ...     Loss().requires_grad("fc1.weight")
        ... except onnx_train.UnsupportedError as error:
        ...     print(error)
        TrainingBlock.requires_grad: give the names to generate_artifacts(requires_grad=[...])
        """
        raise UnsupportedError("TrainingBlock.requires_grad: give the names to generate_artifacts(requires_grad=[...])")

    def parameters(self) -> Any:
        """Raises UnsupportedError: `generate_artifacts` writes them.

        >>> try:
        ...     Loss().parameters()
        ... except onnx_train.UnsupportedError as error:
        ...     print(error)
        TrainingBlock.parameters: generate_artifacts(loss=block) writes them as a checkpoint
        """
        raise UnsupportedError("TrainingBlock.parameters: generate_artifacts(loss=block) writes them as a checkpoint")

    def to_model_proto(self) -> Any:
        """Raises UnsupportedError: `generate_artifacts` writes the models.

        >>> try:
        ...     Loss().to_model_proto()
        ... except onnx_train.UnsupportedError as error:
        ...     print(error)
        TrainingBlock.to_model_proto: generate_artifacts(loss=block) writes the models
        """
        raise UnsupportedError("TrainingBlock.to_model_proto: generate_artifacts(loss=block) writes the models")


def save_checkpoint(
    parameters: tuple[Sequence[Any], Sequence[Any]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Writes the trained and the frozen parameters, lists of `onnx.TensorProto`, as a checkpoint.

    Raises:
        UnsupportedError: for ``nominal_checkpoint``.

    >>> import onnx
    >>> from onnx_train.onnxruntime.training import onnxblock
    >>> tensors = onnx.load("mlp.onnx").graph.initializer
    >>> onnxblock.save_checkpoint((tensors[:1], tensors[1:]), "checkpoint")
    """
    import onnx

    if nominal_checkpoint:
        raise UnsupportedError("save_checkpoint: nominal_checkpoint is not supported; leave it out")
    trained, frozen = ({tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in part} for part in parameters)
    write_checkpoint(path_to_checkpoint, trained, frozen, {}, {}, [])


def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: Any) -> None:
    """Gives the initializers of an inference model, an `onnx.ModelProto`, the values of the checkpoint's parameters.

    Raises:
        FileError: for a file that is no checkpoint.

    >>> import onnx
    >>> from onnx_train.onnxruntime.training import onnxblock
    >>> model = onnx.load("mlp.onnx")
    >>> onnxblock.save_checkpoint((model.graph.initializer, []), "checkpoint")
    >>> onnxblock.load_checkpoint_to_model("checkpoint", model)
    """
    import onnx

    tensors, contents = read_checkpoint(path_to_checkpoint)
    parameters = {*contents["trained"], *contents["frozen"]}
    for initializer in model.graph.initializer:
        if initializer.name in parameters:
            initializer.CopyFrom(onnx.numpy_helper.from_array(tensors[initializer.name], initializer.name))
