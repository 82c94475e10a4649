"""Derivatives besides the gradient: of outputs, of gradients, of each sample's loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import DataError
from ._grad import objectives
from ._model import Patterns, _as_model
from ._session import Session
from ._sizes import for_sizes

if TYPE_CHECKING:
    from .losses import Loss

Arrays = dict[str, np.ndarray[Any, Any]]


class _Derivative:
    """A model of a derivative, opened. Threads that run it wait for each other.

    Attributes:
        names: of the inputs that a batch has, in order.
        vectors: the inputs that vectors are given for, by what they belong to.
    """

    def __init__(self, model: Any, kind: str, loss: Any, threads: int | None, **options: Any) -> None:
        self._session = Session(_as_model(model).derivative(kind, loss, **options), threads=threads)
        self._lock = threading.Lock()
        ports = self._session.inputs("predict")
        self.vectors = {port.of: port for port in ports if port.role in ("direction", "dy")}
        self._arguments = {port.name for port in ports if port.role in ("weight", "state")}
        self._inputs = [port for port in ports if port.role not in ("direction", "dy", "weight", "state")]
        self.names = [port.name for port in self._inputs]
        self._weights = {port.name: port.default for port in ports if port.role == "weight"}
        self._results = self._session.outputs("predict")

    def run(
        self, batch: Any, vectors: Mapping[str, Any], weights: Mapping[str, Any] | None
    ) -> tuple[Arrays, Arrays]:
        """The outputs of the model, and the derivatives, by what they belong to."""
        arrays: dict[str, Any] = dict(batch) if isinstance(batch, Mapping) else dict(zip(self.names, batch))
        for name in weights or {}:
            if name not in self._arguments:
                raise DataError(f"the model has no weight '{name}'")
        arrays |= weights or {}
        with self._lock:
            results = self._session.run("predict", {**arrays, **self._named(vectors, arrays)})
        derivatives = {p.of: results[p.name] for p in self._results if p.role in ("gradient", "derivative")}
        return {p.of: results[p.name] for p in self._results if p.role == "output"}, derivatives

    def _named(self, vectors: Mapping[str, Any], arrays: Mapping[str, Any]) -> Arrays:
        """Vectors as inputs; directions that are left out are zero."""
        for name in vectors:
            if name not in self.vectors:
                raise DataError(f"'{name}' has no derivative; vectors are of {', '.join(self.vectors)}")
        named = {}
        for name, port in self.vectors.items():
            if port.role == "dy":
                if name not in vectors:
                    raise DataError(f"the output '{name}' has no vector; give zeros where it does not count")
                named[port.name] = np.asarray(vectors[name], port.dtype)
                continue
            of: Any = arrays[name] if name in arrays else self._weights[name]
            vector = np.asarray(vectors.get(name, np.zeros(np.shape(of))), port.dtype)
            if vector.shape != np.shape(of):
                raise DataError(f"the vector of '{name}' has the shape {vector.shape}; it must be {np.shape(of)}")
            named[port.name] = vector
        return named


def _derivatives(
    model: Any, kind: str, loss: Any, threads: int | None, **options: Any
) -> Callable[[Any], _Derivative]:
    """The derivative for a batch."""
    return for_sizes(model, lambda dim: _Derivative(model, kind, loss, threads, dim=dim, **options))


def vjp(
    model: Any,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    mode: str = "frozen",
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., tuple[Arrays, Arrays]]:
    """A function that gives the outputs of a forward model and products of vectors with its Jacobian, uᵀ dy/dw.

    The model is in inference form, if `mode` does not say otherwise.

    Args:
        model: a forward model, or anything that `load` takes.
        train, freeze, mode, dtype: as `Model.build` takes them.
        threads: of the kernels; all cores by default.

    Returns:
        ``f(inputs, vectors, weights=None) -> (outputs, products)``, mappings of names to arrays. Vectors are of all float
        outputs, each of the shape of its output. The products have the names and shapes of weights and float inputs.

    Raises:
        UnsupportedError: for a node that cannot be differentiated; the message names it.
        DataError: of ``f``, for a vector of an unknown name or a wrong shape, and for one that is left out.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.vjp("mlp.onnx")
    >>> outputs, products = f({"x": np.eye(4, dtype=np.float32)}, {"logits": np.ones((4, 3))})
    >>> products["fc2.bias"].tolist()
    [4.0, 4.0, 4.0]
    """
    derivative_of = _derivatives(model, "vjp", None, threads, train=train, freeze=freeze, mode=mode, dtype=dtype)

    def function(
        inputs: Mapping[str, Any], vectors: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> tuple[Arrays, Arrays]:
        return derivative_of(inputs).run(inputs, vectors, weights)

    return function


def jvp(
    model: Any,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    mode: str = "frozen",
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., tuple[Arrays, Arrays]]:
    """A function that gives the outputs of a forward model and their derivatives along a direction, (dy/dw) v.

    The model is in inference form, if `mode` does not say otherwise.

    Args:
        model, train, freeze, mode, dtype, threads: as `vjp` takes them.

    Returns:
        ``f(inputs, directions, weights=None) -> (outputs, derivatives)``, mappings of names to arrays. Directions are
        of weights and float inputs, each of the shape of what it belongs to; those that are left out are zero. The
        derivatives have the names and shapes of the float outputs.

    Raises:
        UnsupportedError: for a node that cannot be differentiated twice; the message names it.
        DataError: of ``f``, for a direction of an unknown name or a wrong shape.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.jvp("mlp.onnx")
    >>> outputs, derivatives = f({"x": np.eye(4, dtype=np.float32)}, {"fc2.bias": np.array([1, 2, 3])})
    >>> derivatives["logits"][0].tolist()
    [1.0, 2.0, 3.0]
    """
    derivative_of = _derivatives(model, "jvp", None, threads, train=train, freeze=freeze, mode=mode, dtype=dtype)

    def function(
        inputs: Mapping[str, Any], directions: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> tuple[Arrays, Arrays]:
        return derivative_of(inputs).run(inputs, directions, weights)

    return function


def hvp(
    model: Any,
    loss: str | Loss | Any = None,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    mode: str = "frozen",
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., Arrays]:
    """A function that gives products of the Hessian of a loss with vectors.

    Args:
        model, loss, train, freeze, mode, dtype, threads: as `value_and_grad` takes them.

    Returns:
        ``f(batch, vectors, weights=None) -> products``. The Hessian is that of the loss by all weights and float
        inputs together; vectors that are left out are zero. The products have the names and shapes of the gradients.

    Raises:
        UnsupportedError: for a node that cannot be differentiated twice; the message names it.
        DataError: of ``f``, for a vector of an unknown name or a wrong shape.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.hvp("mlp.onnx", "cross_entropy")
    >>> batch = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> products = f(batch, {"fc2.bias": np.ones(3)})
    >>> bool(np.allclose(products["fc2.bias"], 0, atol=1e-6))  # softmax ignores a shift of all logits
    True
    """
    derivative_of = _derivatives(model, "hvp", loss, threads, train=train, freeze=freeze, mode=mode, dtype=dtype)

    def function(batch: Any, vectors: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> Arrays:
        return derivative_of(batch).run(batch, vectors, weights)[1]

    return function


def jacobian(
    model: Any,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., dict[str, Arrays]]:
    """A function that gives the derivatives of each element of a forward model's outputs; a pass for each element.

    Args:
        model, train, freeze, dtype, threads: as `vjp` takes them.

    Returns:
        ``f(inputs, weights=None) -> jacobians``: by the name of the output and that of the weight or float input, arrays
        of the shape of the output followed by that of the other.

    Raises:
        UnsupportedError: for a node that cannot be differentiated; the message names it.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.jacobian("mlp.onnx", train="fc2.*")
    >>> f({"x": np.eye(4, dtype=np.float32)})["logits"]["fc2.weight"].shape
    (4, 3, 16, 3)
    """
    derivative_of = _derivatives(model, "vjp", None, threads, train=train, freeze=freeze, mode="frozen", dtype=dtype)
    forward = Session(_as_model(model), threads=threads)

    def function(inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> dict[str, Arrays]:
        derivative = derivative_of(inputs)
        shapes = {name: np.shape(output) for name, output in forward.run("predict", inputs).items()}
        zeros = {name: np.zeros(shapes[name], port.dtype) for name, port in derivative.vectors.items()}
        jacobians: dict[str, Arrays] = {}
        for name, vector in zeros.items():
            rows = []
            for element in range(vector.size):
                one = np.zeros_like(vector)
                one.flat[element] = 1
                rows.append(derivative.run(inputs, {**zeros, name: one}, weights)[1])
            jacobians[name] = {
                of: np.stack([row[of] for row in rows]).reshape((*vector.shape, *np.shape(rows[0][of])))
                for of in (rows[0] if rows else {})
            }
        return jacobians

    return function


def per_sample_grad(
    model: Any,
    loss: str | Loss | Any = None,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., tuple[np.ndarray[Any, Any], Arrays]]:
    """A function that gives the loss of each sample alone and its gradients; a pass for each sample.

    Args:
        model, loss, train, freeze, dtype, threads: as `value_and_grad` takes them.

    Returns:
        ``f(batch, weights=None) -> (losses, gradients)``. The arrays of the batch have the samples on their first axis,
        or on the one to which the model gives the size of the batch; scalars go to each sample, and alone are one.
        The gradients are arrays of the shapes of weights and float inputs behind an axis of samples.

    Raises:
        UnsupportedError: for a model that cannot be differentiated.
        DataError: of ``f``, for arrays of different lengths.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.per_sample_grad("mlp.onnx", "cross_entropy")
    >>> losses, gradients = f({"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])})
    >>> losses.shape, gradients["fc1.weight"].shape, gradients["x"].shape
    ((4,), (4, 4, 16), (4, 4))
    """
    objective_of = objectives(model, loss, train, freeze, "frozen", dtype, threads)

    def of_samples(
        batch: Any, weights: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], Arrays]:
        objective = objective_of(batch)
        arrays = objective.batch(batch)
        axes = {name: objective.sample_axis(name) for name, array in arrays.items() if np.ndim(array) > 0}
        for name, axis in axes.items():
            if np.ndim(arrays[name]) <= axis:
                raise DataError(f"'{name}' has the shape {np.shape(arrays[name])}; its axis {axis} counts the samples")
        lengths = {np.shape(arrays[name])[axis] for name, axis in axes.items()} if axes else {1}
        if len(lengths) != 1:
            raise DataError(f"the arrays of a batch have one length; these have {sorted(lengths)}")
        losses, rows = [], []
        for i in range(lengths.pop()):
            sample = {
                name: np.take(array, [i], axes[name]) if name in axes else array for name, array in arrays.items()
            }
            value, gradients = objective(sample, weights)
            # The gradient of an input has the batch's axis already.
            rows.append({name: g.take(0, axes[name]) if name in axes else g for name, g in gradients.items()})
            losses.append(value)
        if not rows:
            raise DataError("the batch has no sample")
        return np.array(losses), {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    return of_samples
