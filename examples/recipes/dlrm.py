"""What docs/recipes/dlrm.md starts from: dlrm.onnx, Meta's recommendation model with fresh weights, and clicks.npz:
dense features, a row of each of three tables, and whether there was a click."""

import numpy as np
import same
import torch
import networks
from torch import nn

ROWS = 5000  # of each table


def network(sparse=False):
    """`sparse`: the gradients of the tables are torch.sparse tensors."""
    module = networks.Dlrm(tables=3, rows=ROWS, bottom=[5, 16, 8], top=[16, 8])
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.sparse = sparse
    return module


def make():
    torch.manual_seed(0)
    inputs = {"dense": torch.rand(4, 5), "categories": torch.randint(0, ROWS, (4, 3))}
    same.export(network(), inputs, "dlrm.onnx", optimize=True)
    generator = np.random.default_rng(0)
    dense = generator.normal(size=(800, 5)).astype(np.float32)
    categories = generator.zipf(1.3, (800, 3)) % ROWS
    chance = dense[:, 0] + (categories[:, 0] % 2) - (categories[:, 1] < 3)
    clicks = (chance + 0.3 * generator.normal(size=800) > 0).astype(np.float32)[:, None]
    np.savez("clicks.npz", dense=dense, categories=categories, labels=clicks)
