"""What docs/recipes/distillation.md starts from: teacher.onnx, a network that knows the digits, student.onnx, a small
one that knows nothing, and digits.npz."""

import classifier
import numpy as np
import same
import torch
from torch import nn

import onnx_train


class Student(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, image):
        return self.layers(image)


def make():
    torch.manual_seed(0)
    image = {"image": torch.rand(4, 1, 8, 8)}
    data = classifier.digits(range(10))
    same.export(classifier.Network(classes=10), image, "teacher.onnx")
    model = onnx_train.build("teacher.onnx", optimizer="adamw")
    onnx_train.fit(model, data, epochs=4, batch_size=64, lr=0.01, progress=False).session.export("teacher.onnx")
    same.export(Student(), image, "student.onnx", optimize=True)
    np.savez("digits.npz", **{name: array[:320] for name, array in data.items()})
    np.savez("digits_test.npz", **classifier.digits(range(10), "test"))


def teacher():
    """The teacher in PyTorch, as it predicts."""
    return same.start(classifier.Network(classes=10), "teacher.onnx").eval()
