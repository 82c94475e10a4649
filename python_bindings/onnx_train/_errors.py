"""The exceptions of the package: one base class, and the line of text that the command prints."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Final


class Error(RuntimeError):
    """What went wrong, in one line: the node, tensor or file, what was found, and what to do.

    Attributes:
        kind: ``"usage"``, ``"file"``, ``"unsupported"``, ``"data"``, ``"memory"``, ``"device"`` or ``"internal"``.
        code: What ``onnx-train explain CODE`` explains, such as ``"OT1001"``; ``""`` for an error that has no page. It
            stays the same from version to version.

    >>> import onnx_train
    >>> try:
    ...     onnx_train.load("missing.onnx")
    ... except onnx_train.Error as error:
    ...     print(error.kind, error.code)
    file OT1001
    """

    kind: str = "internal"

    def __init__(self, message: object = "", code: str = "") -> None:
        super().__init__(" ".join(str(message).splitlines()))  # other packages' errors may have several
        self.code = code


class UsageError(Error, ValueError):
    """An argument that is wrong for any model; also a session that two threads use at the same time.

    >>> import onnx_train
    >>> try:
    ...     onnx_train.build("mlp.onnx", clip=-1.0)
    ... except onnx_train.UsageError as error:
    ...     print(error)
    clip: -1.0 is out of range; take a number above 0
    """

    kind = "usage"


class DataError(Error, ValueError):
    """Inputs of a run: a name, type, shape or number that the model does not accept.

    >>> import onnx_train
    >>> try:
    ...     onnx_train.Session("mlp.onnx").run("predict", {"y": 0.0})
    ... except onnx_train.DataError as error:
    ...     print(error)
    entry point 'predict' has no input 'y'; it has x
    """

    kind = "data"


class FileError(Error):
    """A file that cannot be read or written, or that does not hold what it should.

    >>> import onnx_train
    >>> try:
    ...     onnx_train.load("missing.onnx")
    ... except onnx_train.FileError as error:
    ...     print(error)
    missing.onnx: No such file or directory
    """

    kind = "file"


class UnsupportedError(Error):
    """A model, or something asked of it, that is not supported.

    >>> import onnx_train
    >>> try:
    ...     onnx_train.build("mlp.onnx", freeze="fc9.*")
    ... except onnx_train.UnsupportedError as error:
    ...     print(error.code)
    OT6005
    """

    kind = "unsupported"


class OutOfMemoryError(Error):
    """Not enough memory for the weights, the gradients or the activations.

    >>> import numpy as np
    >>> import onnx_train
    >>> session = onnx_train.Session(onnx_train.build("mlp.onnx"), memory=64)  # bytes
    >>> try:
    ...     session.step(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0]))
    ... except onnx_train.OutOfMemoryError as error:
    ...     print(error.code)
    OT8001
    """

    kind = "memory"


class DeviceError(Error):
    """A device that is not there, or that failed.

    >>> import onnx_train
    >>> try:
    ...     onnx_train.Session("mlp.onnx", "abacus")
    ... except onnx_train.DeviceError as error:
    ...     print(error.code)
    OT8003
    """

    kind = "device"


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


def spelled(text: str) -> str:
    """A message of the library with options as the package names them.

    ``--batch-size`` is ``batch_size``, ``--scale 1/255`` is ``scale=1/255``, ``--loss EXPR`` is ``loss='EXPR'``,
    ``--map NAME=labels`` is ``map={'NAME': 'labels'}``, ``--train '*' --train fc1`` is ``train=['*', 'fc1']``. Commands to
    type stay as they are.
    """
    if "--" not in text or "onnx-train " in text:
        return text
    import re

    from ._option_types import NAMES

    names = {**NAMES, "data": "data", "eval-data": "eval_data"}

    def of_list(found: re.Match[str]) -> str:
        name = names.get(found[1])
        values = [value if value[0] in "'\"" else f"'{value}'" for value in found.groups()[1:]]
        return f"{name}=[{', '.join(values)}]" if name else found[0]

    def argument(found: re.Match[str]) -> str:
        name = names.get(found[1])
        if name is None:
            return found[0]
        if found[1].startswith("no-"):
            return f"{name}=False"
        if found[2]:
            return f"{name}={found[2] if found[2][0] in _QUOTES else _literal(found[2])}"
        if not found[3]:
            return name
        pairs = found[3].rstrip(".,")
        return f"{name}={_mapping(pairs)}{found[3][len(pairs) :]}"

    word = r"('[^']*'|[^\s,;:)']+)"
    text = re.sub(rf"--([a-z-]+) {word} --\1 {word}", of_list, text)
    option = r"--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)"
    value = r"(\d[^\s,;:)]*|'[^']*'|\"[^\"]*\"|[A-Z][A-Z_]*\b(?![=(]))"  # a number, a quoted text, or NAME
    pairs = r"([A-Za-z_][\w.*/]*=[^\s;:()]+)"  # NAME=labels, rank=8,alpha=16
    return re.sub(f"{option}(?: (?:{value}|{pairs}))?", argument, text)


_QUOTES = ("'", '"')


def _literal(text: str) -> str:
    """Numbers, and what stands for one (N), as they are; other words as texts."""
    is_number = text[:1].isdigit() or text == "ID" or (len(text) == 1 and text.isupper())
    return text if is_number else f"'{text}'"


def _mapping(pairs: str) -> str:
    """``rank=8,targets=q,v`` as ``{'rank': 8, 'targets': ['q', 'v']}``."""
    values: dict[str, list[str]] = {}
    name = ""
    for part in pairs.split(","):
        before, equals, after = part.partition("=")
        if equals:
            name = before
        values.setdefault(name, []).append(_literal(after if equals else part))
    lists = (f"'{name}': {of[0] if len(of) == 1 else '[' + ', '.join(of) + ']'}" for name, of in values.items())
    return "{" + ", ".join(lists) + "}"


def error_of(status: int, message: str, code: str) -> Error:
    """The exception for a status of the library."""
    return _CLASSES[status](spelled(message), code)


def warn(text: str) -> None:
    """A warning of the line of the program outside of the package that called it."""
    text = spelled(text)
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(os.path.dirname(__file__)):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def missing_extension(package: str, error: ImportError) -> str:
    """Why the compiled module of the package, whose ``__init__`` is in the file `package`, cannot be imported."""
    folder = os.path.dirname(package)
    found = sorted(name for name in os.listdir(folder) if name.startswith("_core.") and name.endswith((".so", ".pyd")))
    way_out = (
        "install the package with `pip install .` in the repository, or build it with `ninja -C build onnx_train_python` "
        "and import it from build/python (PYTHONPATH=build/python)"
    )
    if not found:
        return f"onnx_train: {folder} has no compiled module _core, so it is no installed package: {way_out}"
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    return f"onnx_train: {version} cannot load the compiled module, {os.path.join(folder, found[0])}: {error}; {way_out}"
