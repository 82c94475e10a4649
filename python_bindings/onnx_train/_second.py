"""Derivatives of derivatives, by differentiating the backward pass once more, and a check of gradients by differences.

The forward pass gives outputs y and saved values s, both functions of the arguments w. The backward pass gives
g(w, s, u) = uᵀ dy/dw for output gradients u; it is linear in u.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._differentiated import Differentiated
from ._errors import DataError, UsageError
from ._grad import Objective, value_and_grad
from ._model import Model, Patterns, _as_model
from ._options import options_of

if TYPE_CHECKING:
    from .losses import Loss

Arrays = dict[str, np.ndarray[Any, Any]]


def _split(model: Model, train: Patterns = None, freeze: Patterns = None, dtype: str | None = None) -> list[Model]:
    """The forward and the backward pass of a model as models."""
    passes = model._core.differentiate(options_of(mode="frozen", train=train, freeze=freeze, dtype=dtype))
    return [Model(part) for part in passes]


def _pull_back(passes: Differentiated, arrays: Mapping[str, Any], gradients: Mapping[str, Any]) -> Arrays:
    """uᵀ dy/dx by the name of x, for the output gradients u by the model's name of y; those left out are zero."""
    given = {name: arrays[name] for name in (p.name for p in passes.inputs)}
    given |= {name: arrays.get(name, value) for name, value in (passes.weights | passes.states).items()}
    results, _ = passes.forward(given)
    read: dict[str, Any] = {**given, **results}
    arguments = {name: read[name] for name in passes.backward_inputs}
    for port in passes.outputs:
        name = passes.output_gradients.get(port.of)
        if name is not None:
            zeros = np.zeros(np.shape(results[port.name]), port.dtype)
            arguments[name] = gradients.get(port.of, zeros)
    return passes.backward(arguments)


def _directions(given: Mapping[str, Any], ports: Iterable[Any], arrays: Mapping[str, Any]) -> Arrays:
    """`given` as arrays of the types and shapes of what they are directions of; zeros for all that is left out."""
    types = {port.of: port.dtype for port in ports}
    for name in given:
        if name not in types:
            raise DataError(f"'{name}' has no derivative; directions are of {', '.join(types)}")
        if np.shape(given[name]) != np.shape(arrays[name]):
            shape, expected = np.shape(given[name]), np.shape(arrays[name])
            raise DataError(f"the direction of '{name}' has the shape {shape}; it must be {expected}")
    return {name: np.asarray(given.get(name, np.zeros(np.shape(arrays[name]))), t) for name, t in types.items()}


def jvp(
    model: Any,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., tuple[Arrays, Arrays]]:
    """A function that gives the outputs of a forward model and their derivatives along a direction.

    The model is in inference form. The derivative of g(w, s, u)ᵀ v with respect to u is (dy/dw) v.

    Args:
        model: a forward model, or anything that `load` takes.
        train, freeze, dtype: as `Model.build` takes them.
        threads: of the kernels; all cores by default.

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
    parts = _split(_as_model(model), train, freeze, dtype)
    passes = Differentiated(_as_model(model), train=train, freeze=freeze, dtype=dtype, mode="frozen", threads=threads)
    twice = Differentiated(parts[1], mode="frozen", threads=threads)

    def function(
        inputs: Mapping[str, Any], directions: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> tuple[Arrays, Arrays]:
        arrays: dict[str, Any] = {**passes.weights, **passes.states, **(weights or {}), **inputs}
        results, _ = passes.forward(arrays)
        v = _directions(directions, passes.gradients, arrays)
        arrays |= results
        for port in passes.outputs:
            name = passes.output_gradients.get(port.of)
            if name is not None:
                arrays[name] = np.zeros(np.shape(results[port.name]), port.dtype)
        pulled = _pull_back(twice, arrays, {port.name: v[port.of] for port in passes.gradients})
        derivatives = {}
        for port in passes.outputs:
            if np.dtype(port.dtype).kind == "f":
                zeros = np.zeros(np.shape(results[port.name]), port.dtype)
                derivatives[port.of] = pulled.get(passes.output_gradients.get(port.of, ""), zeros)
        return {port.of: results[port.name] for port in passes.outputs}, derivatives

    return function


def hvp(
    model: Any,
    loss: str | Loss | Any = None,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., Arrays]:
    """A function that gives products of the Hessian of a loss with vectors: the gradient of g(w, s(w))ᵀ v.

    Args:
        model, loss, train, freeze, dtype, threads: as `value_and_grad` takes them.

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
    objective = Objective(model, loss, train, freeze, dtype, threads)
    passes = objective.passes
    parts = _split(objective.evaluation, freeze="*" if passes.freezes else None)
    of_forward, of_backward = (Differentiated(part, mode="frozen", threads=threads) for part in parts)

    def function(batch: Any, vectors: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> Arrays:
        arrays = objective.arrays(batch, weights)
        v = _directions(vectors, passes.gradients, arrays)
        results, _ = passes.forward(arrays)
        read = {**arrays, **results, **objective.output_gradients(results)}
        partial = _pull_back(of_backward, read, {port.name: v[port.of] for port in passes.gradients})
        through = _pull_back(of_forward, arrays, {name: partial[name] for name in partial if name in results})
        products = {}
        for name, vector in v.items():
            products[name] = np.asarray(partial.get(name, 0) + through.get(name, 0) + np.zeros_like(vector))
        return products

    return function


class Verification(NamedTuple):
    """What `verify` found; true if all gradients are right.

    Attributes:
        errors: by weight and float input, |derivative - difference| / max(|derivative|, |difference|, 1e-6 of the largest
            derivative).
        tolerance: the largest error of a right gradient.

    >>> import numpy as np
    >>> import onnx_train
    >>> batch = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> found = onnx_train.verify("mlp.onnx", "cross_entropy", batch)
    >>> bool(found), max(found.errors.values()) < found.tolerance
    (True, True)
    """

    errors: dict[str, float]
    tolerance: float

    def __bool__(self) -> bool:
        return all(error <= self.tolerance for error in self.errors.values())


def verify(
    model: Any,
    loss: str | Loss | Any = None,
    batch: Any = None,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    seed: int = 0,
    tolerance: float = 1e-6,
    threads: int | None = None,
) -> Verification:
    """Compares gradients in float64 with central differences, along a random direction for each weight and float input.

    The difference is one of 4th order with steps of 1e-3 of a unit direction. Next to a kink, such as zero of a ReLU,
    a right gradient may fail; the command ``onnx-train verify`` tells these apart.

    Args:
        model, loss, train, freeze, threads: as `value_and_grad` takes them.
        batch: a mapping of names to arrays, or a tuple, likewise.
        seed: of the directions.
        tolerance: the largest relative error of a right gradient.

    Raises:
        UnsupportedError: for a model that cannot be differentiated.

    >>> import numpy as np
    >>> import onnx_train
    >>> batch = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> bool(onnx_train.verify("mlp.onnx", "cross_entropy", batch))
    True
    """
    objective = Objective(model, loss, train, freeze, "float64", threads)
    if batch is None:
        names = ", ".join(f"'{name}': ..." for name in objective.names)
        raise UsageError(f"verify needs a batch: verify(model, loss, {{{names}}})")
    state, arrays = objective.state, objective.batch(batch)
    function = value_and_grad(model, loss, train=train, freeze=freeze, dtype="float64", threads=threads)
    _, gradients = function(arrays)
    rng = np.random.default_rng(seed)
    pairs = {}
    for name, gradient in gradients.items():
        direction = rng.normal(size=np.shape(gradient))
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        value = np.asarray(arrays[name] if name in arrays else state[name], np.float64)

        def at(distance: float) -> float:
            moved = {name: value + distance * direction}  # noqa: B023  (called in this turn of the loop)
            return function({**arrays, **moved} if name in arrays else arrays, None if name in arrays else moved)[0]  # noqa: B023

        h = 1e-3
        difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
        pairs[name] = float(np.sum(gradient * direction)), difference
    floor = 1e-6 * max((abs(derivative) for derivative, _ in pairs.values()), default=0.0) or 1.0
    errors = {name: abs(a - b) / max(abs(a), abs(b), floor) for name, (a, b) in pairs.items()}
    return Verification(errors, tolerance)
