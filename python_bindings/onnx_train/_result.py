"""The outputs of a run, and the inputs and outputs of an entry point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Port(NamedTuple):
    """An input or output of an entry point.

    Attributes:
        name: its name.
        role: what it is for: ``"learning_rate"``, ``"loss"``, ...; empty for the model's own data.
        of: the value that it belongs to; mostly empty.
        dtype: numpy's name of the element type.
        shape: -1 for sizes that the model leaves open; None where the rank is not known.
        default: the value of an input that may be left out; else None.

    >>> import onnx_train
    >>> x = onnx_train.Session("mlp.onnx").inputs("predict")[0]
    >>> x.name, x.dtype, x.shape
    ('x', 'float32', (-1, 4))
    """

    name: str
    role: str
    of: str
    dtype: str
    shape: tuple[int, ...] | None
    default: Array | None


class Result(dict[str, Any]):
    """The outputs of a run, also as attributes: ``result.loss``.

    What training adds has its role as its key, ``"loss"``, ``"accuracy"``, ``"grad_norm"``, whatever its name is in the
    file: where the model itself has a value called ``loss``, the file calls the loss ``loss_1``. All other outputs have
    their names as keys. Both ways work with either: ``result["loss_1"]`` is the same. Where one entry point has an
    output of that name besides the one of that role, attributes give the role, and ``[]`` gives the name.

    Scalars are Python numbers; all else are numpy arrays that belong to the caller.

    Attributes:
        files: of a list of paths, these; else None.

    >>> import numpy as np
    >>> import onnx_train
    >>> result = onnx_train.Session("mlp.onnx").predict(np.eye(4, dtype=np.float32))
    >>> result.logits.shape, result["logits"] is result.logits
    ((4, 3), True)
    """

    files: list[str] | None = None

    def __init__(self, outputs: Mapping[str, Any], names: _Outputs | None = None) -> None:
        self._names = names or _Outputs([])
        super().__init__({self._names.keys.get(name, name): value for name, value in outputs.items()})

    def __missing__(self, name: str) -> Any:
        key = self._names.keys.get(name, name)
        if key == name or key not in self:
            raise KeyError(name)
        return self[key]

    def __getattr__(self, name: str) -> Any:
        if "_names" not in self.__dict__:  # while a copy is made
            raise AttributeError(name)
        try:
            return self[self._names.roles.get(name, name)]
        except KeyError:
            raise AttributeError(f"the run has no output '{name}'; it has {', '.join(self)}") from None

    def __reduce__(self) -> Any:
        return _copy_of_result, (dict(self), self._names)


def _copy_of_result(outputs: dict[str, Any], names: _Outputs) -> Result:
    result = Result({}, names)
    result.update(outputs)
    return result


class _Outputs:
    """How a `Result` calls the outputs of an entry point.

    Attributes:
        keys: the key of each output whose name is another.
        roles: the key of the output of each role, where its name is another.
    """

    def __init__(self, ports: Sequence[Port]) -> None:
        # An output that belongs to a value, as those of the passes of `Differentiated`, is one of many of its role.
        names = {port.role: port.name for port in ports if port.role and not port.of and port.role != "saved"}
        others = {port.name for port in ports} - set(names.values())
        self.keys = {name: role for role, name in names.items() if role != name and role not in others}
        self.roles = {role: self.keys.get(name, name) for role, name in names.items() if role != name}
