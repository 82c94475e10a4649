"""States in memory of a device that the host cannot reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CPU, CUDA = 1, 2  # DLPack's types of devices


def device_name(device: tuple[int, int]) -> str:
    """As in "cuda:0"; "device 12:0" for other types."""
    kind, number = device
    return f"cuda:{number}" if kind == CUDA else f"device {kind}:{number}"


class DeviceArray:
    """A state where a session's device keeps it; `State` gives it on devices with memory of their own.

    Libraries that use the device read and write the same memory, by DLPack: ``torch.from_dlpack(session.state["w"])``;
    on CUDA by ``__cuda_array_interface__``, too. Such work must be complete before the session runs again:
    ``torch.cuda.synchronize()``. The session's own work is complete whenever a call returns. `numpy`, and so
    ``np.asarray``, copies the present value to the host. It keeps the session alive.

    >>> import numpy as np
    >>> import onnx_train
    >>> training = onnx_train.build("mlp.onnx", "cross_entropy", "sgd(lr=0.1)")
    >>> bias = onnx_train.Session(training).state["fc2.bias"]
    >>> np.asarray(bias).shape  # on every device
    (3,)
    """

    def __init__(self, core: _core.Session, name: str) -> None:
        self._core, self._name = core, name
        self._dtype, self._shape = core.describe(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes.

        >>> bias.shape
        (3,)
        """
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type.

        >>> bias.dtype
        dtype('float32')
        """
        import numpy as np

        return np.dtype(self._dtype)

    def numpy(self) -> Array:
        """A copy of the present value on the host.

        >>> np.array(bias).tolist() == np.asarray(bias).tolist()
        True
        """
        return self._core.read_state(self._name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"'{self._name}' is on {device_name(self.__dlpack_device__())}: numpy gets a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._core.device()

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        # No stream has to wait: all work of the session was complete when its last call returned.
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            where = device_name(self.__dlpack_device__())
            raise BufferError(f"'{self._name}' exports its own memory on {where}, no copy; copy it with numpy()")
        return self._core.export_state(self._name)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.__dlpack_device__()[0] != CUDA:
            raise AttributeError(f"'{self._name}' is not on CUDA")
        address = self._core.state_address(self._name)
        return {"shape": self._shape, "typestr": self.dtype.str, "data": (address, False), "version": 3}

    def __repr__(self) -> str:
        where = device_name(self.__dlpack_device__())
        return f"<onnx_train.DeviceArray '{self._name}': {self._dtype} {self._shape} on {where}>"
