"""Losses as blocks. Targets are inputs: ``labels`` of classes, ``target`` of all else, unless the model has such a value.

>>> from onnx_train.onnxruntime.training import onnxblock
>>> import onnx
>>> from onnx_train.onnxruntime.training import artifacts
>>> loss = onnxblock.loss.CrossEntropyLoss(ignore_index=-100)
>>> artifacts.generate_artifacts(onnx.load("mlp.onnx"), ["fc1.weight"], loss=loss)
"""

from __future__ import annotations

from typing import Any

from ...._errors import UnsupportedError
from .blocks import Abs, Block, PassThrough, Pow, ReduceMean, ReduceSum, Sub

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]

_INT64 = 7  # onnx.TensorProto.INT64


class _Loss(Block):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise UnsupportedError(f"{type(self).__name__}: reduction is '{reduction}'; use 'mean', 'sum' or 'none'")
        self._reduction = reduction

    def _reduce(self, name: str) -> str:
        blocks = {"mean": ReduceMean(keepdims=False), "sum": ReduceSum(keepdims=False), "none": PassThrough()}
        reduced: str = blocks[self._reduction](name)
        return reduced


class MSELoss(_Loss):
    """(prediction - target)², reduced.

    Args:
        reduction: ``"mean"``, ``"sum"``, or ``"none"``: a loss for each element, which other blocks reduce.
    """

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Args are the names of the prediction and of the target."""
        target = self._input_like(loss_input_name, target_name)
        return self._reduce(Pow(2.0)(Sub()(loss_input_name, target)))


class L1Loss(_Loss):
    """|prediction - target|, reduced.

    Args:
        reduction: as of `MSELoss`.
    """

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Args are the names of the prediction and of the target."""
        target = self._input_like(loss_input_name, target_name)
        return self._reduce(Abs()(Sub()(loss_input_name, target)))


class CrossEntropyLoss(_Loss):
    """Softmax cross-entropy of scores [N, classes, ..] and class indices [N, ..], int64.

    Args:
        weight: of each class, an array.
        reduction: as of `MSELoss`; ``"none"`` gives a loss for each label.
        ignore_index: a label that does not count.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", ignore_index: int | None = None) -> None:
        super().__init__(reduction)
        self._weight, self._ignore_index = weight, ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Args are the names of the scores and of the labels."""
        labels = self._input_like(scores_input_name, labels_name, _INT64, without_axis=1)
        inputs = [scores_input_name, labels]
        if self._weight is not None:
            inputs.append(self._constant(self._weight, "loss/weight"))
        attributes = {} if self._ignore_index is None else {"ignore_index": self._ignore_index}
        return self._node("SoftmaxCrossEntropyLoss", inputs, reduction=self._reduction, **attributes)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of logits x and probabilities t: -w (p t log σ(x) + (1 - t) log(1 - σ(x))), reduced.

    Args:
        weight: w, an array that broadcasts to x.
        reduction: as of `MSELoss`.
        pos_weight: p, likewise.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._weight, self._pos_weight = weight, pos_weight

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Args are the names of the logits and of the target."""
        target = self._input_like(loss_input_name, target_name)
        # log(1 - sigmoid(x)) = -softplus(x) and log(sigmoid(x)) = -softplus(-x): neither overflows.
        positive = self._node("Mul", [target, self._node("Softplus", [self._node("Neg", [loss_input_name])])])
        if self._pos_weight is not None:
            positive = self._node("Mul", [positive, self._constant(self._pos_weight, "loss/pos_weight")])
        one = self._node("Sub", [self._constant(_one(), "loss/one"), target])
        result = self._node("Add", [positive, self._node("Mul", [one, self._node("Softplus", [loss_input_name])])])
        if self._weight is not None:
            result = self._node("Mul", [result, self._constant(self._weight, "loss/weight")])
        return self._reduce(result)


def _one() -> Any:
    import numpy as np

    return np.float32(1)
