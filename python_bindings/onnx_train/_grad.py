"""Losses and gradients as functions of numpy arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import UnsupportedError
from ._model import Model, Patterns, _as_model
from ._session import Session
from ._sizes import for_sizes

if TYPE_CHECKING:
    from .losses import Loss

    Gradients = dict[str, np.ndarray[Any, Any]]


def value_and_grad(
    model: Any,
    loss: str | Loss | Any = None,
    *,
    train: Patterns = None,
    freeze: Patterns = None,
    mode: str = "frozen",
    dtype: str | None = None,
    threads: int | None = None,
) -> Callable[..., tuple[float, Gradients]]:
    """A function that gives the loss of a forward model and its gradients.

    The model is in inference form, if `mode` does not say otherwise: batch norm uses its running statistics, dropout is
    off.

    Args:
        model: a forward model, or anything that `load` takes.
        loss, train, freeze, mode, dtype: as `Model.build` takes them. In another mode than ``"frozen"``, inputs that the loss
            alone reads, such as targets, have no gradient, and no statistics are updated.
        threads: of the kernels; all cores by default.

    Returns:
        ``f(batch, weights=None) -> (loss, gradients)``. The batch is a mapping of names to arrays, or a tuple in the
        order of the inputs, labels and the like after those of the model. Weights by name take the place of the file's.
        The gradients are those of the weights and float inputs, by name, each of the shape of what it belongs to.

    Raises:
        UnsupportedError: for a model that cannot be differentiated; `check` lists everything that is in the way. If the
            model leaves sizes open besides the number of samples, it is one of ``f``, which tries those of the batch.
        DataError: of ``f``, for names, types and shapes that the model does not accept.

    >>> import numpy as np
    >>> import onnx_train
    >>> f = onnx_train.value_and_grad("mlp.onnx", "cross_entropy")
    >>> loss, gradients = f({"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])})
    >>> gradients["fc1.weight"].shape, gradients["x"].shape
    ((4, 16), (4, 4))
    """
    objective_of = objectives(model, loss, train, freeze, mode, dtype, threads)

    def function(batch: Any, weights: Mapping[str, Any] | None = None) -> tuple[float, Gradients]:
        return objective_of(batch)(batch, weights)

    return function


_PARAMETERS = ("weight", "state")  # roles of inputs with defaults


def _is_everything(patterns: Patterns) -> bool:
    return patterns == "*" or (isinstance(patterns, (list, tuple)) and "*" in patterns)


class Objective:
    """The loss of a forward model as a function of weights and batches: its training model's evaluation, differentiated.
    Threads that call it wait for each other.

    Attributes:
        state: the values of the file by name.
        names: of the arrays of a batch, in order.
    """

    def __init__(
        self,
        model: Any,
        loss: Any,
        train: Patterns,
        freeze: Patterns,
        mode: str,
        dtype: str | None,
        threads: int | None,
        dim: str | None = None,
    ) -> None:
        """`dim`: sizes that the model leaves open, as the option takes them."""
        # A training model trains something; with all weights frozen it is one whose gradients are left out below.
        frozen = _is_everything(freeze)
        options: dict[str, Any] = dict(train=train, dtype=dtype, mode=mode, dim=dim)
        training = _training(_as_model(model), loss, dict(options, freeze=None if frozen else freeze))
        session = Session(training, threads=threads)
        self.state = session.state
        self._evaluation = session
        # One graph has both passes: what they share stays inside, whatever its shape.
        if mode == "frozen":  # that of the evaluation, whose inputs are the trained weights; frozen ones are constants
            (name,) = (port.name for port in session.outputs("evaluate") if port.role == "loss")
            quoted = "'" + name.replace("'", "''") + "'"
            gradient = training.flatten("evaluate").derivative("gradient", quoted, freeze="*", mode=mode)
        else:
            gradient = _as_model(model).derivative("gradient", loss, freeze=freeze, **options)
        self._session = Session(gradient, threads=threads)
        ports = self._session.inputs("predict")
        self.names = [port.name for port in ports if port.name not in self.state and port.role not in _PARAMETERS]
        self._weights = {port.name: self.state[port.name] for port in ports if port.name in self.state}
        results = self._session.outputs("predict")
        (self._loss,) = (port.name for port in results if port.role == "loss")
        self._gradients = {
            port.name: port.of
            for port in results
            if port.role == "gradient" and not (frozen and port.of in self.state)
        }
        self._lock = threading.Lock()

    def batch(self, batch: Any) -> dict[str, Any]:
        """A batch, a mapping or a tuple, by name."""
        return dict(batch) if isinstance(batch, Mapping) else dict(zip(self.names, batch))

    def sample_axis(self, name: str) -> int:
        """Along which axis the array of this name has its samples."""
        return self._evaluation._core.sample_axis("evaluate", name)

    def __call__(self, batch: Any, weights: Mapping[str, Any] | None = None) -> tuple[float, Gradients]:
        arrays = {**self._weights, **(weights or {}), **self.batch(batch)}
        with self._lock:
            results = self._session.run("predict", arrays)
        return float(results[self._loss]), {of: results[name] for name, of in self._gradients.items()}


def _training(model: Model, loss: Any, options: dict[str, Any]) -> Model:
    """A training model, whose evaluation counts; of a model without weights one that has nothing else."""
    try:
        return model.build(loss, "sgd", **options)
    except UnsupportedError:
        ports = Session(model.derivative("gradient", loss, **options)).inputs("predict")
        if any(port.role == "weight" for port in ports):
            raise
        return model._build_evaluation(loss, **options)


def objectives(
    model: Any, loss: Any, train: Patterns, freeze: Patterns, mode: str, dtype: str | None, threads: int | None
) -> Callable[[Any], Objective]:
    """The Objective for a batch."""
    return for_sizes(model, lambda dim: Objective(model, loss, train, freeze, mode, dtype, threads, dim))


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
