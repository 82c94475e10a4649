"""What docs/recipes/segment.md starts from: unet.onnx, a small U-Net with fresh weights, and pictures of discs and
squares, shapes/images/*.png, with their masks, shapes/masks/*.png: 0 outside, 1 disc, 2 square, 255 at the borders."""

from pathlib import Path

import numpy as np
import same
import torch
from PIL import Image
from segmentation import BilinearUNet

SIZE, CLASSES = 16, 3


def network():
    return BilinearUNet(width=6, classes=CLASSES)


def shape(generator):
    """A picture, uint8[SIZE, SIZE, 3], and its mask, uint8[SIZE, SIZE]."""
    pixels = generator.integers(0, 90, (SIZE, SIZE, 3))
    mask = np.zeros((SIZE, SIZE), np.uint8)
    y, x = np.mgrid[:SIZE, :SIZE]
    for kind in (1, 2):
        center, radius = generator.integers(3, SIZE - 3, 2), generator.integers(2, 5)
        distances = np.abs(np.stack([y - center[0], x - center[1]])).astype(float)
        distance = np.hypot(*distances) if kind == 1 else distances.max(0)
        mask[distance <= radius] = kind
        mask[(distance > radius) & (distance <= radius + 0.5)] = 255
        pixels[distance <= radius] += generator.integers(60, 160, 3)
    return pixels.astype(np.uint8), mask


def make():
    torch.manual_seed(0)
    same.export(network(), {"image": torch.rand(2, 3, SIZE, SIZE)}, "unet.onnx")
    generator = np.random.default_rng(0)
    for part in "images", "masks":
        Path("shapes", part).mkdir(parents=True)
    for number in range(60):
        pixels, mask = shape(generator)
        Image.fromarray(pixels).save(f"shapes/images/{number:02}.png")
        Image.fromarray(mask).save(f"shapes/masks/{number:02}.png")


def pictures(folder):
    """(pixels uint8[N,3,H,W], masks int64[N,H,W])"""
    def read(part):
        return np.stack([np.asarray(Image.open(path)) for path in sorted(Path(folder, part).iterdir())])

    return read("images").transpose(0, 3, 1, 2), read("masks").astype(np.int64)
