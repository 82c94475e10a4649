"""An ONNX model as one layer of a larger PyTorch model, trained as a whole.

    PYTHONPATH=build/python python examples/python/torch_layer.py
"""

from pathlib import Path

import onnx_train.torch
import torch

MODEL = Path(__file__).parents[2] / "tests" / "fixtures" / "mlp.onnx"

torch.manual_seed(0)
layer = onnx_train.torch.Module(MODEL)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), layer, torch.nn.Tanh(), torch.nn.Linear(3, 1))

# `parameters` has the weights of the file beside those of the other layers, so one optimizer trains all.
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(64, 8)
targets = inputs.prod(dim=1, keepdim=True).tanh()

values = []
for _ in range(50):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    values.append(loss.item())
print(f"loss {values[0]:.4f} -> {values[-1]:.4f}")

torch.save(model.state_dict(), "model.pt")  # the weights of the layer have their names of the file
