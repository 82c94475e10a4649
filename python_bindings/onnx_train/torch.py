"""An ONNX model as a PyTorch module: trained by PyTorch's optimizers, alone or as a layer of a larger model.

>>> import torch
>>> import onnx_train.torch
>>> module = onnx_train.torch.Module("mlp.onnx")
>>> optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
>>> loss = torch.nn.functional.cross_entropy(module(torch.eye(4)), torch.tensor([0, 1, 2, 0]))
>>> loss.backward()
>>> optimizer.step()
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ._differentiated import Differentiated
from ._errors import DeviceError, UnsupportedError, UsageError
from ._model import Patterns

__all__ = ["Module"]


def _as_array(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    """The memory of a tensor; a copy only if it is not dense in row-major order."""
    if tensor.device.type != "cpu":
        raise DeviceError(f"'{name}' is on {tensor.device}; this module computes on the CPU: use tensor.cpu()")
    return tensor.detach().contiguous().numpy()


def _as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else torch.tensor(value, dtype=dtype)


def _torch_type(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


class _Apply(torch.autograd.Function):
    """(passes, states, names, tensors) -> outputs. The names are those of the tensors: inputs, then weights."""

    @staticmethod
    def forward(
        ctx: Any,
        passes: Differentiated,
        states: dict[str, torch.Tensor],
        names: list[str],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, tensors))
        arrays = {name: _as_array(tensor, name) for name, tensor in (given | states).items()}
        # The backward pass reads the states as they are now; `next_states` takes their place afterwards.
        before = {name: tensor.clone() for name, tensor in states.items()}
        results, next_states = passes.forward(arrays)
        for name, value in next_states.items():
            states[name].copy_(_as_tensor(value, states[name].dtype))
        outputs = {port.name: _as_tensor(results[port.name], _torch_type(port.dtype)) for port in passes.outputs}
        kept: list[torch.Tensor] = []
        for name in passes.backward_inputs:
            value = given.get(name, before.get(name, outputs.get(name)))
            kept.append(torch.as_tensor(results[name]) if value is None else value)
        ctx.save_for_backward(*kept)
        ctx.passes, ctx.before = passes, before
        # Not saved as the others are: changing what only a second derivative reads is no error of a first one.
        ctx.given = {name: (tensor, tensor._version) for name, tensor in given.items()}
        ctx.mark_non_differentiable(*(y for y in outputs.values() if not y.is_floating_point()))
        return tuple(outputs.values())

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        passes: Differentiated = ctx.passes
        read = dict(zip(passes.backward_inputs, ctx.saved_tensors))
        for port, gradient in zip(passes.outputs, output_gradients):
            name = passes.output_gradients.get(port.of)
            if name is not None:
                read[name] = gradient
        if torch.is_grad_enabled():  # create_graph=True
            gradients = _gradients_in_graph(ctx, read)
        else:
            arrays = passes.backward({name: _as_array(tensor, name) for name, tensor in read.items()})
            gradients = {name: _as_tensor(value, ctx.given[name][0].dtype) for name, value in arrays.items()}
        answers = [gradients.get(name) if needed else None for name, needed in zip(ctx.given, ctx.needs_input_grad[3:])]
        return None, None, None, *answers


def _gradients_in_graph(ctx: Any, read: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `_Apply.backward` gives, as functions of the inputs, the weights and the gradients of the outputs.

    The saved values depend on inputs and weights, too: the forward pass computes them again.
    """
    for name, (tensor, version) in ctx.given.items():
        if tensor._version != version:
            raise UsageError(f"'{name}' was changed in place after the forward pass; a second derivative reads it")
    try:
        forward, backward = ctx.passes.again()
    except UnsupportedError as error:
        raise UnsupportedError(f"the gradients cannot be differentiated again: {error}") from error
    given = {name: tensor for name, (tensor, _) in ctx.given.items()} | ctx.before
    made = _apply_by_name(forward, given)
    results = _apply_by_name(backward, read | made | given)
    return {port.of: results[port.name] for port in ctx.passes.gradients}


def _apply_by_name(passes: Differentiated, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The outputs of a model by the model's names, with their place in PyTorch's graph."""
    names = [port.name for port in passes.inputs] + list(passes.weights)
    values = {name: torch.from_numpy(array) for name, array in passes.weights.items()} | values  # constants
    states = {name: values[name] for name in passes.states}
    outputs = _apply(_Apply, passes, states, names, *(values[name] for name in names))
    return {port.of: output for port, output in zip(passes.outputs, outputs)}


class Module(torch.nn.Module):
    """A forward model as a PyTorch module.

    Its parameters are the model's weights under their names in the file; its buffers are batch-norm statistics and
    random keys. Both are ordinary tensors of PyTorch, which the passes read where they are: any optimizer, `state_dict`
    and assignments to `parameter.data` work, and nothing is copied. In training mode batch norm uses and updates batch
    statistics and dropout is on; ``module.eval()`` turns both off.

    The forward pass saves the intermediate values that the backward pass reads as tensors of the autograd graph, so
    their memory is freed with it. With ``create_graph=True`` the gradients are part of the graph and can be
    differentiated again, any number of times, where every node of the passes has a gradient; if one has none,
    `UnsupportedError` names it. The module computes on the CPU.

    Args:
        model: a forward model, or anything that `onnx_train.load` takes.
        train: the weights that become parameters, by names and globs; all others are constants.
        freeze: weights that stay constants, likewise.
        precision: as `Model.build` takes it.
        dtype: ``"float64"`` makes every float a double.
        batch: the size of the batch dimension, or ``"dynamic"``.
        seed: of dropout.
        threads: of the kernels; all cores by default.

    Raises:
        UnsupportedError: for a model with a node that has no gradient; the message lists all of them.

    >>> module = onnx_train.torch.Module("mlp.onnx", freeze="fc1.*")
    >>> [name for name, parameter in module.named_parameters()]
    ['fc2.weight', 'fc2.bias']
    """

    def __init__(
        self,
        model: Any,
        *,
        train: Patterns = None,
        freeze: Patterns = None,
        precision: str | None = None,
        dtype: str | None = None,
        batch: int | str | None = None,
        seed: int | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self._training_passes = Differentiated(
            model,
            train=train,
            freeze=freeze,
            precision=precision,
            dtype=dtype,
            batch=batch,
            seed=seed,
            threads=threads,
        )
        passes = self._training_passes
        # Without states, training and inference compute the same.
        self._inference_passes = (
            Differentiated(
                model,
                train=train,
                freeze=freeze,
                mode="frozen",
                precision=precision,
                dtype=dtype,
                batch=batch,
                threads=threads,
            )
            if passes.states
            else passes
        )
        weights = passes.weights | self._inference_passes.weights
        states = passes.states | self._inference_passes.states
        self._places: dict[str, tuple[torch.nn.Module, str]] = {}
        for name, value in weights.items():
            self._register(name, torch.nn.Parameter(torch.from_numpy(value)))
        for name, value in states.items():
            if name not in weights:
                self._register(name, torch.from_numpy(value))

    # torch.compile cannot look into the passes: they are a break in its graph.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The model's outputs for its inputs, in the model's order or by name: one tensor, or a tuple if there are several.

        Inputs have the types and shapes that the model declares; whatever is no tensor becomes one.

        Raises:
            UsageError: for a wrong number of inputs, or an unknown name.
            DataError: for a type or shape that the model does not accept.
            DeviceError: for a tensor that is not in the host's memory.

        >>> module(torch.eye(4)).shape
        torch.Size([4, 3])
        """
        passes = self._training_passes if self.training else self._inference_passes
        names = [port.name for port in passes.inputs]
        given = {**dict(zip(names, inputs)), **named}
        if len(inputs) + len(named) != len(names) or set(given) != set(names):
            by_name = f", of them {', '.join(named)} by name" if named else ""
            raise UsageError(
                f"the model takes {len(names)} inputs ({', '.join(names)}), not {len(inputs) + len(named)}{by_name}"
            )
        tensors = {
            name: given[name] if isinstance(given[name], torch.Tensor) else torch.as_tensor(given[name])
            for name in names
        }
        tensors |= {name: self._tensor(name) for name in passes.weights}
        states = {name: self._tensor(name) for name in passes.states}
        outputs = _apply(_Apply, passes, states, list(tensors), *tensors.values())
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _tensor(self, name: str) -> torch.Tensor:
        owner, attribute = self._places[name]
        tensor = getattr(owner, attribute)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def _register(self, name: str, tensor: torch.Tensor) -> None:
        """As "encoder.0.weight" of this module where such a name can be, so that `state_dict` has the file's names."""
        owner: torch.nn.Module = self
        *path, attribute = name.split(".")
        for part in path:
            child = owner._modules.get(part)
            if child is None:
                if not part or hasattr(owner, part):
                    break
                child = torch.nn.Module()
                owner.add_module(part, child)
            owner = child
        else:
            if attribute and not hasattr(owner, attribute):
                self._place(owner, attribute, name, tensor)
                return
        attribute = "value_" + name.replace(".", "_")
        while hasattr(self, attribute):
            attribute += "_"
        self._place(self, attribute, name, tensor)

    def _place(self, owner: torch.nn.Module, attribute: str, name: str, tensor: torch.Tensor) -> None:
        if isinstance(tensor, torch.nn.Parameter):
            owner.register_parameter(attribute, tensor)
        else:
            owner.register_buffer(attribute, tensor)
        self._places[name] = owner, attribute
