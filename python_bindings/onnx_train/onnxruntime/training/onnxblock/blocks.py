"""Building blocks. A block adds nodes to `base`, the model that `generate_artifacts` is at work on.

>>> from onnx_train.onnxruntime.training import onnxblock
>>> class Scaled(onnxblock.Block):
...     def __init__(self):
...         super().__init__()
...         self.mse = onnxblock.loss.MSELoss()
...         self.half = onnxblock.blocks.Constant(0.5)
...         self.mul = onnxblock.blocks.Mul()
...     def build(self, prediction):
...         return self.mul(self.mse(prediction), self.half())
>>> import onnx
>>> from onnx_train.onnxruntime.training import artifacts
>>> artifacts.generate_artifacts(onnx.load("mlp.onnx"), ["fc1.weight"], loss=Scaled())
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...._errors import UnsupportedError, UsageError

__all__ = [
    "Abs", "Add", "Block", "Cast", "Constant", "Div", "InputLike", "Log", "Mul", "Neg", "PassThrough", "Pow",
    "ReduceMean", "ReduceSum", "SequentialBlock", "Sigmoid", "Sub",
]  # fmt: skip

_base: Any = None  # the model at work; blocks are made before it is known


@contextlib.contextmanager
def base_model(model: Any) -> Iterator[Any]:
    """Makes `model`, an `onnx.ModelProto`, the one that blocks add to."""
    global _base
    before, _base = _base, model
    try:
        yield model
    finally:
        _base = before


class Block(ABC):
    """Base of all blocks: ``block(*names)`` calls `build`, which adds nodes and gives the name of the result.

    Raises:
        UsageError: for a block that is called outside of `generate_artifacts`.
    """

    def __init__(self) -> None:
        pass

    @property
    def base(self) -> Any:
        """The `onnx.ModelProto` at work, to read and change."""
        if _base is None:
            raise UsageError("a block is used in generate_artifacts(loss=block) only: no model is at work here")
        return _base

    @abstractmethod
    def build(self, *names: str) -> Any:
        """Adds nodes to `base` on top of the values `names`; gives the name of the result."""

    def __call__(self, *names: str) -> Any:
        """What `build` gives."""
        return self.build(*names)

    def _unique(self, name: str) -> str:
        """A name that no value of the model has: `name`, or `name` and a number."""
        graph = self.base.graph
        used = {value.name for field in (graph.input, graph.initializer) for value in field}
        used |= {output for node in graph.node for output in node.output}
        number, result = 1, name
        while result in used:
            number, result = number + 1, f"{name}_{number}"
        return result

    def _exists(self, name: str) -> bool:
        return self._unique(name) != name

    def _node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        import onnx

        output = self._unique(f"loss/{operator.lower()}")
        self.base.graph.node.append(onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _constant(self, value: Any, name: str) -> str:
        import onnx

        name = self._unique(name)
        self.base.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def _input_like(self, value: str, name: str, dtype: int | None = None, without_axis: int | None = None) -> str:
        """Adds an input with the type of an output or input of the model, unless a value has that name."""
        graph = self.base.graph
        if self._exists(name):
            return name
        for known in (*graph.output, *graph.input, *graph.value_info):
            if known.name == value:
                new = copy.deepcopy(known)
                new.name = name
                if dtype is not None:
                    new.type.tensor_type.elem_type = dtype
                if without_axis is not None:
                    del new.type.tensor_type.shape.dim[without_axis]
                graph.input.append(new)
                return name
        raise UnsupportedError(f"input '{name}' cannot be made like '{value}', whose type is not known; add a value_info")


class _Operator(Block):
    """One node of the operator that has the class's name."""

    def build(self, *names: str) -> str:
        """Adds the node; the names are its inputs."""
        return self._node(type(self).__name__, list(names))


class Abs(_Operator):
    """|x|."""


class Add(_Operator):
    """x + y."""


class Div(_Operator):
    """x / y."""


class Log(_Operator):
    """The natural logarithm."""


class Mul(_Operator):
    """x y."""


class Neg(_Operator):
    """-x."""


class Sigmoid(_Operator):
    """1 / (1 + exp(-x))."""


class Sub(_Operator):
    """x - y."""


class PassThrough(Block):
    """x itself."""

    def build(self, *names: str) -> str:
        """Gives the name that it is given."""
        return names[0]


class ReduceMean(Block):
    """The mean of all elements: a scalar."""

    def __init__(self, keepdims: bool = False) -> None:
        super().__init__()
        self._keepdims = keepdims

    def build(self, *names: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node(type(self).__name__, list(names), keepdims=int(self._keepdims))


class ReduceSum(ReduceMean):
    """The sum of all elements: a scalar."""


class Pow(Block):
    """x to a power that is a number."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, *names: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node("Pow", [names[0], self._constant(np.float32(self._exponent), "loss/exponent")])


class Constant(Block):
    """A number, float32."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def build(self, *names: str) -> str:
        """Adds the number; takes no names."""
        return self._constant(np.float32(self._value), "loss/constant")


class Cast(Block):
    """x as another type, a number of `onnx.TensorProto.DataType`."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, *names: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node("Cast", [names[0]], to=int(self._to))


class InputLike(Block):
    """A new input of the model with the type and shape of a value."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, *names: str) -> str:
        """Adds the input, with the name that is given, if any."""
        return self._input_like(self._like, names[0] if names else self._unique("input"))


class SequentialBlock(Block):
    """Blocks one after the other."""

    def __init__(self, blocks: list[Block] | None = None) -> None:
        super().__init__()
        self.blocks = list(blocks or [])

    def build(self, *names: str) -> Any:
        """Adds all blocks; the names are the inputs of the first one."""
        for block in self.blocks:
            names = (block(*names),)
        return names[0]
