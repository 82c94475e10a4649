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
    "Abs", "Add", "Block", "Cast", "Clip", "Constant", "Div", "ForwardBlock", "InputLike", "LabelEncoder", "Linear",
    "Log", "Mul", "Neg", "PassThrough", "Pow", "ReduceAllL2", "ReduceMean", "ReduceSum", "SequenceConstruct",
    "SequentialBlock", "Sigmoid", "Sub",
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
    """Base of all blocks: ``block(*args, **kwargs)`` calls `build`, which adds nodes and gives the name of the result.

    Args:
        temp_file_name: has no effect: no file is written.

    Raises:
        UsageError: for a block that is called outside of `generate_artifacts` and `base`.
    """

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        pass

    @property
    def base(self) -> Any:
        """The `onnx.ModelProto` at work, to read and change."""
        if _base is None:
            raise UsageError("a block is used in generate_artifacts(loss=block) or in onnxblock.base(model): no model is at work here")
        return _base

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Adds nodes to `base` on top of the values that are named; gives the name of the result."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `build` gives."""
        return self.build(*args, **kwargs)

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

    def _node(self, operator: str, inputs: list[str], *, domain: str = "", **attributes: Any) -> str:
        import onnx

        if domain and domain not in [opset.domain for opset in self.base.opset_import]:
            self.base.opset_import.append(onnx.helper.make_opsetid(domain, 3))
        output = self._unique(f"loss/{operator.lower()}")
        self.base.graph.node.append(onnx.helper.make_node(operator, inputs, [output], domain=domain, **attributes))
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


class ForwardBlock(Block):
    """A block whose result becomes the output of the model.

    >>> import onnx
    >>> from onnx_train.onnxruntime.training import onnxblock
    >>> class Loss(onnxblock.ForwardBlock):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.loss = onnxblock.loss.CrossEntropyLoss()
    ...     def build(self, scores):
    ...         return self.loss(scores)
    >>> with onnxblock.base(onnx.load("mlp.onnx")):
    ...     block = Loss()
    ...     loss = block("logits")
    >>> [output.name for output in block.to_model_proto().graph.output] == [loss]
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._model: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `build` gives, one name or several, which become the outputs."""
        import onnx

        result = self.build(*args, **kwargs)
        names = list(result) if isinstance(result, (tuple, list)) else [result]
        typed = onnx.shape_inference.infer_shapes(self.base).graph
        known = {value.name: value for value in (*typed.value_info, *typed.output)}
        missing = [name for name in names if name not in known]
        if missing:
            raise UnsupportedError(f"the type of '{missing[0]}', which is to be an output, is not known; add a value_info")
        del self.base.graph.output[:]
        self.base.graph.output.extend(known[name] for name in names)
        self._model = copy.deepcopy(self.base)
        return result

    def to_model_proto(self) -> Any:
        """The `onnx.ModelProto` that has been built.

        Raises:
            UsageError: before the block is called.
        """
        if self._model is None:
            raise UsageError("the block has built no model yet; call it first")
        return self._model


class _Binary(Block):
    """One node of the operator that has the class's name."""

    def build(self, input_name1: str, input_name2: str) -> str:
        """Adds the node; the names are those of x and y."""
        return self._node(type(self).__name__, [input_name1, input_name2])


class _Unary(Block):
    """One node of the operator that has the class's name."""

    def build(self, input_name: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node(type(self).__name__, [input_name])


class Abs(_Unary):
    """|x|."""


class Add(_Binary):
    """x + y."""


class Div(_Binary):
    """x / y."""


class Log(_Unary):
    """The natural logarithm."""


class Mul(_Binary):
    """x y."""


class Neg(_Unary):
    """-x."""


class Sigmoid(_Unary):
    """1 / (1 + exp(-x))."""


class Sub(_Binary):
    """x - y."""


class PassThrough(Block):
    """x itself."""

    def build(self, *input_names: str) -> Any:
        """Gives the name that it is given, or the tuple of several."""
        return input_names[0] if len(input_names) == 1 else input_names


class ReduceMean(Block):
    """The mean of all elements, in as many dimensions as x has, of size 1 each; a scalar with ``keepdims=False``."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = keepdims

    def build(self, input_name: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node(type(self).__name__, [input_name], keepdims=int(self._keepdims))


class ReduceSum(ReduceMean):
    """The sum of all elements, likewise."""


class ReduceAllL2(Block):
    """The square root of the sum of the squares of all elements of all tensors: a scalar."""

    def build(self, *reduce_node_input_names: str) -> str:
        """Adds the nodes; the names are those of the tensors."""
        squares = [self._node("ReduceSumSquare", [name], keepdims=0) for name in reduce_node_input_names]
        return self._node("Sqrt", [self._node("Sum", squares)])


class Pow(Block):
    """x to a power that is a number."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node("Pow", [pow_input_name, self._constant(np.float32(self._exponent), "loss/exponent")])


class Clip(Block):
    """x, but at least and at most these numbers, each of which may be None."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._limits = {"loss/clip_min": clip_min, "loss/clip_max": clip_max}

    def build(self, clip_input_name: str) -> str:
        """Adds the node; the name is that of x."""
        limits = ["" if limit is None else self._constant(np.float32(limit), name) for name, limit in self._limits.items()]
        return self._node("Clip", [clip_input_name, *limits])


class Constant(Block):
    """A number, float32."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        """Adds the number; takes no names."""
        return self._constant(np.float32(self._value), "loss/constant")


class Cast(Block):
    """x as another type, a number of `onnx.TensorProto.DataType`."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, cast_input_name: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node("Cast", [cast_input_name], to=int(self._to))


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        """Adds the node; the names are those of the tensors."""
        return self._node("SequenceConstruct", list(sequence_input_names))


class LabelEncoder(Block):
    """Replaces keys by values: the operator of ``ai.onnx.ml``, whose attributes the arguments are."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: list[float] | None = None,
        keys_int64s: list[int] | None = None,
        keys_strings: list[str] | None = None,
        values_floats: list[float] | None = None,
        values_int64s: list[int] | None = None,
        values_strings: list[str] | None = None,
    ) -> None:
        super().__init__()
        lists = dict(keys_floats=keys_floats, keys_int64s=keys_int64s, keys_strings=keys_strings,
                     values_floats=values_floats, values_int64s=values_int64s, values_strings=values_strings)  # fmt: skip
        self._attributes: dict[str, Any] = {
            "default_float": default_float, "default_int64": default_int64, "default_string": default_string,
            **{name: values for name, values in lists.items() if values is not None},
        }  # fmt: skip

    def build(self, label_encoder_input_name: str) -> str:
        """Adds the node; the name is that of x."""
        return self._node("LabelEncoder", [label_encoder_input_name], domain="ai.onnx.ml", **self._attributes)


class Linear(Block):
    """``alpha x w + beta b`` with a weight [in_features, out_features] and a bias, drawn from a normal distribution.

    Their names are ``linear.weight`` and ``linear.bias``, with a number where the model has these; `generate_artifacts`
    trains them if ``requires_grad`` names them.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__()
        self._shape, self._bias, self._alpha, self._beta = (in_features, out_features), bias, alpha, beta

    def build(self, linear_input_name: str) -> str:
        """Adds weights and node; the name is that of x, [N, in_features]."""
        draw = lambda shape: np.random.randn(*shape).astype(np.float32)
        inputs = [linear_input_name, self._constant(draw(self._shape), "linear.weight")]
        if self._bias:
            inputs.append(self._constant(draw(self._shape[1:]), "linear.bias"))
        return self._node("Gemm", inputs, alpha=self._alpha, beta=self._beta)


class InputLike(Block):
    """A new input of the model with the type and shape of a value."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        """Adds the input, with the name that is given, if any."""
        return self._input_like(self._like, input_name or self._unique("input"))


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
