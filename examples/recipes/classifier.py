"""What docs/recipes/classifier.md starts from: backbone.onnx, a network that knows the digits 0 to 4, and a folder
with pictures of three others, pictures/NAME/*.png."""

import sys
from pathlib import Path

import numpy as np
import same
import torch
from PIL import Image
from torch import nn

import onnx_train

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))
import digit_pictures  # noqa: E402

NAMES = {5: "five", 7: "seven", 9: "nine"}


class Network(nn.Module):
    def __init__(self, classes, width=12):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, classes)

    def forward(self, image):
        return self.head(self.features(image).mean((2, 3)))


def digits(labels, part="train"):
    """The digits of models/data with these labels."""
    arrays = np.load(digit_pictures.DATA / f"digits_{part}.npz")
    chosen = np.isin(arrays["labels"], list(labels))
    return {name: arrays[name][chosen] for name in ("image", "labels")}


def make():
    torch.manual_seed(0)
    same.export(Network(classes=5), {"image": torch.rand(4, 1, 8, 8)}, "backbone.onnx")
    model = onnx_train.build("backbone.onnx", optimizer="adamw")
    known = onnx_train.fit(model, digits(range(5)), epochs=3, batch_size=64, lr=0.01, progress=False)
    known.session.export("backbone.onnx")
    arrays = digits(NAMES)
    digit_pictures.write(Path("pictures"), {name: array[:120] for name, array in arrays.items()})
    for label, name in NAMES.items():
        Path("pictures", str(label)).rename(Path("pictures", name))
    new = digits(NAMES, "test")
    digit_pictures.write(Path("new"), {name: array[:6] for name, array in new.items()})


def pictures(folder):
    """(pixels as bytes [N,1,H,W], classes [N]) of a folder of pictures, in the order of their paths."""
    names = sorted(path.name for path in Path(folder).iterdir())
    files = sorted(Path(folder).rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])[:, None]
    return pixels, np.array([names.index(file.parent.name) for file in files])
