"""The same training in PyTorch: the weights that it starts from, its batches in their order, and how far apart two
trainings are. The pages in docs/recipes use it; a program of one's own needs it only to compare."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[2] / "models"))
from export import export  # noqa: E402, F401  (for the programs beside this file)

FLOAT = torch.float32  # of modules and batches; the tests compare in float64


def splitmix64(state):
    """Vigna's generator: numbers of 64 bits without end."""
    mask = 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        yield z ^ (z >> 31)


def order(samples, seed=0, epoch=0):
    """The order in which `fit --seed` visits samples in an epoch, counted from 0: Fisher and Yates' shuffle."""
    random = splitmix64((next(splitmix64(seed)) + epoch * 0xD1342543DE82EF95) % 2**64)
    rows = list(range(samples))
    for count in range(samples, 1, -1):
        number = next(random)
        while number < 2**64 % count:  # so that each of `count` is as likely
            number = next(random)
        rows[count - 1], rows[number % count] = rows[number % count], rows[count - 1]
    return np.array(rows)


def split(samples, share, seed=0):
    """(rows for training, rows for evaluation) of `--val-split SHARE`, each in ascending order."""
    rows = order(samples, seed, epoch=-1)
    count = int(samples * share + 0.5)
    return np.sort(rows[count:]), np.sort(rows[:count])


def tensor(array):
    """Floats as FLOAT, all else as it is."""
    made = torch.from_numpy(np.ascontiguousarray(array))
    return made.to(FLOAT) if made.is_floating_point() else made


def batches(arrays, batch_size, epochs, seed=0, drop_last=False):
    """The batches of `fit`, each a list of tensors: one of each of `arrays`, whose first axis is the samples."""
    count = len(arrays[0])
    end = count // batch_size * batch_size if drop_last else count
    for epoch in range(epochs):
        rows = order(count, seed, epoch)[:end]
        for start in range(0, end, batch_size):
            yield [tensor(array[rows[start : start + batch_size]]) for array in arrays]


def weights(path):
    """Name -> array of all that a model's file holds."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def start(module, path):
    """`module` in training mode with the weights of the training model at `path`, found by their names. ONNX stores the
    epsilons of norms and the momentum of running statistics as float32."""
    for part in module.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, float(np.float32(getattr(part, name))))
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.momentum = 1 - float(np.float32(1 - part.momentum))
    stored = weights(path)
    lost = [name for name, value in module.state_dict().items() if value.is_floating_point() and name not in stored]
    assert not lost, f"{path} has no {lost}: the exporter has folded them into others"
    floats = {name: torch.from_numpy(stored[name].copy()) for name, value in module.state_dict().items()
              if value.is_floating_point()}  # fmt: skip
    missing = module.to(FLOAT).train().load_state_dict(floats, strict=False).missing_keys
    assert all("num_batches_tracked" in name for name in missing), missing
    return module


def step(optimizer, loss):
    """One update, and the loss before it."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def decayed(module, weight_decay):
    """Groups of an optimizer of PyTorch: matrices and filters decay, biases and scales of norms do not."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return [{"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}]  # fmt: skip


def losses_of(run):
    """The loss of each step of a run."""
    return np.array([json.loads(line)["loss"] for line in (Path(run) / "metrics.jsonl").open()])


def distance(losses, module, run):
    """How far apart PyTorch's training and `run` are: the largest relative difference of a loss, and the norm of the
    difference of all weights in relation to theirs."""
    ours, theirs = losses_of(run), np.array(losses)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    stored = weights(Path(run) / "last.onnx")
    state = {name: value.numpy() for name, value in module.state_dict().items() if value.is_floating_point()}
    all_of = [np.concatenate([values[name].ravel() for name in state]) for values in (stored, state)]
    apart = np.linalg.norm(all_of[0] - all_of[1]) / np.linalg.norm(all_of[1])
    return float(np.max(np.abs(ours / theirs - 1))), float(apart)


def compare(losses, module, run):
    """The same as a sentence."""
    return "losses are {:.0e} apart, weights {:.0e}".format(*distance(losses, module, run))
