"""Language models as users export them: wrapped in a module of their own, with a tied embedding, in four bits."""

import json

import networks
import numpy as np
import onnx
import onnxruntime.quantization.matmul_nbits_quantizer as nbits
import pytest
import safetensors.numpy
import tool
import torch
from export import export
from onnxruntime.quantization.quant_utils import QuantFormat

PREFIX = "base_model.model."
EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """(module, file, data): the module holds a GPT-2 of transformers as `model`, whose embedding is its head."""
    folder = tmp_path_factory.mktemp("gpt2")
    network = networks.gpt2(blocks=1, tied=True)
    export(network.module, network.inputs, folder / "gpt2.onnx")
    tokens = network.inputs["input_ids"].numpy()
    tool.save(folder / "data.npz", {"input_ids": tokens, "labels": np.roll(tokens, -1, 1)})
    return network.module.eval(), folder / "gpt2.onnx", folder / "data.npz"


def predictions(folder, model, data):
    tool.run("predict", model, "--inputs", data, "-o", folder / "out.npz")
    return tool.load(folder / "out.npz")["logits"]


def own_name(model):
    """The one name that the exporter has left of the shared weight, without the prefix."""
    names = {t.name for t in onnx.load(model).graph.initializer}
    (name,) = {f"model.{EMBEDDING}", f"model.{HEAD}"} & names
    return name


def test_a_tied_weight_is_saved_for_each_module_that_reads_it(gpt2, tmp_path):
    module, model, data = gpt2
    tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--lora", "rank=2,targets=c_attn",
             "--train", own_name(model))  # fmt: skip
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 5, "--lr", 0.03, "--out", tmp_path / "run")
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", f"{tmp_path}/peft/", "--rename", "model.*=*")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    tensors = safetensors.numpy.load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert config["modules_to_save"] == ["lm_head", "transformer.wte"]
    np.testing.assert_array_equal(tensors[PREFIX + EMBEDDING], tensors[PREFIX + HEAD])

    # PEFT puts a copy of its own in the place of each module that is saved.
    expected = predictions(tmp_path, tmp_path / "run" / "last.onnx", data)
    inner = networks.gpt2(blocks=1, tied=True).module.eval()
    inner.load_state_dict(module.state_dict())
    with torch.no_grad():
        layer = inner.model.transformer.h[0].attn.c_attn
        a, b = (torch.from_numpy(tensors[f"{PREFIX}transformer.h.0.attn.c_attn.lora_{part}.weight"]) for part in "AB")
        layer.weight += (config["lora_alpha"] / config["r"]) * (b @ a).T
        inner.model.lm_head.weight = torch.nn.Parameter(torch.from_numpy(tensors[PREFIX + HEAD]))
        inner.model.transformer.wte.weight = torch.nn.Parameter(torch.from_numpy(tensors[PREFIX + EMBEDDING]))
        logits = inner(torch.from_numpy(tool.load(data)["input_ids"])).numpy()
    np.testing.assert_allclose(logits, expected, atol=2e-5)

    # Without the prefix of the wrapped module, and with two names of one weight, it is read again.
    again = tool.run("build", model, "-o", tmp_path / "again.onnx", "--loss", "cross_entropy", "--adapter", tmp_path / "peft")
    assert "with 'model.' before its names" in again
    np.testing.assert_array_equal(predictions(tmp_path, tmp_path / "again.onnx", data), expected)

    tensors[PREFIX + EMBEDDING] = tensors[PREFIX + EMBEDDING] + 1
    safetensors.numpy.save_file(tensors, tmp_path / "peft" / "adapter_model.safetensors")
    refused = tool.run("build", model, "-o", tmp_path / "again.onnx", "--adapter", tmp_path / "peft", status=1)
    assert "differ, and are one weight in the model" in refused


def test_an_adapter_of_a_tied_head_is_merged_into_the_head_alone(gpt2, tmp_path):
    module, model, data = gpt2
    build = ["build", model, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy"]
    for target in "wte", "model.transformer.wte.weight", "wte,lm_head":  # PEFT has adapters of embeddings
        error = tool.run(*build, "--lora", f"rank=2,targets={target}", status=1)
        assert "is an embedding, node " in error and "the layer that shares its weight, 'model.lm_head'" in error
    tool.run(*build, "--lora", "rank=2,targets=lm_head")
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 5, "--lr", 0.05, "--out", tmp_path / "run")
    trained = tmp_path / "run" / "last.onnx"
    expected = predictions(tmp_path, trained, data)
    tool.run("export", trained, "-o", f"{tmp_path}/peft/", "--rename", "model.*=*")
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["target_modules"] == ["lm_head"]

    said = tool.run("export", trained, "-o", tmp_path / "merged.safetensors", "--merge", "--rename", "model.*=*")
    assert "no longer tied: the adapter is in 'model.lm_head.weight', and 'model.transformer.wte.weight'" in said
    weights = safetensors.torch.load_file(tmp_path / "merged.safetensors")
    np.testing.assert_array_equal(weights[EMBEDDING], module.model.transformer.wte.weight.detach())
    assert (weights[HEAD] - weights[EMBEDDING]).abs().max() > 1e-2
    network = networks.gpt2(blocks=1, tied=False).module.model.eval()  # transformers: tie_word_embeddings=False
    missing = network.load_state_dict(weights, strict=False).missing_keys
    assert not [name for name in missing if not name.endswith("attn.bias")]
    tokens = torch.from_numpy(tool.load(data)["input_ids"])
    with torch.no_grad():
        np.testing.assert_allclose(network(input_ids=tokens).logits, expected, atol=2e-5)

    assert "no longer tied" in tool.run("export", trained, "-o", tmp_path / "merged.onnx", "--merge")
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "merged.onnx").graph.initializer}
    for name in HEAD, EMBEDDING:
        np.testing.assert_array_equal(stored[f"model.{name}"], weights[name])
    served = tool.session(tmp_path / "merged.onnx").run(None, {"input_ids": tokens.numpy()})[0]
    np.testing.assert_allclose(served, expected, atol=2e-5)


def test_weights_of_the_module_inside_are_read_and_written(gpt2, tmp_path):
    module, model, data = gpt2
    inner = networks.gpt2(blocks=1, tied=True).module.model
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in inner.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    weights = {name: tensor.numpy() for name, tensor in inner.state_dict().items() if name != HEAD}
    safetensors.numpy.save_file(weights, tmp_path / "hf.safetensors")
    said = tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--weights", tmp_path / "hf.safetensors")
    assert "with 'model.' before its names" in said and "as they were" not in said and "not in the model" not in said
    with torch.no_grad():
        expected = inner(input_ids=torch.from_numpy(tool.load(data)["input_ids"])).logits.numpy()
    np.testing.assert_allclose(predictions(tmp_path, tmp_path / "train.onnx", data), expected, atol=2e-5)

    tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "ours.safetensors", "--rename", "model.*=*")
    written = safetensors.torch.load_file(tmp_path / "ours.safetensors")
    fresh = networks.gpt2(blocks=1, tied=True).module.model
    assert not fresh.load_state_dict(written, strict=False).missing_keys
    for name, tensor in fresh.state_dict().items():
        np.testing.assert_array_equal(tensor, inner.state_dict()[name], err_msg=name)


class Layers(torch.nn.Module):
    """Products of [batch, tokens, width], which exporters write as MatMul."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.ModuleDict({name: torch.nn.Linear(32, 32) for name in ("query", "key")})
        self.head = torch.nn.Linear(32, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.inner["query"](x)) * self.inner["key"](x)).mean(1)


@pytest.mark.parametrize("form", ["QOperator", "QDQ", "ours"])
def test_adapters_stand_beside_weights_that_are_four_bits_in_the_file(tmp_path, form):
    x = torch.randn(6, 4, 32)
    export(Layers(), {"x": x}, tmp_path / "float.onnx", optimize=True)
    data = tool.save(tmp_path / "data.npz", {"x": x.numpy(), "labels": np.arange(6) % 3})
    if form == "ours":
        tool.run("build", tmp_path / "float.onnx", "-o", tmp_path / "floats.onnx", "--loss", "cross_entropy")
        tool.run("export", tmp_path / "floats.onnx", "-o", tmp_path / "int4.onnx", "--dtype", "int4,block=32")
    else:
        config = nbits.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, quant_format=QuantFormat[form])
        quantizer = nbits.MatMulNBitsQuantizer(onnx.load(tmp_path / "float.onnx"), algo_config=config)
        quantizer.process()
        onnx.save(quantizer.model.model, tmp_path / "int4.onnx")
    said = tool.run("build", tmp_path / "int4.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--lora", "rank=2,alpha=4")
    assert "on 2 layers (inner.query, inner.key" in said and "weights in integers, and frozen" in said
    before = predictions(tmp_path, tmp_path / "train.onnx", data)
    np.testing.assert_allclose(before, tool.session(tmp_path / "int4.onnx").run(None, {"x": x.numpy()})[0], atol=1e-5)

    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 40, "--lr", 0.02, "--out", tmp_path / "run")
    losses = tool.losses(tmp_path / "run")
    assert losses[-1] < 0.7 * losses[0]
    trained = predictions(tmp_path, tmp_path / "run" / "last.onnx", data)
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "merged.onnx", "--merge")
    merged = tool.session(tmp_path / "merged.onnx").run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(merged, trained, atol=1e-4)
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", f"{tmp_path}/peft/")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["inner.key", "inner.query"] and config["fan_in_fan_out"] is False
    tool.run("build", tmp_path / "float.onnx", "-o", tmp_path / "on_floats.onnx", "--loss", "cross_entropy", "--adapter", tmp_path / "peft")
