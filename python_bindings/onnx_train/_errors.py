"""The exceptions of the package: one base class, and the line of text that the command prints."""

from __future__ import annotations

from typing import Final


class Error(RuntimeError):
    """What went wrong, in one line: the node, tensor or file, what was found, and what to do.

    Attributes:
        code: ``"usage"``, ``"file"``, ``"unsupported"``, ``"data"``, ``"memory"``, ``"device"`` or ``"internal"``.

    >>> import onnx_train
    >>> try:
    ...     onnx_train.load("missing.onnx")
    ... except onnx_train.Error as error:
    ...     print(error.code)
    file
    """

    code: str = "internal"


class UsageError(Error, ValueError):
    """An argument that is wrong for any model; also a session that two threads use at the same time."""

    code = "usage"


class DataError(Error, ValueError):
    """Inputs of a run: a name, type, shape or number that the model does not accept."""

    code = "data"


class FileError(Error):
    """A file that cannot be read or written, or that does not hold what it should."""

    code = "file"


class UnsupportedError(Error):
    """A model, or something asked of it, that is not supported."""

    code = "unsupported"


class OutOfMemoryError(Error):
    """Not enough memory."""

    code = "memory"


class DeviceError(Error):
    """A device that is not there, or that failed."""

    code = "device"


# By the library's status; the last one is a bug of the library.
_CLASSES: Final = (
    Error,
    UsageError,
    FileError,
    UnsupportedError,
    DataError,
    OutOfMemoryError,
    DeviceError,
    Error,
)


def error_of(status: int, message: str) -> Error:
    """The exception for a status of the library."""
    return _CLASSES[status](message)
