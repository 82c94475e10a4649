"""Optimizers as objects; ``str`` gives the expression that the command takes.

>>> import onnx_train
>>> print(onnx_train.optimizers.AdamW(weight_decay=0.1))
adamw(weight_decay=0.1)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers have in common. Arguments that are None take the command's default.

    `lr` is the default of the model's input ``learning_rate``; `betas` is `beta1` and `beta2` at once, as PyTorch has it.

    >>> import onnx_train
    >>> isinstance(onnx_train.optimizers.Adam(), onnx_train.optimizers.Optimizer)
    True
    """

    _name: ClassVar[str] = ""  # the command's, where it is more than the class's in small letters

    def __str__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        arguments = ", ".join(f"{name}={_number(value)}" for name, value in given if value is not None)
        name = self._name or type(self).__name__.lower()
        return f"{name}({arguments})" if arguments else name


def _number(value: float | str | tuple[float, ...]) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


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
    >>> print(onnx_train.optimizers.Adam(betas=(0.9, 0.95)))
    adam(betas=(0.9, 0.95))
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    amsgrad: bool | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, 2019): weight decay apart from the gradient.

    >>> import onnx_train
    >>> training = onnx_train.build("mlp.onnx", optimizer=onnx_train.optimizers.AdamW(weight_decay=0.1))
    """


@dataclass(frozen=True)
class HFAdamW(Optimizer):
    """AdamW as Hugging Face's transformers had it, and ONNX Runtime's training has it.

    `eps` is added before the second moment is corrected, and weights decay after the update. Without `correct_bias`
    moments are taken as they are.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.HFAdamW(correct_bias=False))
    hf_adamw(correct_bias=0)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    correct_bias: bool | None = None
    betas: tuple[float, float] | None = None

    _name: ClassVar[str] = "hf_adamw"


@dataclass(frozen=True)
class SparseAdam(Optimizer):
    """Adam for tables of embeddings: rows without a gradient keep weight and moments, as PyTorch's SparseAdam has it.

    All other weights are updated by Adam.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.SparseAdam(lr=1e-3))
    sparse_adam(lr=0.001)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    betas: tuple[float, float] | None = None

    _name: ClassVar[str] = "sparse_adam"


@dataclass(frozen=True)
class AdamW8bit(Optimizer):
    """AdamW with moments of 8 bits (Dettmers et al., 2022), as bitsandbytes has it.

    Weights with fewer than `min_8bit_size` elements are updated by AdamW.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.AdamW8bit(weight_decay=0.1))
    adamw8bit(weight_decay=0.1)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    min_8bit_size: float | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop (Hinton, 2012) as in PyTorch: g / (sqrt(mean of g²) + eps), with momentum, centered if asked for.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.RMSprop(alpha=0.9, centered=True))
    rmsprop(alpha=0.9, centered=1)
    """

    lr: float | None = None
    alpha: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    centered: bool | None = None


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011) as in PyTorch.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Adagrad(lr_decay=0.01))
    adagrad(lr_decay=0.01)
    """

    lr: float | None = None
    lr_decay: float | None = None
    weight_decay: float | None = None
    initial_accumulator_value: float | None = None
    eps: float | None = None


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (Zeiler, 2012) as in PyTorch.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Adadelta(rho=0.95))
    adadelta(rho=0.95)
    """

    lr: float | None = None
    rho: float | None = None
    eps: float | None = None
    weight_decay: float | None = None


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adamax (Kingma and Ba, 2015) as in PyTorch: the largest decayed gradient in the place of the mean of squares.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Adamax(lr=2e-3))
    adamax(lr=0.002)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class NAdam(Optimizer):
    """NAdam (Dozat, 2016) as in PyTorch: Adam with Nesterov's momentum.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.NAdam(weight_decay=0.01, decoupled_weight_decay=True))
    nadam(weight_decay=0.01, decoupled_weight_decay=1)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    momentum_decay: float | None = None
    decoupled_weight_decay: bool | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class RAdam(Optimizer):
    """RAdam (Liu et al., 2020) as in PyTorch: Adam without its scale in the first steps.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.RAdam(lr=1e-3))
    radam(lr=0.001)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    decoupled_weight_decay: bool | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern, 2018) as in PyTorch: rows and columns of the mean of squares.

    `eps1` of 0 is the epsilon of the weight's type, as None is in PyTorch.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Adafactor(lr=0.01, d=1.0))
    adafactor(lr=0.01, d=1.0)
    """

    lr: float | None = None
    beta2_decay: float | None = None
    eps1: float | None = None
    eps2: float | None = None
    d: float | None = None
    weight_decay: float | None = None


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al., 2023): the sign of a momentum, decay apart from the gradient.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Lion(lr=1e-4, weight_decay=0.1))
    lion(lr=0.0001, weight_decay=0.1)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class Adan(Optimizer):
    """Adan (Xie et al., 2022): Adam with the momentum of the gradient's differences, Nesterov's.

    Decay divides the new weight by 1 + lr weight_decay; with `no_prox` it is AdamW's.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Adan(lr=1e-3, betas=(0.98, 0.92, 0.99)))
    adan(lr=0.001, betas=(0.98, 0.92, 0.99))
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    beta3: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    no_prox: bool | None = None
    betas: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class LAMB(Optimizer):
    """LAMB (You et al., 2020) as in timm, without its own clipping: Adam scaled by the norm of each weight.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.LAMB(weight_decay=0.02))
    lamb(weight_decay=0.02)
    """

    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    always_adapt: bool | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class LARS(Optimizer):
    """LARS (You et al., 2017) as in timm: SGD with momentum, scaled by the norms of each weight and its gradient.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.LARS(lr=4.8, weight_decay=1e-6))
    lars(lr=4.8, weight_decay=1e-06)
    """

    lr: float | None = None
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    trust_coeff: float | None = None
    eps: float | None = None
    always_adapt: bool | None = None


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan et al., 2024) as in PyTorch, for matrices and filters of layers; AdamW for all else.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.Muon(lr=0.02, adamw_lr=3e-4))
    muon(lr=0.02, adamw_lr=0.0003)
    """

    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    eps: float | None = None
    ns_steps: int | None = None
    adjust_lr_fn: str | None = None
    use_muon: bool | None = None
    adamw_lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    adamw_eps: float | None = None
    betas: tuple[float, float] | None = None


@dataclass(frozen=True)
class ScheduleFree(Optimizer):
    """Schedule-free AdamW (Defazio et al., 2024): the weights are an average, training goes on from ``raw/<weight>``.

    >>> import onnx_train
    >>> print(onnx_train.optimizers.ScheduleFree(lr=0.0025))
    schedule_free(lr=0.0025)
    """

    _name = "schedule_free"
    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    r: float | None = None
    weight_lr_power: float | None = None
    betas: tuple[float, float] | None = None
