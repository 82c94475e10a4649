"""Compares predictions of digits with their labels, draws some of them, and fails below an accuracy.

    python models/show_digits.py predictions.npz models/data/digits_test.npz --at-least 0.97

Needs Python alone.
"""

import argparse
import sys

from npz import read_npz

SHADES = " .:-=+*#%@"
SIDE = 8


def draw(images, captions):
    """Images side by side, two characters a pixel."""
    for row in range(SIDE):
        lines = (image[row * SIDE : (row + 1) * SIDE] for image in images)
        print("  ".join("".join(2 * SHADES[round(pixel * (len(SHADES) - 1))] for pixel in line) for line in lines))
    print("  ".join(caption.center(2 * SIDE) for caption in captions))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", help="what `onnx-train predict` wrote: `logits` [n, 10]")
    parser.add_argument("data", help="`image` [n, 1, 8, 8] and `labels` [n]")
    parser.add_argument("--at-least", type=float, default=0, help="accuracy below which the exit status is 1")
    arguments = parser.parse_args()
    (count, classes), logits = read_npz(arguments.predictions)["logits"]
    data = read_npz(arguments.data)
    images, labels = data["image"][1], data["labels"][1]
    rows = (logits[i * classes : (i + 1) * classes] for i in range(count))
    predicted = [max(range(classes), key=row.__getitem__) for row in rows]
    right = sum(p == label for p, label in zip(predicted, labels))

    wrong = [i for i in range(count) if predicted[i] != labels[i]]
    shown = [*range(4), *wrong[:1]]
    captions = [f"{predicted[i]}" if predicted[i] == labels[i] else f"{predicted[i]}, is {labels[i]}" for i in shown]
    draw([images[i * SIDE * SIDE : (i + 1) * SIDE * SIDE] for i in shown], captions)
    print(f"{right} of {count} right: accuracy {right / count:.4f}")
    sys.exit(right / count < arguments.at_least)


if __name__ == "__main__":
    main()
