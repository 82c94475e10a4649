"""The forward and the backward pass of a model as functions of arrays: what `onnx_train.torch` is made of."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._model import Patterns, _as_model
from ._model import Model as _Model
from ._options import options_of
from ._result import Port, Result
from ._session import Session

if TYPE_CHECKING:
    import numpy as np


class Differentiated:
    """The passes of a forward model. Weights and states are arguments, so a pass reads them where the caller has them:
    copies of what uses the passes share them. Threads that run them wait for each other.

    Attributes:
        inputs: the model's own inputs.
        outputs: the model's own outputs.
        weights: the trained weights, with the values of the file.
        states: batch-norm statistics and random keys, likewise; empty for models without.
        saved: what the forward pass computes and the backward pass reads.
        backward_inputs: names of all that the backward pass reads besides `output_gradients`.
        output_gradients: the name of the gradient of each float output, by the output's name; outputs that depend on no
            weight and no float input have none.
        freezes: whether some weights are constants by `freeze`.
        gradients: what the backward pass gives; `of` is the weight or input.
    """

    def __init__(
        self,
        model: Any,
        *,
        train: Patterns = None,
        freeze: Patterns = None,
        mode: str | None = None,
        precision: str | None = None,
        dtype: str | None = None,
        batch: int | str | None = None,
        seed: int | None = None,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        options = options_of(
            train=train, freeze=freeze, mode=mode, precision=precision, dtype=dtype, batch=batch, seed=seed
        )
        self.freezes = freeze is not None
        self._model, self._options, self._device, self._threads = _as_model(model), options, device, threads
        self._arguments = {
            "train": train, "freeze": freeze, "mode": mode, "precision": precision, "dtype": dtype, "batch": batch,
            "seed": seed, "device": device, "threads": threads,
        }  # fmt: skip
        self._lock = threading.Lock()
        self._again: tuple[Differentiated, Differentiated] | None = None
        forward, backward = self._model._core.differentiate(options)
        self._forward = Session(_Model(forward), device, threads=threads)
        self._backward = Session(_Model(backward), device, threads=threads)
        ports, results = self._forward.inputs("predict"), self._forward.outputs("predict")
        self.inputs = [port for port in ports if port.role not in ("weight", "state")]
        self.weights = _defaults(ports, "weight")
        self.states = _defaults(ports, "state")
        self.outputs = [port for port in results if port.role == "output"]
        self.saved = [port for port in results if port.role == "saved"]
        self._next = {port.name: port.of for port in results if port.role == "next"}
        # Where the model is itself a backward pass, its own output gradients are ordinary inputs.
        own = {port.name for port in ports}
        backward_ports = self._backward.inputs("predict")
        given = [port for port in backward_ports if port.role == "dy" and port.name not in own]
        self.output_gradients = {port.of: port.name for port in given}
        self.backward_inputs = [port.name for port in backward_ports if port not in given]
        self.gradients = self._backward.outputs("predict")

    def __deepcopy__(self, memo: dict[int, Any]) -> Differentiated:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self._model, self._arguments)

    def forward(self, arrays: Mapping[str, Any]) -> tuple[Result, dict[str, Any]]:
        """Outputs and saved values by name, and the next values of the states.

        Args:
            arrays: inputs, weights and states by name. Weights and states that are left out have the file's values.
        """
        with self._lock:
            results = self._forward.run("predict", arrays)
        states = {state: results.pop(name) for name, state in self._next.items()}
        return results, states

    def backward(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The gradients of weights and float inputs by name; those that no output depends on are left out.

        Args:
            arrays: all of `backward_inputs` and of `output_gradients` by name.
        """
        with self._lock:
            results = self._backward.run("predict", arrays)
        return {port.of: results[port.name] for port in self.gradients}

    def again(self) -> tuple[Differentiated, Differentiated]:
        """The passes of the forward pass, whose outputs include the saved values, and of the backward pass: both are
        models. Made at the first call.

        Raises:
            UnsupportedError: for a node that cannot be differentiated twice; the message names it.
        """
        if self._again is None:
            forward, backward = (
                Differentiated(_Model(part), mode="frozen", device=self._device, threads=self._threads)
                for part in self._model._core.differentiate(self._options)
            )
            self._again = forward, backward
        return self._again


def _made_again(model: _Model, arguments: dict[str, Any]) -> Differentiated:
    return Differentiated(model, **arguments)


def _defaults(ports: list[Port], role: str) -> dict[str, np.ndarray[Any, Any]]:
    return {port.name: port.default for port in ports if port.role == role and port.default is not None}
