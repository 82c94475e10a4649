"""Weights by name, in files that other programs read: safetensors and .npz."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _safetensors
from ._errors import DataError
from ._model import Model, _as_model
from ._options import check_suffix, options_of
from ._session import Session

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


def save_weights(source: Any, path: str | os.PathLike[str], *, state: bool = False) -> None:
    """Writes the weights of a session or model by name, batch-norm statistics included.

    Args:
        source: a `Session`, a `Model`, or anything that `load` takes.
        path: ends with ``.npz`` or ``.safetensors``, and is written as such, or has no suffix: safetensors. The write is
            atomic.
        state: write all of a session's state in the place of the weights: optimizer slots and random keys, too.

    Raises:
        UsageError: for another suffix.
        FileError: for a file that cannot be written.
        UnsupportedError: for a model whose weights cannot be told apart because it cannot be differentiated.

    >>> import onnx_train
    >>> session = onnx_train.Session(onnx_train.build("mlp.onnx", "cross_entropy", "sgd"))
    >>> onnx_train.save_weights(session, "mlp.safetensors")
    >>> onnx_train.load_weights(session, "mlp.safetensors")
    ['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']
    """
    check_suffix(path, ".safetensors", ".npz")
    if state and isinstance(source, Session):
        _safetensors.write(path, source.state)
    else:
        _safetensors.write(path, weights_of(source))


def load_weights(session: Session, path: str | os.PathLike[str], *, strict: bool = True) -> list[str]:
    """Assigns the tensors of a file to the states of a session that have their names. All are checked first.

    `Model.with_weights` is the same for a model, before it is built. Where training keeps an average of the weights
    (`Model.build`, `ema`), it begins anew from the weights that are read.

    Args:
        session: what is assigned to.
        path: a file of `save_weights`, or any safetensors or .npz file with the names of the model. bfloat16 is read.
        strict: whether names that are no state of the session are errors; else they are left out. Frozen weights are
            no state.

    Returns:
        The names that were assigned, in the session's order.

    Raises:
        FileError: for a file that cannot be read, is cut off, or whose tensors overlap.
        DataError: for an unknown name, a wrong shape or type; then no state has changed.

    >>> import numpy as np
    >>> import onnx_train
    >>> session = onnx_train.Session(onnx_train.build("mlp.onnx", "cross_entropy", "sgd"))
    >>> np.savez("bias.npz", **{"fc2.bias": np.ones(3, np.float32)})
    >>> onnx_train.load_weights(session, "bias.npz")
    ['fc2.bias']
    """
    arrays, _ = _safetensors.read(path)
    unknown = [name for name in arrays if name not in session.state]
    if unknown and strict:
        raise DataError(f"'{path}': the session has no state '{unknown[0]}'; strict=False leaves it out")
    assigned = [name for name in session.state if name in arrays]
    for name in assigned:
        array, present = arrays[name], session.state[name]
        if array.shape != present.shape:
            raise DataError(f"'{path}': '{name}' has the shape {array.shape}; the state has {present.shape}")
        if not np.can_cast(array.dtype, present.dtype, casting="same_kind"):
            raise DataError(f"'{path}': '{name}' is {array.dtype}; the state is {present.dtype}")
    raw = {port.of: port.name for port in session.states() if port.role == "raw"}
    for name in assigned:
        session.state[name] = arrays[name]
        if name in raw and raw[name] not in arrays:
            session.state[raw[name]] = arrays[name]
    return assigned


def weights_of(source: Any) -> dict[str, Array]:
    """The weights and batch-norm statistics of a session or model by name."""
    model = source.export() if isinstance(source, Session) else _as_model(source).export()
    forward, _ = model._core.differentiate(options_of(mode="frozen"))
    ports = Session(Model(forward), threads=1).inputs("predict")
    return {port.name: port.default for port in ports if port.role in ("weight", "state") and port.default is not None}
