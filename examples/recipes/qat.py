"""What docs/recipes/qat.md starts from: float.onnx, a network that knows the ten digits, and digits.npz, pictures of
them."""

import classifier
import numpy as np
import same
import torch
from torch.nn import functional as F

import onnx_train


def straight_through(x, scale, zero_point, low, high):
    """x rounded to integers of [low, high] and back. Its gradient is that of x where x is not clipped."""
    q = torch.round(x / scale) + zero_point
    y = (q.clamp(low, high) - zero_point) * scale
    passed = torch.where((q >= low) & (q <= high), x, x.detach())
    return passed + (y - passed).detach()


class Rounded(classifier.Network):
    """The network with what its layers read rounded to 8 bits: weights by output channel, activations by a moving
    average of their range."""

    def __init__(self, classes):
        super().__init__(classes)
        self.ranges, self.seen = {}, {}  # averages, and the weight of what is in each

    @staticmethod
    def weight(w):
        largest = w.detach().abs().amax(tuple(range(1, w.dim())), keepdim=True)
        return straight_through(w, torch.where(largest > 0, largest / 127, 1.0), 0, -127, 127)

    def activation(self, name, x):
        seen = torch.stack([x.detach().min(), x.detach().max()])
        rate, weight = float(np.float32(0.01)), self.seen.get(name, 0.0)
        self.seen[name] = weight + rate * (1 - weight)
        old = self.ranges.get(name, seen)
        self.ranges[name] = old + rate / self.seen[name] * (seen - old)
        least, most = self.ranges[name][0].clamp(max=0), self.ranges[name][1].clamp(min=0)
        scale = (most - least) / 255
        return straight_through(x, scale, -torch.round(least / scale), 0, 255)

    def forward(self, image):
        first, norm_1, relu, pool, second, norm_2, _ = self.features
        x = self.activation("image", image)
        x = self.activation("first", relu(norm_1(F.conv2d(x, self.weight(first.weight), padding=1))))
        x = self.activation("second", relu(norm_2(F.conv2d(pool(x), self.weight(second.weight), padding=1))))
        return F.linear(self.activation("mean", x.mean((2, 3))), self.weight(self.head.weight), self.head.bias)


def make():
    torch.manual_seed(0)
    same.export(classifier.Network(classes=10), {"image": torch.rand(4, 1, 8, 8)}, "float.onnx")
    arrays = classifier.digits(range(10))
    model = onnx_train.build("float.onnx", optimizer="adamw")
    known = onnx_train.fit(model, arrays, epochs=15, batch_size=32, lr=0.01, schedule="cosine", progress=False)
    known.session.export("float.onnx")
    np.savez("digits.npz", **{name: array[:640] for name, array in arrays.items()})
