"""What a row of the zoo is made of: a PyTorch module, a batch, a loss in both languages, and who exports it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import networks
import torch
from torch import nn
from torch.nn import functional as F

TORCH = ("torchscript", "dynamo")


@dataclass
class Example:
    """A module and one batch. Where another framework writes the file, the module computes the same, and holds the same
    weights."""

    module: nn.Module
    inputs: dict  # name -> tensor, the batch on axis 0
    targets: dict  # name -> tensor, what the loss reads beside the outputs
    loss: str  # as `build --loss` has it
    criterion: Callable  # (output, ..., *targets) -> PyTorch's loss
    outputs: tuple = ("logits",)
    fixed: dict = field(default_factory=dict)  # further inputs of the file, which the options of `build` make constants


@dataclass
class Entry:
    name: str
    make: Callable[[], Example]
    # "torchscript", "dynamo", or a function (example, path) that writes the file: then its name is the exporter's.
    exporters: tuple = TORCH
    opset: int | None = None  # None: the exporter's own choice
    # Constants are folded, and batch norm into convolutions; otherwise the file keeps all of the module's parameters.
    fold: bool = False
    dynamic: bool | dict = True  # whether the batch is a symbolic dimension, or all such axes: axis -> name
    optimizer: str = "adamw"
    rate: float = 2.0**-10
    quick: bool = False  # whether the tests run it, with its first exporter
    build: tuple = ()  # further options of check, build and grad
    notes: str = ""
    # Exporters that fail, or write a file that is another function, by name: what they cannot do, and what to do instead.
    reasons: dict = field(default_factory=dict)

    def exporter_names(self):
        return [name_of(exporter) for exporter in self.exporters]


def name_of(exporter):
    return exporter if isinstance(exporter, str) else exporter.__name__.replace("_", "-")


@dataclass
class Family:
    title: str
    entries: list = field(default_factory=list)

    def add(self, name, make, **options):
        self.entries.append(Entry(name, make, **options))


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def randomized(module, seed=0):
    """No two weights are equal, as the exporters store equal tensors as one, and none is constant. Dropout is off."""
    networks.finish(module, {}, None, seed)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    generator = torch.Generator().manual_seed(seed + 1)
    seen = set()
    with torch.no_grad():
        for parameter in module.parameters():
            contents = parameter.reshape(-1).numpy().tobytes()
            if parameter.requires_grad and parameter.numel() > 1 and (contents in seen or parameter.min() == parameter.max()):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            seen.add(contents)


def classifier(module, inputs, labels, seed=0):
    """Classes come last."""
    randomized(module, seed)
    return Example(module, inputs, {"labels": labels}, "cross_entropy", cross_entropy)


def regressor(module, inputs, targets, seed=0, output="y"):
    randomized(module, seed)
    return Example(module, inputs, {"target": targets}, f"mse({output}, target)", F.mse_loss, (output,))


def segmenter(module, inputs, labels, seed=0):
    """Classes are channels."""
    randomized(module, seed)
    return Example(module, inputs, {"labels": labels}, "cross_entropy(logits, labels)", F.cross_entropy)


def draw(seed=0):
    """A generator, after the global one is seeded for the weights."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def ctc_example(module, shape, classes, frames, generator):
    """A module from x of this shape to frames of scores for 3 samples, and texts of up to 4 of the classes above 0."""
    targets = {"labels": torch.randint(1, classes, (3, 4), generator=generator), "frames": torch.tensor(frames),
               "lengths": torch.tensor([4, 3, 2])}  # fmt: skip

    def ctc(logits, labels, frames, lengths):
        scores = torch.nn.functional.log_softmax(logits, -1).transpose(0, 1)
        return torch.nn.functional.ctc_loss(scores, labels, frames, lengths)

    return Example(module, {"x": torch.randn(*shape, generator=generator)}, targets, "ctc(logits, labels, frames, lengths, time=1)", ctc)


def pictures(generator, batch=3, channels=3, size=16):
    return torch.randn(batch, channels, size, size, generator=generator)


def words(generator, batch=2, tokens=8, vocabulary=50):
    """0 and 1 are left out: they pad and begin."""
    return torch.randint(2, vocabulary, (batch, tokens), generator=generator)


def choices(generator, classes, *shape):
    return torch.randint(0, classes, shape, generator=generator)


class Outputs(nn.Module):
    """A model of transformers as a function of tensors: inputs by name, some of its outputs by name."""

    def __init__(self, model, inputs, outputs=("logits",), **fixed):
        super().__init__()
        self.model, self.names, self.outputs, self.fixed = model, tuple(inputs), tuple(outputs), fixed

    def forward(self, first, second=None, third=None):  # torch.export wants them one by one
        result = self.model(**dict(zip(self.names, (first, second, third))), **self.fixed)
        results = tuple(getattr(result, name) for name in self.outputs)
        return results[0] if len(results) == 1 else results
