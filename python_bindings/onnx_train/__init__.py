"""Training of ONNX models: a forward model in, a training model out, and a runtime that executes it.

>>> import onnx_train
>>> training = onnx_train.build("mlp.onnx", "cross_entropy", "adamw(lr=1e-2)")
>>> session = onnx_train.Session(training)
>>> session.entries
['predict', 'step', 'evaluate']

Importing the package imports neither numpy nor PyTorch: modules such as `onnx_train.torch` are imported when they are
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    from . import _core
except ImportError as error:
    from ._errors import missing_extension

    raise ImportError(missing_extension(__file__, error)) from None

from ._device_array import DeviceArray
from ._errors import (
    DataError,
    DeviceError,
    Error,
    FileError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
)
from ._model import CheckReport, Finding, Model, build, check, import_ort, load
from ._plan import Plan, PlanNode
from ._result import Port, Result
from ._session import Session
from ._state import State

if TYPE_CHECKING:
    from . import detection, losses, optimizers, torch
    from ._chat import ChatFile, tokenize_chats
    from ._data import load_data, split_rows
    from ._derivatives import hvp, jacobian, jvp, per_sample_grad, vjp
    from ._fit import Callback, Evaluation, History, Step, fit
    from ._generate import generate
    from ._grad import grad, value_and_grad
    from ._labelled import LabelledFile, tokenize_labelled
    from ._schedule import learning_rate
    from ._tables import convert_table
    from ._tokenize import TokenFile, tokenize
    from ._verify import Verification, verify
    from ._weights import load_weights, save_weights

__version__: str = _core.version()

__all__ = [
    "Callback",
    "ChatFile",
    "CheckReport",
    "DataError",
    "DeviceArray",
    "DeviceError",
    "Error",
    "Evaluation",
    "FileError",
    "Finding",
    "History",
    "LabelledFile",
    "Model",
    "OutOfMemoryError",
    "Plan",
    "PlanNode",
    "Port",
    "Result",
    "Session",
    "State",
    "Step",
    "TokenFile",
    "UnsupportedError",
    "UsageError",
    "Verification",
    "build",
    "check",
    "convert_table",
    "detection",
    "fit",
    "generate",
    "grad",
    "hvp",
    "import_ort",
    "jacobian",
    "jvp",
    "learning_rate",
    "load",
    "load_data",
    "load_weights",
    "losses",
    "optimizers",
    "per_sample_grad",
    "save_weights",
    "split_rows",
    "tokenize",
    "tokenize_chats",
    "tokenize_labelled",
    "torch",
    "value_and_grad",
    "verify",
    "vjp",
]

_LAZY = {name: "_fit" for name in ("Callback", "Evaluation", "History", "Step", "fit")}
_LAZY |= {"load_data": "_data", "split_rows": "_data", "convert_table": "_tables", "TokenFile": "_tokenize", "tokenize": "_tokenize"}
_LAZY |= {"ChatFile": "_chat", "tokenize_chats": "_chat"}
_LAZY |= {"LabelledFile": "_labelled", "tokenize_labelled": "_labelled"}
_LAZY |= {"generate": "_generate"}
_LAZY |= {"grad": "_grad", "value_and_grad": "_grad"}
_LAZY |= {name: "_derivatives" for name in ("hvp", "jacobian", "jvp", "per_sample_grad", "vjp")}
_LAZY |= {name: "_verify" for name in ("Verification", "verify")}
_LAZY |= {"learning_rate": "_schedule"}
_LAZY |= {"load_weights": "_weights", "save_weights": "_weights"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    if name in ("detection", "jax", "losses", "optimizers", "ort", "ray", "torch"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
