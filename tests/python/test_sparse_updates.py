"""Tables that plain SGD updates by rows: against PyTorch's sparse embeddings, and without a trace in what is saved."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import reference
import tool
import torch
import networks
from export import export
from onnx import numpy_helper
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
    example = replace(networks.dlrm(rows=ROWS), module=TwoLookups(), inputs=inputs, labels=labels)
    return example


EXAMPLES = {"dlrm": lambda: networks.dlrm(rows=ROWS), "two lookups": two_lookups}


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


class TableAdam:
    """SparseAdam for the tables, whose gradients are sparse, Adam for the rest."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate, self.optimizers = list(parameters), rate, None

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        if not self.optimizers:
            sparse = [p for p in self.parameters if p.grad.is_sparse]
            rest = [p for p in self.parameters if not p.grad.is_sparse]
            self.optimizers = [torch.optim.SparseAdam(sparse, lr=self.rate), torch.optim.Adam(rest, lr=self.rate)]
        for optimizer in self.optimizers:
            optimizer.step()


class Padded(TwoLookups):
    """Row 0 fills up: what it holds does not count, and it is not learned."""

    def forward(self, history, offer):
        real = (history != 0).unsqueeze(-1)
        return self.head(torch.cat([(self.items(history) * real).sum(1), self.items(offer)], 1))


def padded():
    example = two_lookups()
    torch.manual_seed(3)
    example = replace(example, module=Padded())
    example.inputs["history"][:, 2] = 0
    example.inputs["offer"] = example.inputs["offer"].clamp(min=1)
    return example


def states(path):
    """Weights and moments."""
    model = onnx.load(path)
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    return {t.name: numpy_helper.to_array(t) for graph in graphs for t in graph.initializer}


@pytest.mark.parametrize("name", [*EXAMPLES, "padding"])
def test_sparse_adam_is_that_of_pytorch(tmp_path, name):
    example = reference.to_double((EXAMPLES | {"padding": padded})[name]())
    export(example.module, example.inputs, tmp_path / "forward.onnx", "dynamo", example.optimize)
    model, data, rate = tmp_path / "train.onnx", reference.repeated(example, BATCHES), 2**-7
    data["labels"] = (data["labels"] > 0).astype(np.float64)
    if name == "padding":
        data["history"][:, 2] = 0
        data["offer"] = np.maximum(data["offer"], 1)
    printed = tool.run("build", tmp_path / "forward.onnx", "-o", model, "--loss", example.loss, "--optimizer",
                       "sparse_adam")  # fmt: skip
    assert "by sparse_adam" in printed and "by adam" in printed
    assert "SparseAdamRows" in tool.run("show", model, "--plan", "--batch", 6)
    tool.run("fit", model, "--data", tool.save(tmp_path / "data.npz", data), "--steps", 50, "--batch-size", 6, "--lr", rate,
             "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    for module in example.module.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = True
            module.padding_idx = 0 if name == "padding" else None
    optimizers = []

    def make_optimizer(parameters):
        optimizers.append(TableAdam(parameters, rate))
        return optimizers[0]

    theirs = reference.loss_curve(example, data, 6, 50, make_optimizer)
    np.testing.assert_allclose(tool.losses(tmp_path / "run"), theirs, rtol=1e-9)
    before, after = states(model), states(tmp_path / "run/last.onnx")
    names = [name for name, _ in example.module.named_parameters()]
    for name, p in zip(names, optimizers[0].parameters):
        if not p.grad.is_sparse:
            continue
        np.testing.assert_allclose(after[name], p.detach().numpy(), rtol=1e-9, atol=1e-12)
        untouched = (after[name] == before[name]).all(1)
        assert untouched.any() and not untouched.all()
        for slot in "exp_avg", "exp_avg_sq":
            moment = optimizers[0].optimizers[0].state[p][slot].numpy()
            np.testing.assert_allclose(after[f"state/{name}/{slot}"], moment, rtol=1e-9, atol=1e-12)
            assert not after[f"state/{name}/{slot}"][untouched].any()


@pytest.mark.parametrize("optimizer", ["sgd", "sparse_adam"])
def test_stopping_and_resuming_changes_nothing(tmp_path, optimizer):
    example = EXAMPLES["dlrm"]()
    export(example.module, example.inputs, tmp_path / "forward.onnx", "dynamo", example.optimize)
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, BATCHES))
    tool.run("build", tmp_path / "forward.onnx", "-o", tmp_path / "train.onnx", "--loss", example.loss, "--optimizer",
             optimizer, "--clip", 0.0625)  # fmt: skip

    def fit(out, steps, *options):
        tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", steps, "--batch-size", 6, "--lr", RATE,
                 "--schedule", "constant", "--seed", 5, "--out", out, *options)  # fmt: skip

    fit(tmp_path / "whole", 14)
    fit(tmp_path / "parts", 6)
    fit(tmp_path / "parts", 14, "--resume")
    # The evaluation at the end of the first part is one that the whole run has not: patience may count from another best.
    whole, parts = (states(tmp_path / name / "last.onnx") for name in ("whole", "parts"))
    assert {name: value.tobytes() for name, value in whole.items()} == {name: value.tobytes() for name, value in parts.items()}
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
