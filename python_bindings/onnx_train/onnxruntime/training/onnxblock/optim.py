"""Optimizers with options, for ``generate_artifacts(optimizer=...)``.

>>> from onnx_train.onnxruntime.training import onnxblock
>>> str(onnxblock.optim.AdamW(weight_decay=0.01).expression)
'hf_adamw(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-06, weight_decay=0.01, correct_bias=1)'
"""

from __future__ import annotations

from ....optimizers import SGD as _SGD
from ....optimizers import HFAdamW as _AdamW
from ....optimizers import Optimizer

__all__ = ["AdamW", "ClipGradNorm", "SGD"]


class ClipGradNorm:
    """Scales all gradients of a step so that their norm is at most `max_norm`; for ``AdamW(clip_grad=...)``."""

    def __init__(self, max_norm: float) -> None:
        self.max_norm = float(max_norm)


class AdamW:
    """AdamW as `onnx_train.optimizers.HFAdamW` defines it. The learning rate is 0.001 until `Optimizer.set_learning_rate`."""

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        self.expression: Optimizer = _AdamW(1e-3, betas[0], betas[1], eps, weight_decay, bias_correction)
        self.clip_grad = clip_grad


class SGD:
    """Stochastic gradient descent. The learning rate is 0.001 until `Optimizer.set_learning_rate`."""

    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        self.expression: Optimizer = _SGD(1e-3)
        self.clip_grad = clip_grad
