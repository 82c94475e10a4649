"""A small convolutional network for 8x8 digits, and its export: models/digits_cnn.onnx.

Batch normalization and dropout stay in the file (`optimize=False`, train mode), as a network that is to be trained
needs them; by default the exporter folds the one into the convolutions and leaves the other out.
"""

from pathlib import Path

import torch
from torch import nn

from export import export


class DigitsCnn(nn.Module):
    def __init__(self, classes=10, width=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(2 * width * 4, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, classes)
        )

    def forward(self, image):
        return self.classifier(self.features(image))


if __name__ == "__main__":
    torch.manual_seed(0)
    export(DigitsCnn(), {"image": torch.rand(4, 1, 8, 8)}, Path(__file__).with_suffix(".onnx"), train=True)
