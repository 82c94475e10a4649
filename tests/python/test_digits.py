"""The demo's CNN reaches on real digits what PyTorch reaches."""

import json

import numpy as np
import onnx
import tool
import torch
from digits_cnn import DigitsCnn
from onnx import numpy_helper
from torch.nn import functional as F

EPOCHS, BATCH_SIZE, RATE = 8, 32, 0.003
DATA = tool.ROOT / "models" / "data"
MODEL = tool.ROOT / "models" / "digits_cnn.onnx"


def pytorch_accuracy():
    """From the weights in the file, with the recipe that `fit` gets."""
    torch.manual_seed(0)
    module = DigitsCnn()
    weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in onnx.load(MODEL).graph.initializer}
    module.load_state_dict({name: weights.get(name, value) for name, value in module.state_dict().items()})
    data = {name: torch.from_numpy(value) for name, value in tool.load(DATA / "digits_train.npz").items()}
    test = {name: torch.from_numpy(value) for name, value in tool.load(DATA / "digits_test.npz").items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    count = len(data["labels"])
    steps = EPOCHS * -(-count // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    module.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(count).split(BATCH_SIZE):
            loss = F.cross_entropy(module(data["image"][batch]), data["labels"][batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    module.eval()
    with torch.no_grad():
        return (module(test["image"]).argmax(1) == test["labels"]).double().mean().item()


def test_digits_are_learned_as_well_as_by_pytorch(tmp_path):
    training, out = tmp_path / "train.onnx", tmp_path / "run"
    tool.run("build", MODEL, "-o", training, "--loss", "cross_entropy", "--optimizer", "adamw")
    tool.run("fit", training, "--data", DATA / "digits_train.npz", "--epochs", EPOCHS, "--batch-size", BATCH_SIZE,
             "--lr", RATE, "--schedule", "cosine", "--out", out, threads=2)  # fmt: skip
    metrics = json.loads(tool.run("eval", out / "last.onnx", "--data", DATA / "digits_test.npz", "--json"))
    assert metrics["accuracy"] >= max(0.97, pytorch_accuracy() - 0.01)

    tool.run("export", out / "last.onnx", "-o", tmp_path / "digits.onnx")
    tool.run("predict", tmp_path / "digits.onnx", "--data", DATA / "digits_test.npz", "-o", tmp_path / "logits.npz")
    predicted = tool.load(tmp_path / "logits.npz")["logits"].argmax(1)
    labels = tool.load(DATA / "digits_test.npz")["labels"]
    np.testing.assert_allclose((predicted == labels).mean(), metrics["accuracy"], atol=1e-6)
