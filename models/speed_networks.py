"""Networks that learn CIFAR-10 fast, and their export: Keller Jordan's airbench94 (https://arxiv.org/abs/2404.00498), and
hlb-CIFAR10, which it grew out of (https://github.com/tysam-code/hlb-CIFAR10).

    python models/speed_networks.py CIFAR_FOLDER speed.onnx airbench94

The first layer whitens: its filters are the eigenvectors of the training pictures' patches of 2x2 pixels, each divided by
the root of its eigenvalue, so that what the network sees has no correlations. They are computed here, and not trained.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from export import export

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # --preprocess 'normalize(cifar10)'
PATCH = 3 * 2 * 2


class Group(nn.Module):
    """Two convolutions, of which the first halves the picture. The scales of the norms stay 1."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
        self.activation = nn.GELU()
        for conv in self.conv1, self.conv2:
            nn.init.dirac_(conv.weight[: conv.in_channels])  # as many outputs begin as copies of the inputs

    def forward(self, x):
        x = self.activation(self.norm1(self.pool(self.conv1(x))))
        return self.activation(self.norm2(self.conv2(x)))


class Airbench94(nn.Module):
    def __init__(self, filters, widths=(64, 256, 256), classes=10):
        super().__init__()
        self.whiten = nn.Conv2d(3, 2 * PATCH, 2)
        with torch.no_grad():
            self.whiten.weight.copy_(torch.cat([filters, -filters]))
            self.whiten.bias.zero_()
        self.activation = nn.GELU()
        sizes = (2 * PATCH, *widths)
        self.groups = nn.Sequential(*(Group(a, b) for a, b in zip(sizes, sizes[1:])))
        self.pool = nn.MaxPool2d(3)
        self.head = nn.Linear(widths[-1], classes, bias=False)
        self.scale = 1 / widths[-1]

    def forward(self, image):
        x = self.groups(self.activation(self.whiten(image)))
        return self.head(self.pool(x).flatten(1)) * self.scale


class HlbCifar10(nn.Module):
    def __init__(self, filters, widths=(64, 256, 512), classes=10):
        super().__init__()
        self.whiten = nn.Conv2d(3, PATCH, 2, bias=False)
        with torch.no_grad():
            self.whiten.weight.copy_(filters)
        self.project = nn.Conv2d(PATCH, widths[0] // 2, 1, bias=False)
        self.activation = nn.GELU()
        sizes = (widths[0] // 2, *widths)
        self.groups = nn.Sequential(*(Group(a, b) for a, b in zip(sizes, sizes[1:])))
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, image):
        x = self.groups(self.activation(self.project(self.whiten(image))))
        return self.head(x.amax((2, 3))) / 9


NETWORKS = {"airbench94": Airbench94, "hlb": HlbCifar10}


def cifar(path):
    """(pixels uint8[N,3,32,32], labels uint8[N]) of a file of CIFAR-10's binary version."""
    records = np.fromfile(path, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def normalized(pixels, dtype=torch.float32):
    """What the network sees of bytes, a tensor [N,3,32,32]."""
    mean, deviation = (torch.tensor(numbers, dtype=torch.float64).view(3, 1, 1) for numbers in (MEAN, DEVIATION))
    return ((pixels.double() / 255 - mean) / deviation).to(dtype)


def whitening(pixels, epsilon=5e-4):
    """The filters of the first layer, float[12,3,2,2], from at most 5000 pictures."""
    patches = normalized(torch.from_numpy(pixels[:5000])).unfold(2, 2, 1).unfold(3, 2, 1)  # [N,3,31,31,2,2]
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, PATCH).double()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = vectors.T / (values + epsilon).sqrt()[:, None]
    return filters.flip(0).reshape(PATCH, 3, 2, 2).float()


def network(folder, name="airbench94", **sizes):
    """The network `name`, with fresh weights, for the pictures of a folder with CIFAR-10's binary files."""
    pixels, _ = cifar(Path(folder) / "data_batch_1.bin")
    torch.manual_seed(0)
    return NETWORKS[name](whitening(pixels), **sizes)


def make(folder, path, name="airbench94", **sizes):
    module = network(folder, name, **sizes)
    export(module, {"image": torch.rand(4, 3, 32, 32)}, path)
    return module


if __name__ == "__main__":
    make(*sys.argv[1:])
