"""Adapters beside GPT-2's Conv1D, whose weights are [in, out]: PEFT calls them fan_in_fan_out."""

import json

import networks
import numpy as np
import pytest
import safetensors.numpy
import tool
import torch
from export import export
from transformers.pytorch_utils import Conv1D

TARGETS = ["c_attn", "c_proj", "c_fc"]
LAYERS = [f"model.transformer.h.0.{name}" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """(module, file, data)"""
    folder = tmp_path_factory.mktemp("gpt2")
    network = networks.gpt2(blocks=1)
    export(network.module, network.inputs, folder / "gpt2.onnx")
    tokens = network.inputs["input_ids"].numpy()
    tool.save(folder / "data.npz", {"input_ids": tokens, "labels": np.roll(tokens, -1, 1)})
    return network.module.eval(), folder / "gpt2.onnx", folder / "data.npz"


def predictions(folder, model, data):
    tool.run("predict", model, "--inputs", data, "-o", folder / "out.npz")
    return tool.load(folder / "out.npz")["logits"]


def trained(folder, gpt2, *lora):
    """A folder in PEFT's format, and the logits of the trained model."""
    _, model, data = gpt2
    tool.run("build", model, "-o", folder / "train.onnx", "--loss", "cross_entropy", *lora)
    tool.run("fit", folder / "train.onnx", "--data", data, "--steps", 5, "--lr", 0.03, "--out", folder / "run")
    tool.run("export", folder / "run" / "last.onnx", "-o", f"{folder}/peft/")
    return folder / "peft", predictions(folder, folder / "run" / "last.onnx", data)


METHODS = {
    "lora": ["--lora", f"rank=2,alpha=4,targets={','.join(TARGETS)}"],
    "dora": ["--lora", f"rank=2,alpha=4,dora=true,targets={','.join(TARGETS)}"],
    "ia3": ["--ia3", "targets=c_attn,feedforward=mlp.c_proj"],
}


@pytest.mark.parametrize("method", METHODS)
def test_the_file_says_fan_in_fan_out_and_its_matrices_change_the_weights_of_conv1d(gpt2, tmp_path, method):
    module, model, data = gpt2
    folder, expected = trained(tmp_path, gpt2, *METHODS[method])
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["fan_in_fan_out"] is True
    tensors = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    if method == "ia3":
        scales = {name: torch.from_numpy(tensors[f"base_model.model.{name}.ia3_l"]) for name in config["target_modules"]}
        assert {tuple(scale.shape) for scale in scales.values()} == {(96, 1), (1, 128)}
        for name, scale in scales.items():
            weights[f"{name}.weight"] *= scale.T
            if scale.shape[1] == 1:
                weights[f"{name}.bias"] *= scale[:, 0]
    else:
        assert config["target_modules"] == sorted(LAYERS)
        for name in LAYERS:
            a, b = (torch.from_numpy(tensors[f"base_model.model.{name}.lora_{part}.weight"]) for part in "AB")
            changed = weights[f"{name}.weight"].T + 2 * b @ a
            if method == "dora":
                magnitude = torch.from_numpy(tensors[f"base_model.model.{name}.lora_magnitude_vector"])
                changed *= (magnitude / changed.norm(dim=1))[:, None]
            weights[f"{name}.weight"] = changed.T
    with torch.no_grad():
        ids = torch.from_numpy(tool.load(data)["input_ids"])
        actual = torch.func.functional_call(module, weights, (ids,)).numpy()
        assert np.abs(actual - module(ids).numpy()).max() > 5e-3
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)

    tool.run("build", model, "-o", tmp_path / "again.onnx", "--loss", "cross_entropy", "--adapter", folder)
    np.testing.assert_array_equal(predictions(tmp_path, tmp_path / "again.onnx", data), expected)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("optimize", [False, True])
def test_a_linear_layer_is_told_from_conv1d_whatever_the_exporter_made_of_it(tmp_path, exporter, optimize):
    for layer, is_fan_in_fan_out in (torch.nn.Linear(3, 4), False), (Conv1D(4, 3), True):
        module = torch.nn.Sequential(layer, torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
        export(module, {"x": torch.zeros(2, 5, 3)}, tmp_path / "x.onnx", exporter, optimize)
        tool.run("build", tmp_path / "x.onnx", "-o", tmp_path / "t.onnx", "--loss", "mse", "--lora", "rank=1")
        tool.run("export", tmp_path / "t.onnx", "-o", f"{tmp_path}/peft/")
        config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
        assert config["fan_in_fan_out"] is is_fan_in_fan_out and config["target_modules"] == ["0"]


@pytest.mark.parametrize("method", METHODS)
def test_peft_reads_what_is_written_and_the_other_way_around(gpt2, tmp_path, method, recwarn):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    _, model, data = gpt2
    folder, expected = trained(tmp_path, gpt2, *METHODS[method])
    ids = torch.from_numpy(tool.load(data)["input_ids"])
    with torch.no_grad():
        wrapped = peft.PeftModel.from_pretrained(networks.gpt2(blocks=1).module, folder).eval()
        np.testing.assert_allclose(wrapped(ids).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert not [w for w in recwarn if "fan_in_fan_out" in str(w.message)]

    if method == "ia3":
        config = peft.IA3Config(target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"],
                                fan_in_fan_out=True, init_ia3_weights=False)  # fmt: skip
    else:
        config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=TARGETS, fan_in_fan_out=True,
                                 use_dora=method == "dora", init_lora_weights=False)  # fmt: skip
    torch.manual_seed(1)
    theirs = peft.get_peft_model(networks.gpt2(blocks=1).module, config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tool.run("build", model, "-o", tmp_path / "from.onnx", "--loss", "cross_entropy", "--adapter", tmp_path / "theirs")
    with torch.no_grad():
        np.testing.assert_allclose(predictions(tmp_path, tmp_path / "from.onnx", data), theirs(ids).numpy(), rtol=1e-4,
                                   atol=1e-4)  # fmt: skip
