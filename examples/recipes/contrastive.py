"""What docs/recipes/contrastive.md starts from: towers.onnx, an encoder of pictures and one of texts in one model, with
fresh weights, and pairs.npz, pictures of digits with captions of four tokens. towers.onnx has two inputs and two outputs."""

import classifier
import numpy as np
import same
import torch
from torch import nn

WORDS = "<pad> a the this small large drawn of number zero one two three four five six seven eight nine".split()
CAPTIONS = ("a drawn {}", "the number {}", "this small {}", "a large {}")


class Towers(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, width))
        self.words = nn.Embedding(len(WORDS), 24)
        self.text = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, width))

    def forward(self, image, caption):
        return self.image(image), self.text(self.words(caption).mean(1))


def tokens(captions):
    """int64[captions, 4]"""
    rows = [[WORDS.index(word) for word in caption.split()] for caption in captions]
    return np.array([row + [0] * (4 - len(row)) for row in rows])


def make():
    torch.manual_seed(0)
    inputs = {"image": torch.rand(4, 1, 8, 8), "caption": torch.randint(0, len(WORDS), (4, 4))}
    same.export(Towers(), inputs, "towers.onnx", optimize=True, outputs=("image_embedding", "text_embedding"))
    generator = np.random.default_rng(0)
    for file, part, count in ("pairs.npz", "train", 400), ("test_pairs.npz", "test", 200):
        digits = {name: array[:count] for name, array in classifier.digits(range(10), part).items()}
        captions = [generator.choice(CAPTIONS).format(WORDS[9 + label]) for label in digits["labels"]]
        np.savez(file, image=digits["image"], caption=tokens(captions))


def digits_of(captions):
    """The digit that each caption names."""
    return np.max(captions, axis=1) - WORDS.index("zero")
