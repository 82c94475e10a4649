"""Heads, adapters and files of weights, as a user meets them: the command, against PyTorch and PEFT's formulas."""

import json

import numpy as np
import onnx
import pytest
import reference
import safetensors.numpy
import safetensors.torch
import tool
import torch
from export import export
from onnx import numpy_helper
from torch.nn import functional as F

DIGITS = tool.ROOT / "models" / "digits_cnn.onnx"
STEPS, RATE = 20, 2**-7


class Net(torch.nn.Module):
    """A convolution, two layers and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.fc1 = torch.nn.Linear(4, 6)
        self.fc2 = torch.nn.Linear(6, 6, bias=False)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.conv(x)).mean((2, 3))
        return self.head(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class Lora(torch.nn.Module):
    """What PEFT puts around a layer: base(x) + scale B(A(x))."""

    def __init__(self, base, a, b, scale):
        super().__init__()
        self.base, self.scale = base, scale
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x):
        if self.a.dim() == 2:
            return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale
        low = F.conv2d(x, self.a, stride=self.base.stride, padding=self.base.padding)
        return self.base(x) + F.conv2d(low, self.b) * self.scale


class Dora(Lora):
    """PEFT's DoraLinearLayer and DoraConv2dLayer around a layer."""

    def __init__(self, base, a, b, scale, magnitude):
        super().__init__(base, a, b, scale)
        self.magnitude = torch.nn.Parameter(magnitude)

    def forward(self, x):
        convolution = self.a.dim() == 4
        weight, axes = self.base.weight, (1, 2, 3) if convolution else 1
        low = torch.einsum("or,ri->oi", self.b.flatten(1), self.a.flatten(1)).reshape(weight.shape)
        norm = torch.linalg.vector_norm(weight + self.scale * low, dim=axes).detach()
        ratio = (self.magnitude.flatten() / norm).reshape(-1, 1, 1) if convolution else self.magnitude / norm
        result, y = self.base(x), super().forward(x)
        bias = 0 if self.base.bias is None else self.base.bias.reshape(-1, *[1] * (result.dim() - 2))
        return result + (ratio - 1) * (result - bias) + ratio * (y - result)


class Ia3(torch.nn.Module):
    def __init__(self, base, scale):
        super().__init__()
        self.base, self.scale = base, torch.nn.Parameter(scale)

    def forward(self, x):
        return self.base(x) * self.scale


def weights_of(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """(module, files by precision, arrays) of the same network."""
    folder = tmp_path_factory.mktemp("net")
    module = Net()
    generator = np.random.default_rng(0)
    data = {"x": generator.normal(size=(24, 2, 8, 8)), "labels": generator.integers(0, 3, 24)}
    export(module, {"x": torch.zeros(2, 2, 8, 8)}, folder / "float32.onnx", "dynamo", True)
    export(module.double(), {"x": torch.zeros(2, 2, 8, 8).double()}, folder / "float64.onnx", "torchscript", True)
    tool.save(folder / "float64.npz", data)
    tool.save(folder / "float32.npz", {"x": data["x"].astype(np.float32), "labels": data["labels"]})
    return module, folder, data


def fit(folder, model, data, out, *options):
    tool.run("fit", model, "--data", data, "--steps", STEPS, "--batch-size", 6, "--lr", RATE, "--schedule", "constant",
             "--no-shuffle", "--out", out, *options)  # fmt: skip
    return tool.losses(out)


def torch_losses(module, data, parameters):
    """The same steps in PyTorch."""
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        rows = slice(step * 6 % 24, step * 6 % 24 + 6)
        loss = F.cross_entropy(module(torch.from_numpy(data["x"][rows])), torch.from_numpy(data["labels"][rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("method", ["lora", "rslora", "dora", "ia3", "bitfit"])
def test_adapters_train_as_in_pytorch(net, tmp_path, method):
    module, folder, data = Net().double(), net[1], net[2]
    module.load_state_dict(net[0].state_dict())
    model = tmp_path / "train.onnx"
    options = {"lora": ["--lora", "rank=2,alpha=3"], "rslora": ["--lora", "rank=2, alpha=3, rslora=true"],
               "dora": ["--lora", "rank=2,alpha=3,dora=true"],
               "ia3": ["--ia3", "targets=conv,fc1", "--train", "head.*"], "bitfit": ["--bitfit"]}[method]  # fmt: skip
    tool.run("build", folder / "float64.onnx", "-o", model, "--loss", "cross_entropy", "--optimizer",
             "adamw(weight_decay=0.1)", "--decay", "*", "--dtype", "float64", *options)  # fmt: skip
    weights = {name: torch.from_numpy(array.copy()) for name, array in weights_of(model).items() if array.ndim}
    for parameter in module.parameters():
        parameter.requires_grad_(method == "bitfit" and parameter.dim() == 1)
    if method == "ia3":
        module.conv = Ia3(module.conv, weights["conv.ia3_l"])
        module.fc1 = Ia3(module.fc1, weights["fc1.ia3_l"])
        module.head.requires_grad_(True)
    elif method != "bitfit":
        for name in "conv", "fc1", "fc2":
            a, b = weights[f"{name}.lora_A.weight"], weights[f"{name}.lora_B.weight"]
            assert (b == 0).all() and a.abs().max() <= 1 / np.sqrt(a[0].numel()) and a.std() > 0.1
            layer, scale = getattr(module, name), 3 / (2**0.5 if method == "rslora" else 2)
            if method == "dora":
                magnitude = weights[f"{name}.lora_magnitude_vector"]
                norm = layer.weight.detach().flatten(1).norm(dim=1)
                np.testing.assert_allclose(magnitude.flatten(), norm, rtol=1e-14)
                setattr(module, name, Dora(layer, a, b, scale, magnitude))
            else:
                setattr(module, name, Lora(layer, a, b, scale))
        assert "head.lora_A.weight" not in weights
    ours = fit(tmp_path, model, folder / "float64.npz", tmp_path / "run")
    theirs = torch_losses(module, data, [p for p in module.parameters() if p.requires_grad])
    assert theirs[-1] < theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def predictions(folder, model, data):
    tool.run("predict", model, "--inputs", data, "-o", folder / "out.npz")
    return tool.load(folder / "out.npz")["logits"]


def test_an_adapter_is_saved_as_peft_does_merged_and_loaded(net, tmp_path):
    module, folder, _ = net
    base, data = folder / "float32.onnx", folder / "float32.npz"
    build = ["build", base, "--loss", "cross_entropy", "--head", "logits=4"]
    printed = tool.run(*build, "-o", tmp_path / "train.onnx", "--lora", "rank=2,alpha=4,targets=fc1,fc2,conv")
    assert "has 4 outputs in place of 3" in printed and "on 3 layers (conv, fc1, fc2)" in printed
    fit(tmp_path, tmp_path / "train.onnx", data, tmp_path / "run")
    trained = tmp_path / "run" / "last.onnx"
    before = weights_of(base)
    frozen = [name for name in ("conv.weight", "conv.bias", "fc1.bias") if name in before]
    assert frozen and all(np.array_equal(weights_of(trained)[name], before[name]) for name in frozen)

    tool.run("export", trained, "-o", tmp_path / "adapter")
    assert not (tmp_path / "adapter").is_dir()  # a name without a suffix is a model's
    tool.run("export", trained, "-o", f"{tmp_path}/peft/")
    tensors = safetensors.numpy.load_file(tmp_path / "peft" / "adapter_model.safetensors")
    parts = {f"base_model.model.{layer}.lora_{part}.weight" for layer in ("conv", "fc1", "fc2") for part in "AB"}
    assert set(tensors) == parts | {"base_model.model.head.weight", "base_model.model.head.bias"}
    assert tensors["base_model.model.conv.lora_A.weight"].shape == (2, 2, 3, 3)
    assert tensors["base_model.model.conv.lora_B.weight"].shape == (4, 2, 1, 1)
    assert tensors["base_model.model.fc1.lora_A.weight"].shape == (2, 4)
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 2 and config["lora_alpha"] == 4
    assert config["target_modules"] == ["conv", "fc1", "fc2"] and config["modules_to_save"] == ["head"]

    tool.run("export", trained, "-o", tmp_path / "beside.onnx")
    tool.run("export", trained, "-o", tmp_path / "merged.onnx", "--merge")
    expected = predictions(tmp_path, trained, data)
    assert expected.shape == (24, 4)
    np.testing.assert_array_equal(predictions(tmp_path, tmp_path / "beside.onnx", data), expected)
    np.testing.assert_allclose(predictions(tmp_path, tmp_path / "merged.onnx", data), expected, rtol=1e-5, atol=1e-6)
    x = {"x": tool.load(data)["x"]}
    np.testing.assert_allclose(tool.session(tmp_path / "merged.onnx").run(None, x)[0], expected, rtol=1e-4, atol=1e-5)
    tool.run("build", base, "-o", tmp_path / "plain.onnx", "--loss", "cross_entropy")
    tool.run("export", tmp_path / "plain.onnx", "-o", tmp_path / "plain_inference.onnx")
    plain, merged = (onnx.load(tmp_path / f"{name}.onnx").graph for name in ("plain_inference", "merged"))
    assert [(n.op_type, *n.output) for n in merged.node] == [(n.op_type, *n.output) for n in plain.node]
    assert {t.name for t in merged.initializer} == {t.name for t in plain.initializer}

    again = tmp_path / "again.onnx"
    tool.run(*build, "-o", again, "--adapter", tmp_path / "peft")
    np.testing.assert_array_equal(predictions(tmp_path, again, data), expected)
    # A checkpoint is a model to build from, with its adapter.
    tool.run("build", trained, "-o", again, "--loss", "cross_entropy")
    trained_names = {b.key for info in onnx.load(again).training_info for b in info.update_binding}
    assert {n for n in trained_names if not n.startswith("state/")} == {n[len("base_model.model."):] for n in tensors}


@pytest.mark.parametrize("dropout", [0, 0.25])
def test_a_dora_adapter_is_saved_as_peft_does_merged_and_loaded(net, tmp_path, dropout):
    _, folder, _ = net
    base, data = folder / "float32.onnx", folder / "float32.npz"
    build = ["build", base, "--loss", "cross_entropy"]
    tool.run(*build, "-o", tmp_path / "train.onnx", "--lora",
             f"rank=2,alpha=4,dora=true,dropout={dropout},targets=fc1,fc2,conv")  # fmt: skip
    start = tmp_path / "start.onnx"
    tool.run(*build, "-o", start)
    plain = predictions(tmp_path, start, data)
    np.testing.assert_allclose(predictions(tmp_path, tmp_path / "train.onnx", data), plain, rtol=1e-5, atol=1e-6)
    fit(tmp_path, tmp_path / "train.onnx", data, tmp_path / "run")
    trained = tmp_path / "run" / "last.onnx"
    expected = predictions(tmp_path, trained, data)
    assert np.abs(expected - plain).max() > 1e-3

    tool.run("export", trained, "-o", f"{tmp_path}/peft/")
    tensors = safetensors.numpy.load_file(tmp_path / "peft" / "adapter_model.safetensors")
    shapes = {name: tensors[f"base_model.model.{name}.lora_magnitude_vector"].shape for name in ("conv", "fc1", "fc2")}
    assert shapes == {"conv": (1, 4, 1, 1), "fc1": (6,), "fc2": (6,)} and len(tensors) == 9
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["use_dora"] is True and config["lora_dropout"] == dropout

    tool.run("export", trained, "-o", tmp_path / "merged.onnx", "--merge")
    tool.run("export", trained, "-o", tmp_path / "beside.onnx")
    tool.run("export", start, "-o", tmp_path / "plain.onnx")
    np.testing.assert_allclose(predictions(tmp_path, tmp_path / "merged.onnx", data), expected, rtol=1e-5, atol=1e-6)
    x = {"x": tool.load(data)["x"]}
    for name in "merged", "beside":
        np.testing.assert_allclose(tool.session(tmp_path / f"{name}.onnx").run(None, x)[0], expected, rtol=1e-4, atol=1e-5)
    graphs = [onnx.load(tmp_path / f"{name}.onnx").graph for name in ("merged", "plain")]
    assert len({tuple((n.op_type, *n.output) for n in graph.node) for graph in graphs}) == 1
    assert len({tuple(sorted(t.name for t in graph.initializer)) for graph in graphs}) == 1

    tool.run(*build, "-o", tmp_path / "again.onnx", "--adapter", tmp_path / "peft")
    np.testing.assert_array_equal(predictions(tmp_path, tmp_path / "again.onnx", data), expected)
    tool.run("build", tmp_path / "beside.onnx", "-o", tmp_path / "again.onnx", "--loss", "cross_entropy")
    np.testing.assert_allclose(predictions(tmp_path, tmp_path / "again.onnx", data), expected, rtol=1e-5, atol=1e-6)
    del tensors["base_model.model.fc1.lora_magnitude_vector"]
    safetensors.numpy.save_file(tensors, tmp_path / "peft" / "adapter_model.safetensors")
    error = tool.run(*build, "-o", tmp_path / "t.onnx", "--adapter", tmp_path / "peft", status=1)
    assert "there is no 'base_model.model.fc1.lora_magnitude_vector'" in error


def test_dora_starts_from_what_rounding_has_left(tmp_path):
    gpt = tool.ROOT / "models" / "gpt.onnx"
    model = ["build", gpt, "--loss", "cross_entropy", "--quantize-base", "int4"]
    tokens = np.random.default_rng(0).integers(0, 128, (2, 128))
    data = tool.save(tmp_path / "data.npz", {"tokens": tokens})
    logits = []
    for dora in "false", "true":
        tool.run(*model, "-o", tmp_path / f"{dora}.onnx", "--lora", f"rank=2,dora={dora}")
        tool.run("predict", tmp_path / f"{dora}.onnx", "--inputs", data, "-o", tmp_path / "y.npz")
        logits.append(next(iter(tool.load(tmp_path / "y.npz").values())))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-5)


def test_dropout_of_an_adapter_is_off_in_inference(net, tmp_path):
    _, folder, _ = net
    for dropout in 0, 0.5:
        tool.run("build", folder / "float32.onnx", "-o", tmp_path / f"{dropout}.onnx", "--loss", "cross_entropy",
                 "--lora", f"rank=2,dropout={dropout}")  # fmt: skip
    data = folder / "float32.npz"
    same = [predictions(tmp_path, tmp_path / f"{dropout}.onnx", data) for dropout in (0, 0.5)]
    np.testing.assert_array_equal(*same)
    losses = [fit(tmp_path, tmp_path / f"{d}.onnx", data, tmp_path / f"run{d}") for d in (0, 0.5)]
    assert losses[0][0] == losses[1][0] and losses[0][-1] != losses[1][-1]  # B is zero in the first step


def test_a_new_head_on_digits_learns(tmp_path):
    data = tool.load(tool.ROOT / "models" / "data" / "digits_train.npz")
    tool.save(tmp_path / "data.npz", {"image": data["image"][:256], "labels": data["labels"][:256] % 3})
    checked = tool.run("check", DIGITS, "--head", "logits=3")
    assert "outputs" in checked and "logits  float[batch,3]" in checked and "--head logits=3" in checked
    tool.run("build", DIGITS, "-o", tmp_path / "train.onnx", "--head", "logits=3", "--loss", "cross_entropy")
    tool.run("fit", tmp_path / "train.onnx", "--data", tmp_path / "data.npz", "--epochs", 3, "--batch-size", 32, "--lr",
             0.003, "--out", tmp_path / "run")  # fmt: skip
    losses = tool.losses(tmp_path / "run")
    assert 0.7 < losses[0] and losses[-4:].mean() < 0.4


def test_bert_gets_a_head_and_adapters_by_the_names_of_its_module(exported, tmp_path):
    example, path = exported("bert")
    data = tmp_path / "data.npz"
    tool.save(data, reference.arrays(example))
    printed = tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--head", "logits=5",
                       "--lora", "rank=2,targets=query,value", "--optimizer", "adamw(lr=0.01)")  # fmt: skip
    assert "has 5 outputs in place of 3" in printed and "on 4 layers" in printed
    trained = {b.key for info in onnx.load(tmp_path / "train.onnx").training_info for b in info.update_binding}
    weights = {name for name in trained if not name.startswith("state/")}
    attention = {name.split("attention.self.")[1] for name in weights if "attention" in name}
    assert attention == {f"{layer}.lora_{part}.weight" for layer in ("query", "value") for part in "AB"}
    assert sum("classifier" in name for name in weights) == 2 and len(weights) == 10
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 10, "--batch-size", 3, "--out", tmp_path / "run")
    losses = tool.losses(tmp_path / "run")
    assert losses[-1] < losses[0]


def test_a_model_is_cut_and_another_joined(net, tmp_path):
    _, folder, _ = net
    base = folder / "float32.onnx"
    graph = onnx.load(base).graph
    inner = next(n.output[0] for n in reversed(graph.node) if n.op_type == "Tanh")
    end = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> end (float[N,6] "{inner}") => (float[N,2] scores)'
        f' <float[6,2] "end.weight" = {{1,0,0,0,0,0,0,0,0,0,0,0}}> {{ scores = MatMul("{inner}", "end.weight") }}'
    )
    onnx.save(end, tmp_path / "end.onnx")
    printed = tool.run("build", base, "-o", tmp_path / "train.onnx", "--cut", inner, "--join", tmp_path / "end.onnx",
                       "--loss", "cross_entropy")  # fmt: skip
    assert "the model ends at" in printed and "the outputs are 'scores'" in printed
    made = onnx.load(tmp_path / "train.onnx").graph
    assert [o.name for o in made.output] == ["scores"]
    names = {t.name for t in made.initializer}
    assert "end.weight" in names and not any(name.startswith("head") for name in names)


def test_weights_go_in_and_out_as_safetensors(net, tmp_path):
    module, folder, _ = net
    state = {name: value.float().numpy() for name, value in module.state_dict().items()}
    tool.run("build", folder / "float32.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy")
    tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "weights.safetensors")
    written = safetensors.numpy.load_file(tmp_path / "weights.safetensors")
    assert set(written) == set(state)
    for name, value in state.items():
        np.testing.assert_array_equal(written[name], value)
    other = {name: torch.full(v.shape, 0.5, dtype=torch.bfloat16) for name, v in module.state_dict().items()}
    safetensors.torch.save_file(other | {"stranger": torch.ones(2)}, tmp_path / "other.safetensors")
    printed = tool.run("build", folder / "float32.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy",
                       "--weights", tmp_path / "other.safetensors")  # fmt: skip
    assert "7 tensors from" in printed and "not in the model: 'stranger'" in printed
    assert all((weights_of(tmp_path / "train.onnx")[name] == 0.5).all() for name in state)
    arrays = tool.load(folder / "float32.npz")
    safetensors.numpy.save_file(arrays, tmp_path / "data.safetensors")
    tool.run("fit", tmp_path / "train.onnx", "--data", tmp_path / "data.safetensors", "--steps", 2, "--out", tmp_path / "run")
    tool.run("predict", tmp_path / "train.onnx", "--inputs", tmp_path / "data.safetensors", "-o", tmp_path / "y.safetensors")
    y = safetensors.numpy.load_file(tmp_path / "y.safetensors")["logits"]
    np.testing.assert_array_equal(y, predictions(tmp_path, tmp_path / "train.onnx", folder / "float32.npz"))


def test_a_file_with_some_of_the_weights_is_refused_unless_it_is_meant(net, tmp_path):
    import onnx_train

    weights = {name: np.full(value.shape, 0.5, np.float32) for name, value in net[0].state_dict().items()}
    del weights["fc2.weight"]
    path = tmp_path / "some.safetensors"
    safetensors.numpy.save_file(weights, path)
    build = ["build", net[1] / "float32.onnx", "-o", tmp_path / "t.onnx", "--loss", "cross_entropy", "--weights", path]
    message = "has 6 of the model's 7 weights, and not 'fc2.weight': --weights-partial leaves those as they are"
    assert message in tool.run(*build, status=1) and not (tmp_path / "t.onnx").exists()
    assert "not in the file, as they were: 'fc2.weight'" in tool.run(*build, "--weights-partial")
    given = dict(loss="cross_entropy", weights=path)
    with pytest.raises(onnx_train.DataError, match="has 6 of the model's 7 weights"):
        onnx_train.build(net[1] / "float32.onnx", **given)
    some = onnx_train.build(net[1] / "float32.onnx", weights_partial=True, **given)
    assert "as they were: 'fc2.weight'" in some.metadata["onnx_train.adapted"]


class Block(torch.nn.Module):
    """Layers that PyTorch's older exporter transposes, in containers, and products that are no nn.Linear."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.ModuleDict({"q": torch.nn.Linear(6, 4)})
        self.k = torch.nn.Linear(6, 4, bias=False)
        self.after = torch.nn.Sequential(
            torch.nn.Linear(4, 5, bias=False), torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(5, 4)), torch.nn.LayerNorm(4)
        )
        self.twice = torch.nn.Linear(4, 4, bias=False)
        self.free = torch.nn.Parameter(torch.randn(5, 4))

    def forward(self, x):
        h = self.after(self.inner["q"](x) * self.k(x))
        return F.linear(self.twice(torch.tanh(self.twice(h))), self.free).mean(1)


def test_weights_that_an_exporter_has_transposed_have_the_names_of_the_module(tmp_path):
    module, x = Block(), torch.randn(6, 3, 6)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    export(module, {"x": x}, tmp_path / "model.onnx", "torchscript", True)
    build = ["build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy"]
    tool.run(*build)
    said = tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "w.safetensors")
    assert "transposed, by the names of the module that their nodes tell: 'onnx::MatMul_" in said
    weights = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    rest = [name for name in weights if name.startswith("onnx::MatMul_")]  # of two calls, and of no module
    assert weights.keys() - rest == state.keys() - {"twice.weight", "free"} and len(rest) == 2
    for name in weights.keys() - rest:
        np.testing.assert_array_equal(weights[name], state[name], err_msg=name)

    # What was written is read, and so is the module's own file.
    changed = {name: 2 * value for name, value in weights.items()}
    safetensors.numpy.save_file(changed, tmp_path / "changed.safetensors")
    assert "not in the model" not in tool.run(*build, "--weights", tmp_path / "changed.safetensors")
    tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "again.npz")
    again = tool.load(tmp_path / "again.npz")
    assert again.keys() == changed.keys()
    for name, value in changed.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    safetensors.numpy.save_file(state, tmp_path / "module.safetensors")
    assert "'onnx::MatMul_" in tool.run(*build, "--weights", tmp_path / "module.safetensors", status=1)
    said = tool.run(*build, "--weights", tmp_path / "module.safetensors", "--weights-partial")
    assert "not in the model: 'free', 'twice.weight'; not in the file, as they were: 'onnx::MatMul_" in said


def test_a_module_in_a_container_has_one_name(tmp_path):
    """A scope of PyTorch's older exporter repeats the name of a Sequential, and lacks that of a ModuleDict."""
    torch.manual_seed(0)

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
            self.heads = torch.nn.ModuleDict({"q": torch.nn.Linear(4, 3)})

        def forward(self, x):
            return self.heads["q"](self.net(x))

    module = Layers()
    export(module, {"x": torch.randn(6, 4)}, tmp_path / "model.onnx", "torchscript", True)
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy")
    tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "w.npz")
    assert tool.load(tmp_path / "w.npz").keys() == module.state_dict().keys()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--head", "logit=3"], "the model has no output 'logit'; it has 'logits'; did you mean 'logits'?"),
        (["--head", "logits=x"], "write OUTPUT=N, such as logits=3"),
        (["--cut", "nowhere"], "the model has no value 'nowhere'"),
        (["--cut", "x"], "'x' is an input, which no node computes"),
        (["--join", "missing.onnx"], "missing.onnx"),
        (["--lora", "targets=nothing"], "'nothing' matches none of the 4 linear layers"),
        (["--lora", "dora=yes"], "dora is 'yes'; take true or false"),
        (["--lora", "rank=8", "--bitfit"], "take one of --lora, --ia3, --bitfit and --adapter"),
        (["--lora", "rank=8", "--init", "kaiming"], "adapters have initial values of their own"),
        (["--adapter", "nowhere"], "nowhere/adapter_config.json"),
        (["--weights-partial"], "--weights-partial is of --weights FILE"),
        (["--weights", "missing.npz"], "there is no data at missing.npz"),
        (["--ia3", "targets=fc1,feedforward="], "feedforward takes patterns"),
    ],
)
def test_what_does_not_fit_is_one_line(net, tmp_path, options, message):
    build = ["build", net[1] / "float32.onnx", "-o", tmp_path / "t.onnx", "--loss", "cross_entropy"]
    assert message in tool.run(*build, *options, status=1)
    assert not (tmp_path / "t.onnx").exists()


def test_an_adapter_that_is_none_is_refused(net, tmp_path):
    build = ["build", net[1] / "float32.onnx", "-o", tmp_path / "t.onnx", "--loss", "cross_entropy"]
    folder = tmp_path / "adapter"
    folder.mkdir()

    def error(config, tensors):
        (folder / "adapter_config.json").write_text(json.dumps(config))
        safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
        return tool.run(*build, "--adapter", folder, status=1)

    prefix, ones = "base_model.model.fc1.", np.ones
    good = {prefix + "lora_A.weight": ones((2, 4), np.float32), prefix + "lora_B.weight": ones((6, 2), np.float32)}
    lora = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    assert "peft_type is 'PREFIX_TUNING'" in error({"peft_type": "PREFIX_TUNING"}, good)
    assert "'use_qalora' are not supported" in error(lora | {"use_qalora": True}, good)
    assert "there is no 'base_model.model.fc1.lora_magnitude_vector'" in error(lora | {"use_dora": True}, good)
    assert "rank is '-1'" in error(lora | {"r": -1}, good)
    assert "has the shape [2,4]; the model's has [3,4]" in error(lora | {"r": 3}, good)
    assert "does not start with base_model.model." in error(lora, {"x": ones(1, np.float32)})
    assert "'fc9' matches none" in error(lora, {k.replace("fc1", "fc9"): v for k, v in good.items()})
    (folder / "adapter_config.json").write_text("[")
    assert "is no JSON object" in tool.run(*build, "--adapter", folder, status=1)
    base = ["export", net[1] / "float32.onnx", "-o"]
    tool.run("build", net[1] / "float32.onnx", "-o", tmp_path / "plain.onnx", "--loss", "cross_entropy")
    base = ["export", tmp_path / "plain.onnx", "-o"]
    assert "has no adapters" in tool.run(*base, tmp_path / "m.onnx", "--merge", status=1)
    assert "has no adapters" in tool.run(*base, f"{tmp_path}/peft/", status=1)


def test_the_package_takes_the_same_options():
    import onnx_train

    lora = {"rank": 2, "alpha": 4, "rslora": True, "targets": ["features.0", "classifier.1"]}
    training = onnx_train.build(DIGITS, "cross_entropy", head={"logits": 3}, lora=lora)
    assert "rslora=true: on 2 layers (features.0, classifier.1)" in training.metadata["onnx_train.adapted"]
    trained = {port.name for port in onnx_train.Session(training).states() if not port.role}
    parts = {f"{layer}.lora_{part}.weight" for layer in lora["targets"] for part in "AB"}
    assert trained == parts | {"classifier.4.weight", "classifier.4.bias"}
    with pytest.raises(onnx_train.Error, match="no output 'logit'; it has 'logits'"):
        onnx_train.build(DIGITS, "cross_entropy", head={"logit": 3})


def test_the_package_exports_as_the_command_does(tmp_path):
    import onnx_train

    training = onnx_train.build(DIGITS, "cross_entropy", lora={"rank": 2, "targets": ["classifier.1"]}, seed=3)
    training.save(tmp_path / "train.onnx")
    training.save_adapter(tmp_path / "package")
    tool.run("export", tmp_path / "train.onnx", "-o", f"{tmp_path}/command/")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "package" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "merged.onnx", "--merge", "--dtype", "int4,block=16")
    merged = training.export(merge=True, dtype="int4,block=16")
    merged.save(tmp_path / "package.onnx")
    assert onnx.load(tmp_path / "package.onnx") == onnx.load(tmp_path / "merged.onnx")
    again = onnx_train.Session(training).export(tmp_path / "again.onnx", merge=True)
    image = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    expected = onnx_train.Session(training).predict(image).logits
    np.testing.assert_allclose(onnx_train.Session(again).predict(image).logits, expected, atol=1e-5)
    assert len(merged.to_bytes()) < 0.3 * len(training.export(merge=True).to_bytes())
    with pytest.raises(onnx_train.Error, match="add --merge"):
        training.export(dtype="int8")
    for option in (("--dtype", "int8"), ("--tta", "flip"), ("--original-types",)):
        message = tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "w.safetensors", *option, status=1)
        assert "holds float32 weights alone: take a .onnx file" in message and not (tmp_path / "w.safetensors").exists()


@pytest.mark.parametrize("method", [{"lora": "rank=2,alpha=4"}, {"lora": "rank=2,alpha=4,dora=true"}, {"ia3": "targets=fc1,conv"}])
def test_adapters_are_swapped_in_a_session(net, tmp_path, method):
    import onnx_train

    base, data = net[1] / "float32.onnx", tool.load(net[1] / "float32.npz")
    expected = {}
    for name, rate, alpha in (("first", 0.02, 4), ("second", 0.1, 6)):
        options = {key: value.replace("alpha=4", f"alpha={alpha}") for key, value in method.items()}
        trained = onnx_train.Session(onnx_train.build(base, "cross_entropy", head={"logits": 4}, **options))
        onnx_train.fit(trained, data, epochs=4, batch_size=6, lr=rate)
        trained.model().save_adapter(tmp_path / name)
        expected[name] = trained.predict(data["x"]).logits
    assert np.abs(expected["first"] - expected["second"]).max() > 1e-2
    session = onnx_train.Session(onnx_train.build(base, "cross_entropy", head={"logits": 4}, **method))
    session.predict(data["x"])
    for name in expected:
        session.load_adapter(name, tmp_path / name)
    for name in ("second", "first", "second"):
        session.set_adapter(name)
        np.testing.assert_allclose(session.predict(data["x"]).logits, expected[name], rtol=1e-5, atol=1e-6)
    with pytest.raises(onnx_train.UsageError, match="no adapter 'secnd' has been loaded into the session; did you mean 'second'"):
        session.set_adapter("secnd")
    other = {"ia3": "targets=fc1"} if "ia3" in method else {"lora": "rank=3"}
    with pytest.raises(onnx_train.DataError):
        onnx_train.Session(onnx_train.build(base, "cross_entropy", head={"logits": 4}, **other)).load_adapter("x", tmp_path / "first")
    with pytest.raises(onnx_train.UsageError, match="has no adapters of PEFT"):
        onnx_train.Session(onnx_train.build(base, "cross_entropy")).load_adapter("x", tmp_path / "first")
    with pytest.raises(onnx_train.FileError, match="nowhere"):
        session.load_adapter("x", tmp_path / "nowhere")
