"""One model trained twice with the same numbers: by PyTorch's AdamW, and by the adamw of a training model.

    PYTHONPATH=build/python python examples/python/torch_optimizer.py
"""

from pathlib import Path

import numpy as np
import onnx_train
import onnx_train.torch
import torch

MODEL = Path(__file__).parents[2] / "tests" / "fixtures" / "mlp.onnx"
STEPS, RATE, DECAY = 50, 1e-2, 0.01

rng = np.random.default_rng(0)
x = rng.normal(size=(STEPS, 32, 4)).astype(np.float32)
labels = x[..., :3].argmax(axis=-1)

# PyTorch owns the weights: the model is a module, its parameters are tensors.
module = onnx_train.torch.Module(MODEL)
# The training model decays matrices only, so biases are a group of their own here.
matrices = [p for p in module.parameters() if p.dim() > 1]
biases = [p for p in module.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": DECAY}, {"params": biases, "weight_decay": 0.0}], lr=RATE
)
theirs = []
for batch, targets in zip(torch.from_numpy(x), torch.from_numpy(labels)):
    loss = torch.nn.functional.cross_entropy(module(batch), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    theirs.append(loss.item())

# The session owns the weights: loss, gradients and optimizer are one graph, and no PyTorch takes part.
training = onnx_train.build(MODEL, "cross_entropy", onnx_train.optimizers.AdamW(lr=RATE, weight_decay=DECAY))
session = onnx_train.Session(training)
ours = [session.step(batch, targets).loss for batch, targets in zip(x, labels)]

difference = max(abs(a - b) for a, b in zip(ours, theirs))
print(f"loss {ours[0]:.3f} -> {ours[-1]:.3f}; largest difference of the curves {difference:.1e}")
