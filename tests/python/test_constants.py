"""What PyTorch does not train is not trained: exports of both exporters against the module's own parameters."""

import logging
import warnings

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import numpy_helper


class Tower(torch.nn.Module):
    """Buffers and literals of all kinds beside parameters that look like them."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(3, 8)
        self.query = torch.nn.Linear(8, 8, bias=False)
        self.again = torch.nn.Linear(8, 8, bias=False)
        self.again.weight = self.query.weight
        self.head = torch.nn.Linear(8, 4)
        self.gain = torch.nn.Parameter(torch.rand(3) + 0.5)  # on an input, as a buffer would be
        self.register_buffer("centre", torch.tensor([0.4, 0.5, 0.6]))
        self.register_buffer("spread", torch.tensor([0.2, 0.3, 0.25]))
        angles = torch.arange(6.0)[:, None] / 10 ** (torch.arange(8) / 4)
        self.register_buffer("table", torch.sin(angles)[None])
        self.register_buffer("causal", torch.triu(torch.full((6, 6), torch.finfo(torch.float32).min), 1))
        self.register_buffer("frequencies", 1 / 100 ** (torch.arange(0, 8.0) / 8))
        self.register_buffer("halves", torch.full((8,), 0.5), persistent=False)

    def forward(self, x):
        x = (x - self.centre) / self.spread
        if self.learned_gain:
            x = x * self.gain
        t = self.embed(x) + self.table
        q = self.again(self.query(t)) * self.halves
        turned = q * torch.cos(torch.arange(6.0)[:, None] * self.frequencies)
        scores = turned @ q.transpose(1, 2) + self.causal
        return self.head((torch.softmax(scores, -1) @ t).mean(1))

    learned_gain = True


def export(path, dynamo, optimize=True):
    torch.manual_seed(0)
    module = Tower().eval()
    options = {"dynamo": True, "optimize": optimize, "external_data": False} if dynamo else {"dynamo": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        torch.onnx.export(module, (torch.randn(2, 6, 3),), str(path), input_names=["x"], output_names=["y"],
                          opset_version=18, verbose=False, **options)  # fmt: skip
        logging.disable(logging.NOTSET)
    return module


def initializers(path):
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("optimize", [True, False])
def test_the_dynamo_exporter_says_what_is_a_parameter(tmp_path, optimize):
    """Parameters alone have gradients, under the module's names and in its layout, tied ones together."""
    path = tmp_path / "model.onnx"
    module = export(path, dynamo=True, optimize=optimize)
    rng = np.random.default_rng(0)
    batch = tool.save(tmp_path / "batch.npz", {"x": rng.random((2, 6, 3), np.float32), "labels": [1, 3]})
    tool.run("grad", path, "--inputs", batch, "-o", tmp_path / "grad.npz", "--dtype", "float64")
    gradients = {k[5:]: v for k, v in tool.load(tmp_path / "grad.npz").items() if k.startswith("grad/")}
    module.double()
    data = tool.load(batch)
    logits = module(torch.tensor(data["x"], dtype=torch.float64))
    torch.nn.functional.cross_entropy(logits, torch.tensor(data["labels"])).backward()
    expected = {name: p.grad.numpy() for name, p in module.named_parameters(remove_duplicate=False)}
    assert len(gradients) == len(list(module.parameters()))  # of a tied weight the exporter takes one name
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("dynamo", [True, False])
def test_training_moves_parameters_and_leaves_buffers(tmp_path, dynamo, monkeypatch):
    monkeypatch.setattr(Tower, "learned_gain", dynamo)  # a TorchScript file cannot tell such a gain from a buffer
    path = tmp_path / "model.onnx"
    module = export(path, dynamo)
    text = tool.run("build", path, "-o", tmp_path / "train.onnx")
    assert "'mean'" not in text and "'centre', 'spread'" in text
    rng = np.random.default_rng(0)
    data = {"x": rng.random((2, 6, 3), np.float32), "labels": [1, 3]}
    tool.run("fit", tmp_path / "train.onnx", "--data", tool.save(tmp_path / "data.npz", data), "--steps", 3,
             "--lr", 0.1, "--out", tmp_path / "run")  # fmt: skip
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "trained.onnx")
    trained = initializers(tmp_path / "trained.onnx")
    buffers = {name: value.numpy() for name, value in module.named_buffers()}
    found = 0
    for name, value in trained.items():
        if value.dtype != np.float32 or value.size == 1:
            continue
        same = [n for n, b in buffers.items() if b.size == value.size and np.array_equal(b.ravel(), value.ravel())]
        found += bool(same)
        assert name not in buffers or same, f"{name} has moved"
    assert found >= 4
    for name, value in module.named_parameters():
        if name in trained and (dynamo or name != "gain"):
            assert not np.array_equal(trained[name], value.detach().numpy()), f"{name} stands still"
    # A model that was trained is not judged again by its values.
    again = tool.run("build", tmp_path / "run" / "last.onnx", "-o", tmp_path / "again.onnx")
    count = [line for line in text.splitlines() if line.startswith("trained")]
    assert count == [line for line in again.splitlines() if line.startswith("trained")]


def test_the_package_names_constants(tmp_path):
    onnx_train = pytest.importorskip("onnx_train")
    path = tmp_path / "model.onnx"
    export(path, dynamo=True)
    training = onnx_train.build(path, optimizer="sgd")
    assert {"centre", "spread", "table", "causal"} <= set(training.constants)
    assert "gain" not in training.constants and "embed.weight" in onnx_train.Session(training).state
    assert "centre" not in onnx_train.build(path, optimizer="sgd", train="centre").constants
    assert any("'centre'" in finding.subject for finding in onnx_train.check(path).findings)
    onnx_train.save_weights(training, tmp_path / "weights.npz")
    assert {"embed.weight", "head.weight", "head.bias", "gain"} <= set(tool.load(tmp_path / "weights.npz"))


class Metaformer(torch.nn.Module):
    """A block of timm's, with StarReLU (a scale and a bias of one number each), a PReLU of one number, pooling of a learned
    exponent, and the temperature of CLIP."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(3, 5), torch.nn.Linear(5, 4)
        self.act = torch.nn.Module()
        self.act.scale = torch.nn.Parameter(torch.tensor([0.8944]))
        self.act.bias = torch.nn.Parameter(torch.tensor([-0.4472]))
        self.slope = torch.nn.PReLU()
        self.p = torch.nn.Parameter(torch.tensor(3.0))
        self.logit_scale = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        x = self.act.scale * torch.relu(self.fc1(x)) ** 2 + self.act.bias  # exponents and 0.5 are literals
        x = self.slope(x) * 0.5
        x = (x.abs() + 0.1).pow(self.p).pow(1 / self.p)
        x = self.fc2(x)
        return self.logit_scale.exp() * x / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("dynamo", [False, True])
def test_single_numbers_that_are_parameters_have_gradients(tmp_path, dynamo):
    torch.manual_seed(0)
    module, path = Metaformer().eval(), tmp_path / "model.onnx"
    options = {"dynamo": True, "external_data": False, "optimize": False} if dynamo else {"dynamo": False, "do_constant_folding": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.randn(2, 3),), str(path), input_names=["x"], output_names=["y"], opset_version=18,
                          verbose=False, **options)  # fmt: skip
    batch = tool.save(tmp_path / "batch.npz", {"x": np.random.default_rng(0).random((2, 3), np.float32), "labels": [1, 3]})
    tool.run("grad", path, "--inputs", batch, "-o", tmp_path / "grad.npz", "--dtype", "float64")
    gradients = {k[5:]: v for k, v in tool.load(tmp_path / "grad.npz").items() if k.startswith("grad/")}
    module.double()
    data = tool.load(batch)
    logits = module(torch.tensor(data["x"], dtype=torch.float64))
    torch.nn.functional.cross_entropy(logits, torch.tensor(data["labels"])).backward()
    parameters = dict(module.named_parameters())
    assert set(gradients) == set(parameters)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient.ravel(), parameters[name].grad.numpy().ravel(), rtol=1e-5, atol=1e-9, err_msg=name)
    text = tool.run("check", path)
    assert ("a single number that is a parameter, says the file" in text) == dynamo
    assert ("named as a parameter or buffer of the module" in text.replace("\n    ", " ")) == (not dynamo)


def test_a_classifier_of_two_classes_as_scikit_learn_exports_it(tmp_path):
    """MLPClassifier ends in a Sigmoid and writes [1 - p, p]: the loss is that of the probabilities, in every build."""
    onnx_train = pytest.importorskip("onnx_train")
    from onnx import TensorProto, helper

    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=(5, 1)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "coefficient"], ["a"]), helper.make_node("Relu", ["a"], ["h"]),
             helper.make_node("MatMul", ["h", "coefficient1"], ["b"]), helper.make_node("Sigmoid", ["b"], ["p"]),
             helper.make_node("Sub", ["unity", "p"], ["q"]), helper.make_node("Concat", ["q", "p"], ["probabilities"], axis=1)]  # fmt: skip
    arrays = {"coefficient": w1, "coefficient1": w2, "unity": np.float32([1])}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2])],
                              [numpy_helper.from_array(value, name) for name, value in arrays.items()])  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x, labels = rng.normal(size=(6, 3)).astype(np.float32), rng.integers(0, 2, 6)
    training = onnx_train.build(path, optimizer="sgd(lr=0.5)")
    assert training.metadata["onnx_train.loss"].startswith("nll(probabilities, labels")
    assert any("the loss takes their logarithms" in note for note in training.notes)
    session = onnx_train.Session(training)
    a, b = (torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in (w1, w2))
    optimizer = torch.optim.SGD([a, b], lr=0.5)
    losses = []
    for _ in range(3):
        p = torch.sigmoid(torch.relu(torch.tensor(x, dtype=torch.float64) @ a) @ b)
        loss = torch.nn.functional.nll_loss(torch.cat([1 - p, p], 1).log(), torch.tensor(labels))
        assert float(session.step(x, labels).loss) == pytest.approx(loss.item(), rel=1e-5)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="cross_entropy has a softmax of its own"):
        doubled = onnx_train.build(path, "cross_entropy", "sgd")
    assert any("a softmax of its own" in note for note in doubled.notes)
    said = tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy").replace("\n    ", " ")
    assert "cross_entropy has a softmax of its own" in said and 'nll(probabilities, log=true)' in said
    batch = tool.save(tmp_path / "batch.npz", {"x": x, "labels": labels})
    assert "a softmax of its own" in tool.run("grad", path, "--inputs", batch, "-o", tmp_path / "g.npz").replace("\n  ", " ")
    tool.run("fit", path, "--data", batch, "--steps", 1, "--out", tmp_path / "run")
    assert tool.losses(tmp_path / "run")[0] == pytest.approx(losses[0], rel=1e-5)
