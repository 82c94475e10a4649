"""The learning rate of a step, as `fit` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core
from ._option_types import FitOptions
from ._options import options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OPTIONS = ("lr", "schedule", "warmup", "final_lr", "step_every", "step_factor", "steps")


def learning_rate(step: int, **options: Unpack[FitOptions]) -> float:
    """The learning rate of a step, counted from 0, for loops of your own.

    Args:
        options: those of `fit` that say it: `lr`, `schedule`, `warmup`, `final_lr`, `step_every`, `step_factor`, and
            `steps`, of the whole training.

    Raises:
        UsageError: for an option with a wrong value, and for a schedule without an end, which needs `steps`.

    >>> import onnx_train
    >>> [round(onnx_train.learning_rate(step, lr=0.1, schedule="linear", steps=5), 3) for step in range(5)]
    [0.1, 0.08, 0.06, 0.04, 0.02]
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"learning_rate() has no argument '{name}'; it has {', '.join(_OPTIONS)}")
    return _core.learning_rate(options_of(**options), step)
