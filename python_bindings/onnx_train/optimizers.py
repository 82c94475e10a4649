"""Optimizers as objects; ``str`` gives the expression that the command takes.

>>> import onnx_train
>>> print(onnx_train.optimizers.AdamW(weight_decay=0.1))
adamw(weight_decay=0.1)
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers have in common. Arguments that are None take the command's default.

    `lr` is the default of the model's input ``learning_rate``.

    >>> import onnx_train
    >>> isinstance(onnx_train.optimizers.Adam(), onnx_train.optimizers.Optimizer)
    True
    """

    def __str__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        arguments = ", ".join(f"{name}={_number(value)}" for name, value in given if value is not None)
        name = type(self).__name__.lower()
        return f"{name}({arguments})" if arguments else name


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent as in PyTorch: v = momentum v + (1 - dampening) g;  w -= lr v.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.SGD(lr=0.1, momentum=0.9, nesterov=True))
    sgd(lr=0.1, momentum=0.9, nesterov=1)
    """

    lr: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    dampening: float | None = None


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015) with the bias correction of PyTorch; weight decay is part of the gradient.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Adam(lr=1e-3, beta2=0.99))
    adam(lr=0.001, beta2=0.99)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, 2019): weight decay apart from the gradient.

    >>> import onnx_train
    >>> training = onnx_train.build("mlp.onnx", optimizer=onnx_train.optimizers.AdamW(weight_decay=0.1))
    """
