"""An ONNX model as a function of JAX, with gradients.

>>> import jax
>>> import jax.numpy as jnp
>>> import onnx_train.jax
>>> f = onnx_train.jax.Function("mlp.onnx")
>>> def loss(weights, x):
...     return jnp.sum(f(weights, x) ** 2)
>>> gradients = jax.jit(jax.grad(loss))(f.weights, jnp.eye(4))
>>> gradients["fc1.weight"].shape
(4, 16)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import jax  # type: ignore[import-not-found,unused-ignore]
import numpy as np

from ._differentiated import Differentiated
from ._errors import UsageError
from ._model import Patterns

__all__ = ["Function"]

Arrays = dict[str, np.ndarray[Any, Any]]


class Function:
    """``f(weights, *inputs)`` gives the model's outputs: one array, or a tuple if there are several.

    It is differentiable (reverse mode, once) with respect to weights and float inputs, and works in `jax.jit`: the
    passes run on the host, by `jax.pure_callback`. The model is in inference form: batch norm uses its running
    statistics, dropout is off, and so the function is pure. Any thread may call it; one call at a time computes.

    Args:
        model: a forward model, or anything that `onnx_train.load` takes.
        train: the weights that are arguments, by names and globs; all others are constants.
        freeze: weights that stay constants, likewise.
        threads: of the kernels; all cores by default.

    Attributes:
        weights: the file's values by name, to start from.

    >>> f = onnx_train.jax.Function("mlp.onnx", train="fc2.*")
    >>> f(f.weights, jnp.eye(4)).shape
    (4, 3)
    """

    def __init__(
        self, model: Any, *, train: Patterns = None, freeze: Patterns = None, threads: int | None = None
    ) -> None:
        self._passes = Differentiated(model, train=train, freeze=freeze, mode="frozen", threads=threads)
        self._lock = threading.Lock()
        self._shapes: dict[Any, tuple[Any, Any]] = {}
        self.weights: Arrays = dict(self._passes.weights)
        self._call = jax.custom_vjp(lambda arrays: self._forward(arrays)[0])
        self._call.defvjp(self._forward, self._backward)

    def __call__(self, weights: Mapping[str, Any], *inputs: Any) -> Any:
        expected = [port.name for port in self._passes.inputs]
        if len(inputs) != len(expected):
            raise UsageError(f"the model takes {len(expected)} inputs ({', '.join(expected)}), not {len(inputs)}")
        if set(weights) != set(self.weights):
            raise UsageError(f"the weights are not those of the model: {', '.join(set(weights) ^ set(self.weights))}")
        arrays = {name: jax.numpy.asarray(value) for name, value in zip(expected, inputs)}
        outputs = self._call(arrays | {name: jax.numpy.asarray(value) for name, value in weights.items()})
        values = [outputs[port.name] for port in self._passes.outputs]
        return values[0] if len(values) == 1 else tuple(values)

    def _forward(self, arrays: dict[str, jax.Array]) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs, saved = jax.pure_callback(
            self._run_forward, self._shapes_of(arrays), arrays, vmap_method="sequential"
        )
        read = arrays | outputs | saved
        kept = {name: read[name] for name in self._passes.backward_inputs if name not in self._passes.states}
        return outputs, {"read": kept, "arrays": arrays}

    def _backward(self, kept: dict[str, Any], output_gradients: dict[str, Any]) -> tuple[dict[str, Any]]:
        arrays = dict(kept["read"])
        for port in self._passes.outputs:
            name = self._passes.output_gradients.get(port.of)
            if name is not None:
                arrays[name] = output_gradients[port.name]
        # What no output depends on has no gradient; JAX wants zeros.
        reached = {
            port.of: _type_of(kept["arrays"][port.of].shape, port.dtype) for port in self._passes.gradients
        }
        gradients = jax.pure_callback(self._run_backward, reached, arrays, vmap_method="sequential")
        return ({name: gradients.get(name, _zeros(value)) for name, value in kept["arrays"].items()},)

    def _run_forward(self, arrays: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        with self._lock:
            results, _ = self._passes.forward({name: np.asarray(value) for name, value in arrays.items()})
        outputs, saved = (
            {port.name: np.asarray(results[port.name], port.dtype) for port in ports}
            for ports in (self._passes.outputs, self._passes.saved)
        )
        return outputs, saved

    def _run_backward(self, arrays: Mapping[str, Any]) -> Arrays:
        given = {name: np.asarray(value) for name, value in arrays.items()}
        states = {name: value for name, value in self._passes.states.items() if name in self._passes.backward_inputs}
        with self._lock:
            gradients = self._passes.backward(given | states)
        return {port.of: np.asarray(gradients[port.of], port.dtype) for port in self._passes.gradients}

    def _shapes_of(self, arrays: Mapping[str, Any]) -> tuple[Any, Any]:
        """Types and shapes of outputs and saved values, found once for each set of shapes by a run with zeros."""
        key = tuple((name, value.shape) for name, value in arrays.items())
        if key not in self._shapes:
            zeros = {name: np.zeros(value.shape, value.dtype) for name, value in arrays.items()}
            self._shapes[key] = jax.tree.map(lambda a: _type_of(a.shape, a.dtype), self._run_forward(zeros))
        return self._shapes[key]


def _type_of(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call,unused-ignore]


def _zeros(value: Any) -> Any:
    is_float = jax.numpy.issubdtype(value.dtype, jax.numpy.floating)
    return jax.numpy.zeros_like(value) if is_float else np.zeros(value.shape, jax.dtypes.float0)
