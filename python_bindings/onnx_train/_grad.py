"""Losses and gradients as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._differentiated import Differentiated
from ._model import Model, Patterns, _as_model
from ._session import Session

if TYPE_CHECKING:
    from .losses import Loss

    Gradients = dict[str, np.ndarray[Any, Any]]


def value_and_grad(
    model: Any,
    loss: str | Loss | Any = None,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., tuple[float, Gradients]]:
    """A function that gives the loss of a forward model and its gradients.

    The model is in inference form: batch norm uses its running statistics, dropout is off.

    Args:
        model: a forward model, or anything that `load` takes.
        loss, train, freeze, dtype: as `Model.build` takes them.
        threads: of the kernels; all cores by default.

    Returns:
        ``f(batch, weights=None) -> (loss, gradients)``. The batch is a mapping of names to arrays, or a tuple in the
        order of the inputs, labels and the like after those of the model. Weights by name take the place of the file's.
        The gradients are those of the weights and float inputs, by name, each of the shape of what it belongs to.

    Raises:
        UnsupportedError: for a model that cannot be differentiated; `check` lists everything that is in the way.
        DataError: of ``f``, for names, types and shapes that the model does not accept.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.value_and_grad("mlp.onnx", "cross_entropy")
    >>> loss, gradients = f({"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])})
    >>> gradients["fc1.weight"].shape, gradients["x"].shape
    ((4, 16), (4, 4))
    """
    training = _as_model(model).build(loss, "sgd", train=train, freeze=freeze, dtype=dtype, mode="frozen")
    state = Session(training, threads=threads).state
    passes = passes_of_loss(training, threads)
    weights = {port.name: state[port.name] for port in passes.inputs if port.name in state}
    names = [port.name for port in passes.inputs if port.name not in state]

    def function(batch: Any, new_weights: Mapping[str, Any] | None = None) -> tuple[float, Gradients]:
        given = dict(batch) if isinstance(batch, Mapping) else dict(zip(names, batch))
        arrays: dict[str, Any] = {**weights, **passes.states, **(new_weights or {}), **given}
        results, _ = passes.forward(arrays)
        arrays |= results
        for port in passes.outputs:
            name = passes.output_gradients.get(port.of)
            if name is not None:
                arrays[name] = np.full(np.shape(results[port.name]), port.name == "loss", port.dtype)
        wanted = {name: arrays[name] for name in (*passes.backward_inputs, *passes.output_gradients.values())}
        return results["loss"], passes.backward(wanted)

    return function


def passes_of_loss(training: Model, threads: int | None) -> Differentiated:
    """The passes of a training model's loss. Its trained weights are inputs; frozen ones and a loss's own are constants."""
    evaluate = training.flatten("evaluate")
    passes = Differentiated(evaluate, mode="frozen", threads=threads)
    return Differentiated(evaluate, freeze="*", mode="frozen", threads=threads) if passes.weights else passes


def grad(model: Any, loss: str | Loss | Any = None, **options: Any) -> Callable[..., Gradients]:
    """The gradients alone of `value_and_grad`, whose arguments it takes.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.grad("mlp.onnx", "mse(logits, target)")
    >>> batch = {"x": np.eye(4, dtype=np.float32), "target": np.zeros((4, 3), np.float32)}
    >>> f(batch)["fc2.bias"].shape
    (3,)
    """
    function = value_and_grad(model, loss, **options)

    def gradients(batch: Any, weights: Mapping[str, Any] | None = None) -> Gradients:
        return function(batch, weights)[1]

    return gradients
