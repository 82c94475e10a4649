"""Training on the device: `CheckpointState`, `Module`, `Optimizer` and `LinearLRScheduler`.

>>> import numpy as np, onnx
>>> from onnx_train.onnxruntime.training import artifacts
>>> from onnx_train.onnxruntime.training.api import CheckpointState, Module, Optimizer
>>> artifacts.generate_artifacts(onnx.load("mlp.onnx"), ["fc1.weight", "fc2.weight"], ["fc1.bias"],
...     artifacts.LossType.CrossEntropyLoss, artifacts.OptimType.AdamW)
>>> state = CheckpointState.load_checkpoint("checkpoint")
>>> module = Module("training_model.onnx", state, "eval_model.onnx")
>>> optimizer = Optimizer("optimizer_model.onnx", module)
>>> loss = module(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0]))
>>> optimizer.step()
>>> module.lazy_reset_grad()
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..._errors import DataError, UnsupportedError, UsageError
from ..._model import load
from ..._session import Session
from ._checkpoint import read_checkpoint, write_checkpoint

__all__ = ["CheckpointState", "LinearLRScheduler", "Module", "Optimizer", "OrtValue", "Parameter"]

Array = np.ndarray[Any, Any]


class OrtValue:
    """An array as ONNX Runtime wraps it; `numpy` gives it back.

    >>> value = OrtValue(np.zeros((2, 3), np.float32))
    """

    def __init__(self, array: Array) -> None:
        self._array = array

    def numpy(self) -> Array:
        """The array itself.

        >>> value.numpy().shape
        (2, 3)
        """
        return self._array

    @staticmethod
    def ortvalue_from_numpy(array: Array) -> OrtValue:
        """Wraps an array.

        >>> OrtValue.ortvalue_from_numpy(np.ones(3)).shape()
        [3]
        """
        return OrtValue(array)

    def shape(self) -> list[int]:
        """The sizes.

        >>> value.shape()
        [2, 3]
        """
        return list(self._array.shape)


class Parameter:
    """A parameter of a checkpoint. Assigning to `data` copies; frozen parameters are constants of the model.

    >>> parameter = state.parameters["fc1.weight"]
    >>> parameter.name
    'fc1.weight'
    """

    def __init__(self, state: CheckpointState, name: str) -> None:
        self._state, self.name = state, name

    @property
    def data(self) -> Array:
        """The value: a view, which shows later steps, too; on a device with memory of its own a copy.

        Raises:
            DataError: assigning an array of another shape.
            UnsupportedError: assigning to a frozen parameter.

        >>> parameter.data.shape
        (4, 16)
        >>> parameter.data = np.zeros((4, 16), np.float32)
        """
        return self._state._value(self.name)

    @data.setter
    def data(self, value: Any) -> None:
        present, array = self.data, np.asarray(value)
        if array.shape != present.shape:
            raise DataError(f"parameter '{self.name}' has the shape {present.shape}; {array.shape} was assigned")
        if not self.requires_grad:
            raise UnsupportedError(f"parameter '{self.name}' is frozen, a constant of the model; train it to assign to it")
        self._state._assign(self.name, array)

    @property
    def requires_grad(self) -> bool:
        """Whether the parameter is trained.

        >>> parameter.requires_grad, state.parameters["fc1.bias"].requires_grad
        (True, False)
        """
        return self.name in self._state._trained

    @property
    def grad(self) -> Array | None:
        """The sum of the gradients of the calls since the last step: a copy.

        None for a frozen parameter, without a `Module`, and before its first call in training mode. The gradients of a
        step stay until the next call.

        >>> parameter.grad.shape
        (4, 16)
        """
        session = self._state._session
        if session is None or not self._state._called:
            return None
        sums = [port.name for port in session.states() if port.role == "grad" and port.of == self.name]
        return np.array(session.state[sums[0]]) if sums else None

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, requires_grad={self.requires_grad})"


class Parameters(Mapping[str, Parameter]):
    """The parameters by name. ``parameters[name] = array`` is ``parameters[name].data = array``."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._state._trained and name not in self._state._frozen:
            raise KeyError(name)
        return Parameter(self._state, name)

    def __setitem__(self, name: str, value: Any) -> None:
        self[name].data = value

    def __iter__(self) -> Iterator[str]:
        yield from (*self._state._trained, *self._state._frozen)

    def __len__(self) -> int:
        return len(self._state._trained) + len(self._state._frozen)


class CheckpointState:
    """The state of a training: parameters, optimizer state, and properties, which are numbers and texts of the user.

    Once a `Module` is made of it, the parameters are those of the module.

    >>> list(state.parameters)
    ['fc1.weight', 'fc2.weight', 'fc1.bias']
    """

    def __init__(self, tensors: dict[str, Array], contents: dict[str, Any]) -> None:
        self._tensors = tensors
        self._session: Session | None = None
        self._called = False  # whether a module has computed gradients
        self._trained: list[str] = contents["trained"]
        self._frozen: list[str] = contents["frozen"]
        self._outputs: list[str] = contents["outputs"]
        self._properties: MutableMapping[str, int | float | str] = contents["properties"]

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """The checkpoint in a file of `save_checkpoint` or `generate_artifacts`.

        Raises:
            FileError: for a file that is missing, cut off, or no checkpoint.

        >>> state = CheckpointState.load_checkpoint("checkpoint")
        """
        return cls(*read_checkpoint(checkpoint_uri))

    @classmethod
    def save_checkpoint(
        cls, state: CheckpointState, checkpoint_uri: str | os.PathLike[str], include_optimizer_state: bool = False
    ) -> None:
        """Writes a checkpoint; the write is atomic.

        Args:
            include_optimizer_state: also write moments, step count, batch-norm statistics and random keys.

        Raises:
            FileError: for a file that cannot be written.

        >>> CheckpointState.save_checkpoint(state, "checkpoint", include_optimizer_state=True)
        """
        values = state._session.state if state._session is not None else state._tensors
        parameters = {*state._trained, *state._frozen}
        rest = {name: value for name, value in values.items() if name not in parameters}
        write_checkpoint(
            checkpoint_uri,
            {name: state._value(name) for name in state._trained},
            {name: state._value(name) for name in state._frozen},
            rest if include_optimizer_state else {},
            state._properties,
            state._outputs,
        )

    @property
    def parameters(self) -> Parameters:
        """The parameters by name, trained ones first.

        >>> state.parameters["fc2.weight"] = np.ones((16, 3), np.float32)
        """
        return Parameters(self)

    @property
    def properties(self) -> MutableMapping[str, int | float | str]:
        """The properties by name.

        >>> state.properties["epoch"] = 3
        """
        return self._properties

    def _assign(self, name: str, value: Array) -> None:
        if self._session is not None and name in self._session.state:
            self._session.state[name] = value
        else:
            self._tensors[name][...] = value

    def _value(self, name: str) -> Array:
        if self._session is not None and name in self._session.state:
            return np.asarray(self._session.state[name])
        return self._tensors[name]


class Module:
    """Runs the training model: in training mode each call adds gradients, in evaluation mode it changes nothing.

    Attributes:
        training: whether the module is in training mode.

    >>> x, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
    >>> loss = module(x, labels)
    """

    training: bool

    def __init__(
        self,
        train_model_uri: str | os.PathLike[str],
        state: CheckpointState,
        eval_model_uri: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        session_options: Any = None,
    ) -> None:
        """A session of the training model with the checkpoint's state.

        Args:
            train_model_uri: the training model of `generate_artifacts`; it holds the evaluation, too.
            state: the checkpoint, which the module continues and updates.
            device: as `onnx_train.Session` takes it.
            session_options: must be None.
        """
        if session_options is not None:
            raise UnsupportedError("Module: session_options are not supported; leave them out")
        model = load(train_model_uri)
        self.training, self._state, self._has_eval = True, state, eval_model_uri is not None
        self._session = Session(model, device)
        for name, value in state._tensors.items():
            if name in self._session.state:
                self._session.state[name] = value
            elif name not in state._frozen:
                raise DataError(f"the checkpoint's '{name}' is no state of '{train_model_uri}'; both come from one call")
        state._session = self._session
        written = {port.of for port in Session(model.flatten("accumulate")).outputs("predict") if port.role == "next"}
        read = {port.name for port in Session(model.flatten("apply")).inputs("predict")}
        self._accumulators = sorted(written & read)
        self._reset = False

    def __call__(self, *user_inputs: Any) -> Any:
        """The loss, a float32 of shape [], and after it the `additional_output_names`, as a tuple if there are any.

        In training mode the gradients are added to those since the last step.

        Args:
            user_inputs: arrays in the order of `input_names`, or one list of them. If all are OrtValues, the results are
                OrtValues, too.

        Raises:
            DataError: for a type or shape that the model does not accept.
            UsageError: in evaluation mode, for a module without an evaluation model.
        """
        if not self.training and not self._has_eval:
            raise UsageError("the module has no evaluation model; give eval_model_uri")
        are_values = bool(user_inputs) and all(_is_ort_value(value) for value in user_inputs)
        inputs = [value.numpy() if _is_ort_value(value) else value for value in user_inputs]
        extra = []
        if self._state._outputs:  # before the run, which may change batch-norm statistics
            given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else inputs
            count = len([p for p in self._session.inputs("predict") if p.default is None])
            outputs = self._session.predict(*given[:count])
            extra = [np.asarray(outputs[name]) for name in self._state._outputs]
        if self.training and self._reset:
            for name in self._accumulators:
                state = self._session.state[name]
                self._session.state[name] = np.zeros(state.shape, state.dtype)
            self._reset = False
        run = self._session.accumulate if self.training else self._session.evaluate
        results = [np.float32(run(*inputs).loss), *extra]
        self._state._called |= self.training
        if are_values:
            results = [OrtValue(np.asarray(result)) for result in results]
        return tuple(results) if extra else results[0]

    def train(self, mode: bool = True) -> Module:
        """Sets training mode, or evaluation mode if `mode` is false; gives the module.

        >>> module.train().training
        True
        """
        self.training = mode
        return self

    def eval(self) -> Module:
        """Sets evaluation mode; gives the module.

        >>> test_loss = module.eval()(x, labels)
        """
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Drops the gradients at the next call in training mode.

        >>> module.lazy_reset_grad()
        """
        self._reset = True

    def input_names(self) -> list[str]:
        """The names of the inputs, targets last.

        >>> module.input_names()
        ['x', 'labels']
        """
        entry = "accumulate" if self.training else "evaluate"
        return [port.name for port in self._session.inputs(entry) if port.default is None]

    def output_names(self) -> list[str]:
        """The names of the outputs: the loss, and the additional ones.

        >>> module.output_names()
        ['loss']
        """
        return ["loss", *self._state._outputs]

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """The number of elements of the parameters.

        >>> module.get_parameters_size(), module.get_parameters_size(trainable_only=False)
        (112, 128)
        """
        return sum(self._state._value(name).size for name in self._names(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """A copy of the parameters as one float32 vector, in the order of the checkpoint's `parameters`.

        >>> module.get_contiguous_parameters(trainable_only=True).numpy().shape
        (112,)
        """
        parts = [self._state._value(name).ravel() for name in self._names(trainable_only)]
        return OrtValue(np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32))

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Assigns a vector that `get_contiguous_parameters` gave to the parameters; frozen parts must be unchanged.

        Raises:
            DataError: for a vector of another size.
            UnsupportedError: for another value of a frozen parameter.

        >>> module.copy_buffer_to_parameters(module.get_contiguous_parameters(trainable_only=True))
        """
        vector = buffer.numpy() if isinstance(buffer, OrtValue) else np.asarray(buffer)
        if vector.shape != (self.get_parameters_size(trainable_only),):
            size = self.get_parameters_size(trainable_only)
            raise DataError(f"the buffer has the shape {vector.shape}; the parameters are ({size},)")
        parts, begin = {}, 0
        for name in self._names(trainable_only):
            value = self._state._value(name)
            parts[name] = vector[begin : begin + value.size].reshape(value.shape)
            begin += value.size
            if name in self._state._frozen and not np.array_equal(parts[name], value):
                raise UnsupportedError(f"parameter '{name}' is frozen, a constant of the model; trainable_only=True")
        for name in self._names(True):
            self._session.state[name] = parts[name]

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: Sequence[str]
    ) -> None:
        """Writes the inference model with the present weights and the outputs of these names.

        Raises:
            UsageError: for a name that is no output of the model.
            FileError: for a file that cannot be written.

        >>> module.export_model_for_inferencing("inference_model.onnx", ["logits"])
        """
        proto = self._session.export().to_onnx()
        outputs = {output.name: output for output in proto.graph.output}
        unknown = [name for name in graph_output_names if name not in outputs]
        if unknown:
            raise UsageError(f"the model has no output '{unknown[0]}'; it has {', '.join(outputs)}")
        del proto.graph.output[:]
        proto.graph.output.extend(outputs[name] for name in graph_output_names)
        _prune(proto.graph)
        load(proto).save(inference_model_uri)

    def _names(self, trainable_only: bool) -> list[str]:
        return self._state._trained if trainable_only else [*self._state._trained, *self._state._frozen]


def _is_ort_value(value: Any) -> bool:
    """Also true for those of the package onnxruntime."""
    return type(value).__name__ == "OrtValue"


def _prune(graph: Any) -> None:
    """Removes nodes, inputs and weights that no output depends on."""
    needed, kept = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= _reads(node)
    for field, values in ((graph.node, kept[::-1]), *(
        (field, [value for value in field if value.name in needed]) for field in (graph.input, graph.initializer)
    )):  # fmt: skip
        del field[:]
        field.extend(values)


def _reads(node: Any) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _reads(inner)
            names |= {output.name for output in graph.output}
    return names


class Optimizer:
    """Updates the parameters of a module by the gradients of its calls since the last step.

    >>> optimizer = Optimizer("optimizer_model.onnx", module)
    """

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        """The optimizer of the module's training model.

        Args:
            optimizer_uri: the optimizer model of `generate_artifacts`; the training model holds the optimizer, too.
        """
        load(optimizer_uri)  # a missing file is an error here
        self._session = module._session
        ports = self._session.inputs("apply")
        self._rate = float(next(np.asarray(port.default) for port in ports if port.role == "learning_rate"))
        self.steps = 0

    def step(self) -> None:
        """One step by the mean of the gradients of the calls since the last step.

        >>> loss = module(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0]))
        >>> optimizer.step()
        """
        self._session.apply(lr=self._rate)
        self.steps += 1

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next steps.

        >>> optimizer.set_learning_rate(0.01)
        """
        self._rate = float(learning_rate)

    def get_learning_rate(self) -> float:
        """The learning rate of the next step.

        >>> optimizer.set_learning_rate(0.01)
        >>> optimizer.get_learning_rate()
        0.01
        """
        return self._rate


class LinearLRScheduler:
    """A learning rate that rises linearly to its initial value, and falls linearly to 0.

    After step n it is initial_lr n / warmup during the warm-up, then initial_lr (total - n) / (total - warmup).

    >>> scheduler = LinearLRScheduler(optimizer, warmup_step_count=2, total_step_count=10, initial_lr=0.1)
    """

    def __init__(
        self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float
    ) -> None:
        self._optimizer, self._warmup, self._total = optimizer, warmup_step_count, total_step_count
        self._initial = initial_lr
        optimizer.set_learning_rate(initial_lr)

    def step(self) -> None:
        """Sets the learning rate for the steps that the optimizer has done.

        >>> loss = module(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0]))
        >>> optimizer.step()
        >>> scheduler.step()
        >>> optimizer.get_learning_rate()  # after one step of two
        0.1
        """
        done = self._optimizer.steps
        if done < self._warmup:
            factor = done / max(1, self._warmup)
        else:
            factor = max(0.0, (self._total - done) / max(1, self._total - self._warmup))
        self._optimizer.set_learning_rate(self._initial * factor)
