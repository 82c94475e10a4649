"""The state of a session, by name."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any

from . import _core
from ._device_array import CPU, DeviceArray
from ._errors import UsageError


class State(MutableMapping[str, Any]):
    """The state of a session by name: weights, optimizer slots, statistics, random keys.

    Reading gives a numpy array that is a view: it always holds the present value, also after steps, `Session.swap` and
    `Session.initialize`, because a state keeps its address as long as the session lives; writing to it changes the
    state; and it keeps the session alive. Do not read or write it while a run is in progress in another thread. On a
    device with memory of its own it is a `DeviceArray`, for which the same holds, and ``np.asarray`` copies it to the
    host. All export their memory by DLPack: ``torch.from_dlpack(session.state["fc.weight"])`` is the same memory.

    Assigning copies an array of the state's shape, of any library, to the state: from the host, or within the session's
    device. States cannot be added or removed.

    Raises:
        KeyError: for a name that the model does not have.
        DataError: for an array of another shape, of a type that does not convert, or on a third device.

    >>> import numpy as np
    >>> import onnx_train
    >>> state = onnx_train.Session(onnx_train.build("mlp.onnx", optimizer="sgd")).state
    >>> list(state)
    ['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias', 'state/step']
    >>> bias = state["fc2.bias"]  # a view
    >>> state["fc2.bias"] = np.ones(3, np.float32)
    >>> bias.tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, core: _core.Session) -> None:
        self._core = core
        self._names = dict.fromkeys(core.states())
        self._read = core.state if core.device()[0] == CPU else partial(DeviceArray, core)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._names:
            raise KeyError(name)
        self._core.set_state(name, value)

    def __delitem__(self, name: str) -> None:
        raise UsageError(f"the state '{name}' cannot be removed: the model has it")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"<onnx_train.State: {len(self)} tensors>"
