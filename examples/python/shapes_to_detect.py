"""Draws discs and rectangles on noise, and writes where they are as COCO does: python shapes_to_detect.py DIR makes
DIR/train and DIR/val, each with images/ and annotations.json. Only NumPy is needed."""

import json
import sys
from pathlib import Path

import numpy as np
from digit_pictures import png

CLASSES = ("disc", "rectangle")
SIZE, MOST, SMALLEST, LARGEST = 64, 3, 12, 28  # pixels; shapes of a picture


def shapes_of(random):
    """(class, left, top, width, height) of shapes that do not overlap."""
    shapes = []
    for _ in range(20):
        label = int(random.integers(len(CLASSES)))
        width, height = random.integers(SMALLEST, LARGEST, 2) if label else [random.integers(SMALLEST, LARGEST)] * 2
        left, top = random.integers(0, SIZE - width), random.integers(0, SIZE - height)
        apart = all(left >= l + w or left + width <= l or top >= t + h or top + height <= t for _, l, t, w, h in shapes)
        if apart and len(shapes) < MOST:
            shapes.append((label, int(left), int(top), int(width), int(height)))
    return shapes[: random.integers(1, MOST + 1)]


def drawn(shapes, random):
    """uint8[SIZE, SIZE, 3]"""
    pixels = random.integers(0, 90, (SIZE, SIZE, 3))
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    for label, left, top, width, height in shapes:
        inside = (x > left) & (x < left + width) & (y > top) & (y < top + height)
        if label == 0:
            inside &= (x - left - width / 2) ** 2 + (y - top - height / 2) ** 2 < width**2 / 4
        pixels[inside] = random.integers(110, 256, 3) + random.integers(-20, 20, (inside.sum(), 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write(folder, count, seed):
    random = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for image in range(count):
        shapes = shapes_of(random)
        name = f"{image:04}.png"
        (folder / "images" / name).write_bytes(png(drawn(shapes, random)))
        images.append({"id": image, "file_name": name, "width": SIZE, "height": SIZE})
        for label, *box in shapes:
            annotations.append({"id": len(annotations), "image_id": image, "category_id": label + 1, "bbox": box, "iscrowd": 0})
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(CLASSES)]
    (folder / "annotations.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return len(annotations)


def main(folder, train=320, val=64):
    root = Path(folder)
    counts = [write(root / "train", train, 0), write(root / "val", val, 1)]
    return f"{root}: {train} pictures with {counts[0]} shapes, {val} with {counts[1]}"


if __name__ == "__main__":
    print(main(sys.argv[1]))
