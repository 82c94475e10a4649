"""Losses as objects; they add up, and ``str`` gives the expression that the command takes.

A prediction is the name of an output of the model, by default the first one. A target is the name of an input that the
training model gets, by default ``labels``; it may also be a value of the model.

>>> from onnx_train import losses
>>> print(0.7 * losses.cross_entropy("logits", label_smoothing=0.1) + 0.3 * losses.mse("aux", "target"))
0.7*cross_entropy('logits', label_smoothing=0.1) + 0.3*mse('aux', 'target')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """A weighted sum of losses.

    Raises:
        TypeError: for a weight before a sum: weights go before single losses.

    >>> from onnx_train import losses
    >>> str(losses.mse("y") + 0.1 * losses.l1("y"))
    "mse('y') + 0.1*l1('y')"
    """

    expression: str

    def __str__(self) -> str:
        return self.expression

    def __add__(self, other: Loss) -> Loss:
        return Loss(f"{self} + {other}")

    def __rmul__(self, weight: float) -> Loss:
        if " + " in self.expression or "*" in self.expression.split("(")[0]:
            raise TypeError("a weight goes before a single loss, not before a sum")
        return Loss(f"{weight!r}*{self}")


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _call(name: str, prediction: str | None, target: str | None, **arguments: object) -> Loss:
    if prediction is None and (target is not None or any(a is not None for a in arguments.values())):
        raise TypeError(f"{name}: a target or an option needs the name of the prediction before it")
    parts = [_quoted(value) for value in (prediction, target) if value is not None]
    for key, value in arguments.items():
        if value is not None:
            parts.append(f"{key}={_value(key, value)}")
    return Loss(f"{name}({', '.join(parts)})" if parts else name)


def _value(key: str, value: object) -> str:
    """An option as the expression has it: a number, a list of numbers, or the name of a tensor."""
    if isinstance(value, str):
        return value if key == "reduction" else _quoted(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(repr(float(number)) for number in value)}]"
    return str(int(value) if isinstance(value, bool) else value)


def named(loss: str, *names: str, **options: float | str | Sequence[float]) -> Loss:
    """Any loss of docs/losses.md by its name, with the names of its predictions and targets.

    Args:
        loss: its name.
        names: predictions first; targets may be left out.
        options: numbers, ``True`` or ``False``, names of values, lists of numbers. Every loss has ``reduction`` and
            ``sample_weight``.

    >>> from onnx_train import losses
    >>> print(losses.named("triplet_margin", "anchor", "near", "far", margin=0.5, swap=True))
    triplet_margin('anchor', 'near', 'far', margin=0.5, swap=1)
    >>> print(losses.named("focal", "logits", weight=[1, 2, 0.5], sample_weight="w"))
    focal('logits', weight=[1.0, 2.0, 0.5], sample_weight='w')
    """
    if not names:
        raise TypeError(f"{loss}: the name of the prediction comes first")
    parts = [_quoted(name) for name in names] + [f"{key}={_value(key, value)}" for key, value in options.items()]
    return Loss(f"{loss}({', '.join(parts)})")


def output(name: str) -> Loss:
    """An output of the model that is the loss: a float scalar, or of shape [1].

    >>> from onnx_train import losses
    >>> print(losses.cross_entropy("logits") + 0.01 * losses.output("penalty"))
    cross_entropy('logits') + 0.01*'penalty'
    """
    return Loss(_quoted(name))


def cross_entropy(
    prediction: str | None = None,
    target: str | None = None,
    *,
    axis: int | None = None,
    ignore_index: int | None = None,
    label_smoothing: float | None = None,
    weight: str | Sequence[float] | None = None,
    probabilities: bool | None = None,
    reduction: str | None = None,
) -> Loss:
    """Softmax cross-entropy of logits [.., classes, ..] and int64 class indices of the shape without the class axis.

    As `torch.nn.functional.cross_entropy`.

    Args:
        axis: of the classes; 1 by default, and 2 for logits of rank 3, which are [batch, sequence, classes].
        ignore_index: a label whose samples do not count.
        label_smoothing: between 0 and 1; that much of each target is spread over all classes.
        weight: of each class: a list of numbers, or the name of a value, float[classes].
        probabilities: targets are probabilities of the shape of the logits.
        reduction: ``"mean"`` or ``"sum"``.

    >>> from onnx_train import losses
    >>> print(losses.cross_entropy("logits", label_smoothing=0.1))
    cross_entropy('logits', label_smoothing=0.1)
    """
    return _call(
        "cross_entropy",
        prediction,
        target,
        axis=axis,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        weight=weight,
        probabilities=probabilities,
        reduction=reduction,
    )


def mse(prediction: str | None = None, target: str | None = None, *, reduction: str | None = None) -> Loss:
    """Mean squared error of floats of equal shapes; `reduction` is ``"mean"`` or ``"sum"``.

    >>> from onnx_train import losses
    >>> print(losses.mse("y", "target", reduction="sum"))
    mse('y', 'target', reduction=sum)
    """
    return _call("mse", prediction, target, reduction=reduction)


def l1(prediction: str | None = None, target: str | None = None, *, reduction: str | None = None) -> Loss:
    """Mean absolute error of floats of equal shapes; `reduction` is ``"mean"`` or ``"sum"``.

    >>> from onnx_train import losses
    >>> print(losses.l1("y", "target"))
    l1('y', 'target')
    """
    return _call("l1", prediction, target, reduction=reduction)


def huber(
    prediction: str | None = None,
    target: str | None = None,
    *,
    delta: float | None = None,
    reduction: str | None = None,
) -> Loss:
    """d²/2 for differences |d| < `delta` (1 by default), else delta (|d| - delta/2), of floats of equal shapes.

    `reduction` is ``"mean"`` or ``"sum"``.

    >>> from onnx_train import losses
    >>> print(losses.huber("y", "target", delta=0.5))
    huber('y', 'target', delta=0.5)
    """
    return _call("huber", prediction, target, delta=delta, reduction=reduction)


def bce_with_logits(
    prediction: str | None = None,
    target: str | None = None,
    *,
    weight: str | None = None,
    pos_weight: str | None = None,
    reduction: str | None = None,
) -> Loss:
    """Binary cross-entropy of logits and probabilities of equal shapes.

    Args:
        weight: the name of a value that weights the elements; its shape broadcasts to that of the logits.
        pos_weight: the name of a value that weights the positive part, likewise.
        reduction: ``"mean"`` or ``"sum"``.

    >>> from onnx_train import losses
    >>> print(losses.bce_with_logits("logits", "target", pos_weight="p"))
    bce_with_logits('logits', 'target', pos_weight='p')
    """
    return _call(
        "bce_with_logits",
        prediction,
        target,
        weight=weight,
        pos_weight=pos_weight,
        reduction=reduction,
    )


def nll(prediction: str | None = None, target: str | None = None, *, reduction: str | None = None) -> Loss:
    """Negative log-likelihood of log-probabilities [.., classes, ..] and int64 class indices.

    The indices have the shape without the class axis; `reduction` is ``"mean"`` or ``"sum"``.

    >>> from onnx_train import losses
    >>> print(losses.nll("log_probabilities", "labels"))
    nll('log_probabilities', 'labels')
    """
    return _call("nll", prediction, target, reduction=reduction)
