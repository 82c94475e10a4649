"""Losses and gradients as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._differentiated import Differentiated
from ._model import Patterns, _as_model
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
    objective = Objective(model, loss, train, freeze, dtype, threads)
    passes = objective.passes

    def function(batch: Any, new_weights: Mapping[str, Any] | None = None) -> tuple[float, Gradients]:
        arrays = objective.arrays(batch, new_weights)
        results, _ = passes.forward(arrays)
        arrays |= results | objective.output_gradients(results)
        wanted = {name: arrays[name] for name in (*passes.backward_inputs, *passes.output_gradients.values())}
        gradients = passes.backward(wanted)
        return objective.loss_of(results), {name: g for name, g in gradients.items() if name in objective.wanted}

    return function


def _is_everything(patterns: Patterns) -> bool:
    return patterns == "*" or (isinstance(patterns, (list, tuple)) and "*" in patterns)


class Objective:
    """The loss of a forward model as a function of weights and batches, by the passes of its training model's evaluation.

    Attributes:
        evaluation: the entry point ``evaluate`` as a plain model.
        passes: of that model. The trained weights are inputs; frozen ones and a loss's own are constants.
        state: the values of the file by name.
        wanted: the names of the weights and inputs whose gradients are asked for.
        names: of the arrays of a batch, in order.
    """

    def __init__(
        self, model: Any, loss: Any, train: Patterns, freeze: Patterns, dtype: str | None, threads: int | None
    ) -> None:
        # A training model trains something; with all weights frozen it is one whose weights become constants below.
        frozen = _is_everything(freeze)
        training = _as_model(model).build(
            loss, "sgd", train=train, freeze=None if frozen else freeze, dtype=dtype, mode="frozen"
        )
        session = Session(training, threads=threads)
        self.state = session.state
        self.evaluation = training.flatten("evaluate")
        passes = Differentiated(self.evaluation, mode="frozen", threads=threads)
        if passes.weights:
            passes = Differentiated(self.evaluation, freeze="*", mode="frozen", threads=threads)
        self.passes = passes
        self.names = [port.name for port in passes.inputs if port.name not in self.state]
        self._weights = {port.name: self.state[port.name] for port in passes.inputs if port.name in self.state}
        self.wanted = {port.of for port in passes.gradients if not (frozen and port.of in self.state)}
        (self._loss,) = (port.name for port in session.outputs("evaluate") if port.role == "loss")

    def batch(self, batch: Any) -> dict[str, Any]:
        """A batch, a mapping or a tuple, by name."""
        return dict(batch) if isinstance(batch, Mapping) else dict(zip(self.names, batch))

    def arrays(self, batch: Any, weights: Mapping[str, Any] | None) -> dict[str, Any]:
        """The inputs of the forward pass. `weights` take the place of the file's."""
        return {**self._weights, **self.passes.states, **(weights or {}), **self.batch(batch)}

    def output_gradients(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """1 for the loss, 0 for the other outputs of the forward pass, by the names that the backward pass has for them."""
        gradients = {}
        for port in self.passes.outputs:
            name = self.passes.output_gradients.get(port.of)
            if name is not None:
                gradients[name] = np.full(np.shape(results[port.name]), port.of == self._loss, port.dtype)
        return gradients

    def loss_of(self, results: Mapping[str, Any]) -> float:
        """The loss among the results of the forward pass."""
        (loss,) = (results[port.name] for port in self.passes.outputs if port.of == self._loss)
        return float(loss)


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
