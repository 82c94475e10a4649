"""Sums of adapters, by the formulas of PEFT's add_weighted_adapter: what is written as a folder, as ONNX Runtime's file, merged."""

import json

import numpy as np
import onnx
import pytest
import safetensors.numpy
import tool

import onnx_train

SIZES = {"fc1": (4, 6), "fc2": (6, 5)}  # inputs, outputs
PREFIX = "base_model.model."


WEIGHTS = {"fc1.weight": (6, 4), "fc2.weight": (5, 6), "head.weight": (3, 5)}


def network():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        net (float[N, 4] x) => (float[N, 3] y) <float[6, 4] fc1_weight, float[5, 6] fc2_weight, float[3, 5] head_weight>
        { a = Gemm<transB = 1>(x, fc1_weight)
          b = Tanh(a)
          c = Gemm<transB = 1>(b, fc2_weight)
          d = Tanh(c)
          y = Gemm<transB = 1>(d, head_weight) }""")
    for node in model.graph.node:  # the text's names have no points
        node.input[:] = [name.replace("_", ".") for name in node.input]
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


def write_adapter(folder, seed, layers, rank, alpha, **more):
    """As PEFT writes it; returns A, B and the scale of each layer."""
    rng, tensors, parts = np.random.default_rng(seed), {}, {}
    for layer in layers:
        inputs, outputs = SIZES[layer]
        r = more.get("rank_pattern", {}).get(layer, rank)
        a, b = rng.normal(size=(r, inputs)).astype(np.float32), rng.normal(size=(outputs, r)).astype(np.float32)
        tensors |= {f"{PREFIX}{layer}.lora_A.weight": a, f"{PREFIX}{layer}.lora_B.weight": b}
        parts[layer] = a, b, alpha / (np.sqrt(r) if more.get("use_rslora") else r)
    tensors |= more.pop("besides", {})
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(layers)} | more
    (folder / "adapter_config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
    return parts


def delta(folder, layer):
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
    a, b = (tensors[f"{PREFIX}{layer}.lora_{part}.weight"].astype(np.float64) for part in "AB")
    rank = config["rank_pattern"].get(f"^{layer}", config["r"])
    assert rank == len(a)
    return b @ a * config["alpha_pattern"].get(f"^{layer}", config["lora_alpha"]) / rank


def test_a_sum_is_what_peft_computes(tmp_path):
    one = write_adapter(tmp_path / "one", 1, SIZES, 2, 4)
    two = write_adapter(tmp_path / "two", 2, ["fc2"], 3, 8, use_rslora=True, rank_pattern={"fc2": 3})
    built = onnx_train.build(network(), "mse", adapter=[tmp_path / "one", f"{tmp_path}/two=-0.5"])
    assert "combined by cat: 1 times" in built.metadata["onnx_train.adapted"]
    built.save_adapter(tmp_path / "sum")
    expected = {layer: scale * b.astype(float) @ a for layer, (a, b, scale) in one.items()}
    a, b, scale = two["fc2"]
    expected["fc2"] = expected["fc2"] - 0.5 * scale * b.astype(float) @ a
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in network().graph.initializer}
    (tmp_path / "merged.onnx").write_bytes(built.export(merge=True).to_bytes())
    merged = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "merged.onnx").graph.initializer}
    for layer, sum in expected.items():
        np.testing.assert_allclose(delta(tmp_path / "sum", layer), sum, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(merged[f"{layer}.weight"], weights[f"{layer}.weight"] + sum, rtol=1e-5, atol=1e-5)
    # The folder is an adapter like others, and what ONNX Runtime serves is the same.
    again = onnx_train.build(network(), "mse", adapter=tmp_path / "sum")
    x = np.random.default_rng(3).normal(size=(2, 4)).astype(np.float32)
    y = onnx_train.Session(built, threads=1).predict(x).y
    np.testing.assert_allclose(onnx_train.Session(again, threads=1).predict(x).y, y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tool.session(tmp_path / "merged.onnx").run(None, {"x": x})[0], y, rtol=1e-4, atol=1e-5)
    built.save_adapter(tmp_path / "sum.onnx_adapter")
    assert (tmp_path / "sum.onnx_adapter").stat().st_size > 0


def test_linear_sums_are_sums_of_the_parts(tmp_path):
    one, two = (write_adapter(tmp_path / name, seed, SIZES, 2, alpha) for name, seed, alpha in (("one", 1, 4), ("two", 2, 1)))
    built = onnx_train.build(network(), "mse", adapter=[f"{tmp_path}/one=0.7", f"{tmp_path}/two=-0.3", "combination=linear"])
    built.save_adapter(tmp_path / "sum")
    for layer in SIZES:
        roots = [np.sqrt(abs(w * parts[layer][2])) for w, parts in ((0.7, one), (-0.3, two))]
        a = roots[0] * one[layer][0].astype(float) - roots[1] * two[layer][0]
        b = roots[0] * one[layer][1].astype(float) + roots[1] * two[layer][1]
        np.testing.assert_allclose(delta(tmp_path / "sum", layer), b @ a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pieces, message", [
    (["one", "two", "combination=linear"], "'fc1' has ranks 2 and 3; combination=cat takes any"),
    (["one", "two=x"], "write DIR=WEIGHT"),
    (["one", "missing"], "missing/adapter_config.json"),
    (["combination=cat"], "needs the folder of an adapter"),
    (["one", "dora"], "sums are of LoRA's adapters without DoRA"),
    (["one", "ia3"], "sums are of LoRA's adapters without DoRA"),
    (["head", "head=2"], "'head.weight' was trained beside several"),
])  # fmt: skip
def test_what_has_no_sum_is_one_line(tmp_path, monkeypatch, pieces, message):
    monkeypatch.chdir(tmp_path)
    write_adapter(tmp_path / "one", 1, SIZES, 2, 4)
    write_adapter(tmp_path / "two", 2, SIZES, 3, 4)
    head = {PREFIX + "head.weight": np.ones((3, 5), np.float32)}
    write_adapter(tmp_path / "head", 1, SIZES, 2, 4, besides=head, modules_to_save=["head"])
    magnitudes = {f"{PREFIX}{layer}.lora_magnitude_vector": np.ones(out, np.float32) for layer, (_, out) in SIZES.items()}
    write_adapter(tmp_path / "dora", 1, SIZES, 2, 4, use_dora=True, besides=magnitudes)
    write_adapter(tmp_path / "ia3", 1, [], 2, 4, besides={PREFIX + "fc1.ia3_l": np.ones((6, 1), np.float32)})
    (tmp_path / "ia3" / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3", "target_modules": ["fc1"]}))
    with pytest.raises(onnx_train.Error) as error:
        onnx_train.build(network(), "mse", adapter=pieces)
    assert message in str(error.value) and "\n" not in str(error.value)
