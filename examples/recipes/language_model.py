"""What docs/recipes/language_model.md starts from: gpt.onnx, a small GPT with fresh weights, and nanoGPT's files of tokens,
book/train.bin and book/val.bin: uint16 without a header, here one byte of text each."""

from pathlib import Path

import numpy as np
import same
import torch
from gpt import Gpt

MODELS = Path(__file__).resolve().parents[2] / "models"


def network():
    return Gpt(vocabulary=128, context=32, width=32, heads=2, blocks=2)


def export(module, path):
    """With a batch and a number of tokens that are open."""
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=32)}
    same.export(module, {"tokens": torch.randint(0, 128, (4, 16))}, path, optimize=True, sizes=sizes)


def make():
    torch.manual_seed(0)
    export(network(), "gpt.onnx")
    text = np.frombuffer((MODELS / "data" / "devils_dictionary.txt").read_bytes(), np.uint8)[:9000].astype(np.uint16)
    Path("book").mkdir()
    text[:8000].tofile("book/train.bin")
    text[8000:].tofile("book/val.bin")


def blocks(path, size):
    """(tokens [N,size], the tokens that follow [N,size]) of a file: blocks one after the other."""
    stream = np.fromfile(path, np.uint16).astype(np.int64)
    count = (len(stream) - 1) // size
    return stream[: count * size].reshape(count, size), stream[1 : count * size + 1].reshape(count, size)
