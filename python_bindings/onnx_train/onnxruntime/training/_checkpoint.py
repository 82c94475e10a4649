"""The file of a checkpoint: parameters, optimizer state and properties as safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ... import _safetensors
from ..._errors import FileError

_KEY = "onnx_train.checkpoint"


def write_checkpoint(
    path: str | os.PathLike[str],
    trained: Mapping[str, Any],
    frozen: Mapping[str, Any],
    state: Mapping[str, Any],
    properties: Mapping[str, int | float | str],
    outputs: list[str],
) -> None:
    """Writes the parameters and `state`, all other states of a session by name; the write is atomic."""
    contents = {"trained": list(trained), "frozen": list(frozen), "properties": dict(properties), "outputs": outputs}
    _safetensors.write(path, {**state, **frozen, **trained}, {_KEY: json.dumps(contents)})


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors by name, and "trained", "frozen", "properties" and "outputs" as they were written.

    Raises:
        FileError: for a file that is no checkpoint.
    """
    tensors, metadata = _safetensors.read(path)
    if _KEY not in metadata:
        raise FileError(f"'{path}' is no checkpoint of onnx_train.onnxruntime.training; generate_artifacts writes one")
    contents: dict[str, Any] = json.loads(metadata[_KEY])
    missing = [name for name in (*contents["trained"], *contents["frozen"]) if name not in tensors]
    if missing:
        raise FileError(f"'{path}' has no tensor for the parameter '{missing[0]}'")
    return tensors, contents
