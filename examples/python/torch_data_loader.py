"""Fine-tunes a classifier of digits from a PyTorch DataLoader.

    PYTHONPATH=build/python python examples/python/torch_data_loader.py
"""

from pathlib import Path

import numpy as np
import onnx_train
import torch
from torch.utils.data import DataLoader, TensorDataset

MODELS = Path(__file__).parents[2] / "models"

with np.load(MODELS / "data" / "digits_train.npz") as archive:
    images, labels = (torch.from_numpy(archive[name][:640]) for name in archive.files)

# A batch of this loader is a list: the model's inputs in their order, then the labels.
loader = DataLoader(
    TensorDataset(images, labels), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0)
)

training = onnx_train.build(MODELS / "digits_cnn.onnx", "cross_entropy", "adamw(lr=2e-3)")
session = onnx_train.Session(training)
for epoch in range(2):
    # Host tensors are read in place. Scalars of a result are Python numbers.
    losses = [session.step(batch).loss for batch in loader]
    print(f"epoch {epoch}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")

# `fit` takes the loader as it is, and adds schedules, evaluation and checkpoints.
onnx_train.fit(session, loader, epochs=1)
session.export("digits.onnx")
