"""Tables that plain SGD updates by rows: against PyTorch's sparse embeddings, and without a trace in what is saved."""

from dataclasses import replace

import numpy as np
import pytest
import reference
import tool
import torch
import zoo
from export import export
from torch import nn

STEPS, BATCHES, RATE = 20, 5, 2**-3
ROWS = 40  # of each table; a batch names six of them or fewer


class TwoLookups(nn.Module):
    """What was seen before and what is offered now are rows of one table."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ROWS, 5)
        self.head = nn.Linear(10, 1)

    def forward(self, history, offer):
        return self.head(torch.cat([self.items(history).sum(1), self.items(offer)], 1))


def two_lookups():
    torch.manual_seed(3)
    inputs = {"history": torch.randint(0, ROWS // 2, (6, 3)), "offer": torch.randint(0, ROWS // 2, (6,))}
    labels = torch.randint(0, 2, (6, 1)).float()
    example = replace(zoo.dlrm(rows=ROWS), module=TwoLookups(), inputs=inputs, labels=labels)
    return example


EXAMPLES = {"dlrm": lambda: zoo.dlrm(rows=ROWS), "two lookups": two_lookups}


class SparseSgd(torch.optim.SGD):
    """clip_grad_norm_ takes no sparse gradients: the same by hand, on their summed rows."""

    def __init__(self, parameters, rate, clip_norm):
        super().__init__(parameters, lr=rate)
        self.clip_norm = clip_norm
        self.sparse = 0

    def step(self):
        parameters = self.param_groups[0]["params"]
        values = []
        for p in parameters:
            if p.grad.is_sparse:
                p.grad = p.grad.coalesce()
                self.sparse += 1
            values.append(p.grad.values() if p.grad.is_sparse else p.grad)
        scale = min(1.0, self.clip_norm / (torch.cat([v.flatten() for v in values]).norm().item() + 1e-6))
        for p in parameters:
            p.grad = p.grad * scale
        super().step()


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.0625])
@pytest.mark.parametrize("name", EXAMPLES)
def test_training_is_that_of_pytorchs_sparse_embeddings(tmp_path, name, clip_norm, precision):
    example = EXAMPLES[name]()
    if precision == "float64":
        example = reference.to_double(example)
    export(example.module, example.inputs, tmp_path / "forward.onnx", "dynamo", example.optimize)
    model, data = tmp_path / "train.onnx", reference.repeated(example, BATCHES)
    tool.run("build", tmp_path / "forward.onnx", "-o", model, "--loss", example.loss, "--optimizer", "sgd",
             *(["--clip", clip_norm] if clip_norm else []))  # fmt: skip
    assert "SparseSgd" in tool.run("show", model, "--plan", "--batch", 6)
    tool.run("fit", model, "--data", tool.save(tmp_path / "data.npz", data), "--steps", STEPS, "--batch-size", 6,
             "--lr", RATE, "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip

    for module in example.module.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = True
    optimizers = []

    def make_optimizer(parameters):
        optimizers.append(SparseSgd(parameters, RATE, clip_norm or float("inf")))
        return optimizers[0]

    theirs = reference.loss_curve(example, data, 6, STEPS, make_optimizer)
    assert optimizers[0].sparse >= STEPS
    np.testing.assert_allclose(tool.losses(tmp_path / "run"), theirs, rtol=1e-4 if precision == "float32" else 1e-9)


def test_stopping_and_resuming_changes_nothing(tmp_path):
    example = EXAMPLES["dlrm"]()
    export(example.module, example.inputs, tmp_path / "forward.onnx", "dynamo", example.optimize)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, BATCHES))
    tool.run("build", tmp_path / "forward.onnx", "-o", tmp_path / "train.onnx", "--loss", example.loss, "--optimizer",
             "sgd", "--clip", 0.0625)  # fmt: skip

    def fit(out, steps, *options):
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", steps, "--batch-size", 6, "--lr", RATE,
                 "--schedule", "constant", "--seed", 5, "--out", out, *options)  # fmt: skip

    fit(tmp_path / "whole", 14)
    fit(tmp_path / "parts", 6)
    fit(tmp_path / "parts", 14, "--resume")
    assert (tmp_path / "whole/last.onnx").read_bytes() == (tmp_path / "parts/last.onnx").read_bytes()
    np.testing.assert_array_equal(tool.losses(tmp_path / "whole"), tool.losses(tmp_path / "parts"))


def test_rows_that_no_batch_names_keep_their_bits(tmp_path):
    example = two_lookups()
    export(example.module, example.inputs, tmp_path / "forward.onnx", "dynamo", example.optimize)
    data = reference.repeated(example, BATCHES)
    tool.run("build", tmp_path / "forward.onnx", "-o", tmp_path / "train.onnx", "--loss", example.loss, "--optimizer",
             "sgd")  # fmt: skip
    tool.run("fit", tmp_path / "train.onnx", "--data", tool.save(tmp_path / "data.npz", data), "--steps", STEPS,
             "--batch-size", 6, "--lr", RATE, "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    before = reference.Initializers(tmp_path / "train.onnx").values["items.weight"]
    after = reference.Initializers(tmp_path / "run/last.onnx").values["items.weight"]
    named = np.isin(np.arange(ROWS), np.concatenate([data["history"].ravel(), data["offer"]]))
    np.testing.assert_array_equal(after[~named], before[~named])
    assert (after[named] != before[named]).any(1).all()
