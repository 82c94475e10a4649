"""Trained weights go back into the files that people serve: decoders with a cache, other exporters, float16."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from export import export
from onnx import TensorProto, helper, numpy_helper
from torch import nn

VOCABULARY, WIDTH, HEADS, TOKENS = 11, 8, 2, 6
PAST = ["past_key_values.0.key", "past_key_values.0.value"]
PRESENT = ["present.0.key", "present.0.value"]


class Decoder(nn.Module):
    """One layer of a language model, whose attention reads a cache of keys and values if there is one."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids, past_key=None, past_value=None):
        x = self.embedding(input_ids)
        h = self.norm(x)
        sizes = x.shape[0], x.shape[1], HEADS, WIDTH // HEADS
        q, k, v = (layer(h).reshape(sizes).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if past_key is not None:
            k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        places, own = (torch.ones_like(heads[0, 0, :, 0]).cumsum(0) for heads in (k, q))
        later = places > (own - own[-1:] + places[-1:]).unsqueeze(1)
        weights = torch.softmax(scores - later * 1e4, -1)
        logits = self.head(self.last_norm(x + self.o((weights @ v).transpose(1, 2).reshape(x.shape))))
        return (logits, k, v) if past_key is not None else logits


def export_cached(module, path):
    """As Optimum does: PyTorch's older exporter, which gives transposed weights names of its own."""
    past = torch.zeros(2, HEADS, 3, WIDTH // HEADS)
    axes = {"input_ids": {0: "batch", 1: "tokens"}, "logits": {0: "batch", 1: "tokens"}}
    axes |= {name: {0: "batch", 2: "past"} for name in PAST} | {name: {0: "batch", 2: "total"} for name in PRESENT}
    torch.onnx.export(module.eval(), (torch.zeros(2, 2, dtype=torch.long), past, past), path, dynamo=False, opset_version=17,
                      input_names=["input_ids", *PAST], output_names=["logits", *PRESENT], dynamic_axes=axes)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the decoder without a cache, with one, and data."""
    folder = tmp_path_factory.mktemp("decoder")
    module = Decoder()
    export(module, {"input_ids": torch.zeros(2, TOKENS, dtype=torch.long)}, folder / "plain.onnx", "dynamo", True)
    export_cached(module, folder / "cached.onnx")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (16, TOKENS + 1))
    tool.save(folder / "data.npz", {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]})
    return folder


def train(folder, model, *options):
    """A run of a few steps; the logits of the trained model for the first samples."""
    data = tool.load(folder.parent / "data.npz")
    tool.run("build", model, "-o", folder / "train.onnx", "--loss", "cross_entropy", *options)
    tool.run("fit", folder / "train.onnx", "--data", folder.parent / "data.npz", "--steps", 5, "--batch-size", 8, "--lr", 0.05,
             "--out", folder / "run")  # fmt: skip
    tool.run("predict", folder / "run" / "last.onnx", "--inputs", folder.parent / "data.npz", "-o", folder / "y.npz")
    return folder / "run" / "last.onnx", data["input_ids"][:3], next(iter(tool.load(folder / "y.npz").values()))[:3]


@pytest.fixture
def place(files, request):
    folder = files / request.node.name.replace("[", "_").replace("]", "")
    folder.mkdir()
    return folder


def decode(path, ids, options=None):
    """The logits of a decoder with a cache: all tokens but two at once, then one after the other."""
    session = tool.session(path)
    is_merged = any(spec.name == "use_cache_branch" for spec in session.get_inputs())
    cache = dict.fromkeys(PAST, np.zeros((len(ids), HEADS, 0, WIDTH // HEADS), np.float32))
    parts = []
    for begin, end in (0, TOKENS - 2), (TOKENS - 2, TOKENS - 1), (TOKENS - 1, TOKENS):
        branch = {"use_cache_branch": np.array([begin > 0])} if is_merged else {}
        logits, *present = session.run(["logits", *PRESENT], {"input_ids": ids[:, begin:end], **cache, **branch}, options)
        cache = dict(zip(PAST, present))
        parts.append(logits)
    return np.concatenate(parts, 1)


def without_weights(path):
    """The model's message without what is in its float tensors."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    return model.SerializeToString(deterministic=True)


def halved(path, out):
    """Matrices as float16, which nodes cast."""
    model = onnx.load(path)
    for tensor in list(model.graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        values, name = numpy_helper.to_array(tensor), tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"w{len(model.graph.node)}"))
        model.graph.node.insert(0, helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    onnx.save(model, out)


def test_an_adapter_goes_into_a_decoder_of_another_exporter(files, place):
    trained, ids, expected = train(place, files / "plain.onnx", "--lora", "rank=2,alpha=4,targets=q,v,o")
    out = place / "out.onnx"
    said = tool.run("export", trained, "--merge", "--into", files / "cached.onnx", "-o", out)
    assert "3 trained weights in 3 tensors" in said and "transposed" in said
    np.testing.assert_allclose(decode(out, ids), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(decode(files / "cached.onnx", ids) - expected).max() > 0.1
    assert without_weights(out) == without_weights(files / "cached.onnx")
    before, after = ({t.name: t.raw_data for t in onnx.load(p).graph.initializer} for p in (files / "cached.onnx", out))
    assert sum(before[name] != after[name] for name in before) == 3

    halved(files / "cached.onnx", place / "half.onnx")
    tool.run("export", trained, "--merge", "--into", place / "half.onnx", "-o", out)
    np.testing.assert_allclose(decode(out, ids), expected, rtol=1e-2, atol=1e-2)
    assert without_weights(out) == without_weights(place / "half.onnx")


@pytest.mark.parametrize("base", ["the run's", "given"])
def test_all_weights_go_into_a_decoder_of_another_exporter(files, place, base):
    trained, ids, expected = train(place, files / "plain.onnx")
    export_into = ["export", trained, "--into", files / "cached.onnx", "-o", place / "out.onnx"]
    if base == "given":
        (place / "train.onnx").unlink()
        message = tool.run(*export_into, status=1)
        assert "was trained, and what it was before is not known" in message and "--base FILE" in message
        assert not (place / "out.onnx").exists()
        export_into += ["--base", files / "plain.onnx"]
    assert "12 trained weights in 12 tensors" in tool.run(*export_into)
    np.testing.assert_allclose(decode(place / "out.onnx", ids), expected, rtol=1e-4, atol=1e-5)
    # Both exporters store the equal weights of two norms once. Here each norm has its own.
    model = onnx.load(files / "cached.onnx")
    contents = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in [n for n in model.graph.node if n.op_type == "Identity" and n.input[0] in contents]:
        model.graph.initializer.append(numpy_helper.from_array(contents[node.input[0]], node.output[0]))
        model.graph.node.remove(node)
    onnx.save(model, place / "own.onnx")
    assert "12 trained weights in 14 tensors" in tool.run(*export_into[:3], place / "own.onnx", *export_into[4:])
    np.testing.assert_allclose(decode(place / "out.onnx", ids), expected, rtol=1e-4, atol=1e-5)


def test_a_folder_comes_out_as_it_went_in(files, place):
    served, out = place / "served", place / "out"
    (served / "more").mkdir(parents=True)
    onnx.save(onnx.load(files / "cached.onnx"), served / "decoder.onnx", save_as_external_data=True, location="decoder.data",
              size_threshold=0)  # fmt: skip
    others = {"genai_config.json": json.dumps({"model": {"decoder": {"filename": "decoder.onnx"}}}), "config.json": "{}",
              "tokenizer.json": '{"version": "1.0"}', "more/notes.txt": "kept"}  # fmt: skip
    for name, text in others.items():
        (served / name).write_text(text)
    shutil.copy(tool.ROOT / "models" / "digits_cnn.onnx", served / "more" / "other.onnx")
    trained, ids, expected = train(place, served)
    tool.run("export", trained, "--into", served, "-o", out)
    written = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert written == {*others, "more/other.onnx", "decoder.onnx", "decoder.onnx.data"}
    for name in [*others, "more/other.onnx"]:
        assert (out / name).read_bytes() == (served / name).read_bytes()
    np.testing.assert_allclose(decode(out / "decoder.onnx", ids), expected, rtol=1e-4, atol=1e-5)
    messages = [onnx.load(folder / "decoder.onnx", load_external_data=False) for folder in (served, out)]
    assert messages[0].graph.input == messages[1].graph.input and messages[0].graph.output == messages[1].graph.output
    assert messages[0].graph.node == messages[1].graph.node

    # With an adapter, and the whole folder in the place of a forward model.
    run = place / "adapted"
    tool.run("fit", served, "--data", files / "data.npz", "--steps", 3, "--lora", "rank=2", "--out", run)
    tool.run("export", run / "last.onnx", "--merge", "--into", served, "-o", out)
    tool.run("predict", run / "last.onnx", "--inputs", files / "data.npz", "-o", place / "y.npz")
    np.testing.assert_allclose(decode(out / "decoder.onnx", ids), tool.load(place / "y.npz")["logits"][:3], rtol=1e-4, atol=1e-5)


class WithoutCache(nn.Module):
    """The keys and values of all tokens, for a cache that another decoder reads."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids):
        none = torch.zeros(input_ids.shape[0], HEADS, 0, WIDTH // HEADS)
        return self.decoder(input_ids, none, none)


def merge_decoders(paths, out):
    """As Optimum does: branches of an If, with and without a cache, whose weights are in the graph around it."""
    weights, branches, inputs = {}, [], {}
    for path in paths:
        graph = onnx.load(path).graph
        names = {}
        for tensor in graph.initializer:
            key = (tuple(tensor.dims), tensor.data_type, tensor.raw_data)
            kept = weights.setdefault(key, tensor)
            names[tensor.name] = kept.name.removesuffix("_merged_0") + "_merged_0"
            kept.name = names[tensor.name]
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        inputs |= {value.name: value for value in graph.input}
        branches.append(helper.make_graph(graph.node, path.stem, [], graph.output))
    node = helper.make_node("If", ["use_cache_branch"], [value.name for value in branches[0].output], "optimum::if",
                            then_branch=branches[1], else_branch=branches[0])  # fmt: skip
    chooses = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    graph = helper.make_graph([node], "merged", [*inputs.values(), chooses], branches[0].output, list(weights.values()))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), out)


def test_decoders_with_and_without_a_cache_in_one_file(files, place):
    served = place / "a served folder"
    served.mkdir()
    axes = {name: {0: "batch", 1: "tokens"} for name in ("input_ids", "logits")} | {name: {0: "batch", 2: "total"} for name in PRESENT}
    torch.onnx.export(WithoutCache(Decoder()).eval(), (torch.zeros(2, 2, dtype=torch.long),), place / "without.onnx", dynamo=False,
                      opset_version=17, input_names=["input_ids"], output_names=["logits", *PRESENT], dynamic_axes=axes)  # fmt: skip
    merge_decoders([place / "without.onnx", files / "cached.onnx"], served / "decoder_model_merged.onnx")
    shutil.copy(files / "cached.onnx", served / "decoder_with_past_model.onnx")
    ids = tool.load(files / "data.npz")["input_ids"][:3]
    before = decode(served / "decoder_model_merged.onnx", ids)
    np.testing.assert_allclose(before, decode(files / "cached.onnx", ids), atol=1e-5)
    said = tool.run("build", served, "-o", place / "train.onnx", "--loss", "cross_entropy", "--lora", "rank=2,alpha=4")
    assert "use_cache_branch=false: chooses the branch without a cache" in said and "decoder_model_merged.onnx" in said
    tool.run("fit", place / "train.onnx", "--data", files / "data.npz", "--steps", 5, "--lr", 0.05, "--out", place / "run")
    trained = place / "run" / "last.onnx"
    tool.run("predict", trained, "--inputs", files / "data.npz", "-o", place / "y.npz")
    expected = tool.load(place / "y.npz")["logits"][:3]
    said = tool.run("export", trained, "--merge", "--into", served, "-o", place / "merged")
    assert "of decoder_model_merged.onnx" in said and "decoder_with_past_model.onnx: 4 of 4 trained weights are there, too" in said
    for name in "decoder_model_merged.onnx", "decoder_with_past_model.onnx":
        np.testing.assert_allclose(decode(place / "merged" / name, ids), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(before - expected).max() > 0.1
    # Nodes for adapters are in both branches, and their inputs around them.
    tool.run("export", trained, "--adapter-inputs", "--into", served / "decoder_model_merged.onnx", "-o", place / "base.onnx")
    tool.run("export", trained, "-o", place / "a.onnx_adapter")
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(place / "a.onnx_adapter"))
    options.add_active_adapter(adapter)
    np.testing.assert_array_equal(decode(place / "base.onnx", ids), before)
    np.testing.assert_allclose(decode(place / "base.onnx", ids, options), expected, rtol=1e-4, atol=1e-5)


def test_data_in_several_files_and_folders_that_cannot_be_written(files, place):
    served = place / "in parts"
    served.mkdir()
    onnx.save(onnx.load(files / "cached.onnx"), served / "model.onnx", save_as_external_data=True, all_tensors_to_one_file=False,
              size_threshold=0)  # fmt: skip
    assert len(list(served.iterdir())) > 10
    trained, ids, expected = train(place, served)
    (place / "file").write_text("mine")
    message = tool.run("export", trained, "--into", served, "-o", place / "file" / "out", status=1)
    assert "file" in message and message.count("\n") == 1 and (place / "file").read_text() == "mine"
    tool.run("export", trained, "--into", served, "-o", place / "out")
    assert {path.name for path in (place / "out").iterdir()} == {"model.onnx", "model.onnx.data"}
    np.testing.assert_allclose(decode(place / "out" / "model.onnx", ids), expected, rtol=1e-4, atol=1e-5)
    # A folder is read like the file in it, and Python writes the same one.
    tool.run("sample", place / "out", "--prompt-ids", "1,2", "--tokens", 1, "--ids")
    import onnx_train

    lines = onnx_train.load(trained).export_into(served, place / "again", base=str(place / "train.onnx"))
    assert lines[0].endswith("12 trained weights in 12 tensors of model.onnx")
    for name in "model.onnx", "model.onnx.data":
        assert (place / "again" / name).read_bytes() == (place / "out" / name).read_bytes()


def test_a_decoder_with_a_cache_takes_adapters_of_any_rank(files, place):
    cached, half = files / "cached.onnx", place / "half.onnx"
    halved(cached, half)
    for i, lora in enumerate(("rank=2,alpha=4,targets=q,v,o", "rank=3,alpha=1,targets=q,v,o")):
        (place / f"{i}").mkdir()
        tool.run("build", files / "plain.onnx", "-o", place / "train.onnx", "--loss", "cross_entropy", "--lora", lora)
        tool.run("fit", place / "train.onnx", "--data", files / "data.npz", "--steps", 5, "--lr", 0.05, "--out", place / f"run{i}")
        tool.run("export", place / f"run{i}" / "last.onnx", "-o", place / f"{i}.onnx_adapter")
        tool.run("export", place / f"run{i}" / "last.onnx", "--merge", "--into", cached, "-o", place / f"{i}.onnx")
    said = tool.run("export", place / "run0" / "last.onnx", "--adapter-inputs", "--into", cached, "-o", place / "base.onnx")
    assert "inputs for adapters beside 3 weights" in said and "q.lora_A.weight, q.lora_B.weight" in said
    ids = tool.load(files / "data.npz")["input_ids"][:3]
    np.testing.assert_array_equal(decode(place / "base.onnx", ids), decode(cached, ids))
    for i in 0, 1, 0:
        adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        adapter.Load(str(place / f"{i}.onnx_adapter"))
        options.add_active_adapter(adapter)
        np.testing.assert_allclose(decode(place / "base.onnx", ids, options), decode(place / f"{i}.onnx", ids), atol=1e-4)
    message = tool.run("export", place / "run0" / "last.onnx", "--adapter-inputs", "--into", half, "-o", place / "no.onnx", status=1)
    assert "has no product with 'q.weight' alone" in message and not (place / "no.onnx").exists()


def genai_decoder(path, dtype):
    """One layer as ONNX Runtime GenAI's model builder writes it: GroupQueryAttention over a cache, q, k and v packed."""
    size = 16  # of a head
    rng = np.random.default_rng(1)
    weights = {"model.embed_tokens.weight": (VOCABULARY, 2 * size), "model.layers.0.attn.qkv_proj.MatMul.weight": (2 * size, 6 * size),
               "model.layers.0.attn.o_proj.MatMul.weight": (2 * size, 2 * size), "lm_head.MatMul.weight": (2 * size, VOCABULARY)}  # fmt: skip
    tensors = [numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(dtype), name) for name, shape in weights.items()]
    tensors += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (("one", [1]), ("index", 1))]
    embedding, qkv, o, head = weights
    node, kind = helper.make_node, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("ReduceSum", ["attention_mask", "one"], ["lengths"], keepdims=1), node("Sub", ["lengths", "one"], ["last"]),
        node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32), node("Shape", ["attention_mask"], ["sizes"]),
        node("Gather", ["sizes", "index"], ["total"], axis=0), node("Cast", ["total"], ["total_sequence_length"], to=TensorProto.INT32),
        node("Gather", [embedding, "input_ids"], ["x"]), node("MatMul", ["x", qkv], ["qkv"]),
        node("GroupQueryAttention", ["qkv", "", "", *PAST, "seqlens_k", "total_sequence_length"], ["attended", *PRESENT],
             domain="com.microsoft", num_heads=2, kv_num_heads=2),
        node("MatMul", ["attended", o], ["projected"]), node("Add", ["x", "projected"], ["h"]), node("MatMul", ["h", head], ["logits"]),
    ]  # fmt: skip
    cache = ["batch_size", 2, "past_sequence_length", "kv_cache_dim"]
    ids = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
           helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "main_graph", ids + [helper.make_tensor_value_info(name, kind, cache) for name in PAST],
        [helper.make_tensor_value_info("logits", kind, ["batch_size", "sequence_length", VOCABULARY])]
        + [helper.make_tensor_value_info(name, kind, [*cache[:2], "total_sequence_length", "kv_cache_dim"]) for name in PRESENT], tensors,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def decode_genai(path, ids, dtype, options=None):
    session, parts = tool.session(path), []
    cache = dict.fromkeys(PAST, np.zeros((len(ids), 2, 0, 16), dtype))
    for begin, end in (0, TOKENS - 1), (TOKENS - 1, TOKENS):
        inputs = {"input_ids": ids[:, begin:end], "attention_mask": np.ones((len(ids), end), np.int64)}
        logits, *present = session.run(["logits", *PRESENT], inputs | cache, options)
        cache = dict(zip(PAST, present))
        parts.append(logits)
    return np.concatenate(parts, 1)


def train_adapters(served, files, place):
    """The checkpoint, and the tokens; y.npz has its logits."""
    ids = tool.load(files / "data.npz")["input_ids"]
    tool.save(place / "data.npz", tool.load(files / "data.npz") | {"attention_mask": np.ones_like(ids)})
    tool.run("build", served, "-o", place / "train.onnx", "--loss", "cross_entropy", "--lora", "rank=2,alpha=8")
    tool.run("fit", place / "train.onnx", "--data", place / "data.npz", "--steps", 5, "--lr", 0.05, "--out", place / "run")
    tool.run("predict", place / "run" / "last.onnx", "--inputs", place / "data.npz", "-o", place / "y.npz")
    return place / "run" / "last.onnx", ids


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_decoder_of_genai_is_trained_and_served(files, place, dtype):
    served, out = place / "served", place / "out"
    served.mkdir()
    genai_decoder(served / "model.onnx", dtype)
    (served / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"filename": "model.onnx"}}}))
    trained, ids = train_adapters(served, files, place)
    expected = tool.load(place / "y.npz")["logits"][:3]
    assert "2 trained weights in 2 tensors" in tool.run("export", trained, "--merge", "--into", served, "-o", out)
    near = dict(rtol=1e-4, atol=1e-4) if dtype == np.float32 else dict(rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(decode_genai(out / "model.onnx", ids[:3], dtype), expected, **near)
    assert np.abs(decode_genai(served / "model.onnx", ids[:3], dtype) - expected).max() > 0.1
    assert without_weights(out / "model.onnx") == without_weights(served / "model.onnx")
    # The same with the adapter beside the weights: A and B are float32 for either decoder.
    tool.run("export", trained, "--adapter-inputs", "--into", served, "-o", place / "base")
    tool.run("export", trained, "-o", place / "a.onnx_adapter")
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(place / "a.onnx_adapter"))
    options.add_active_adapter(adapter)
    base = place / "base" / "model.onnx"
    np.testing.assert_array_equal(decode_genai(base, ids[:3], dtype), decode_genai(served / "model.onnx", ids[:3], dtype))
    np.testing.assert_allclose(decode_genai(base, ids[:3], dtype, options), expected, **near)


def test_adapters_are_served_beside_integers(files, place):
    import onnxruntime.quantization.matmul_nbits_quantizer as nbits

    genai_decoder(place / "float.onnx", np.float32)
    quantizer = nbits.MatMulNBitsQuantizer(onnx.load(place / "float.onnx"), block_size=16, is_symmetric=True)
    quantizer.process()
    served = place / "int4.onnx"
    quantizer.model.save_model_to_file(str(served))
    assert sum(node.op_type == "MatMulNBits" for node in onnx.load(served).graph.node) == 3
    trained, ids = train_adapters(served, files, place)
    said = tool.run("export", trained, "--adapter-inputs", "--into", served, "-o", place / "base.onnx")
    assert "inputs for adapters beside 2 weights" in said
    tool.run("export", trained, "-o", place / "a.onnx_adapter")
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(place / "a.onnx_adapter"))
    options.add_active_adapter(adapter)
    expected = tool.load(place / "y.npz")["logits"][:3]
    np.testing.assert_allclose(decode_genai(place / "base.onnx", ids[:3], np.float32, options), expected, atol=1e-4)
    plain = decode_genai(served, ids[:3], np.float32)
    np.testing.assert_array_equal(decode_genai(place / "base.onnx", ids[:3], np.float32), plain)
    assert np.abs(plain - expected).max() > 0.1
    message = tool.run("export", trained, "--merge", "--into", served, "-o", place / "no.onnx", status=1)
    assert "holds it as integers" in message and not (place / "no.onnx").exists()


def test_what_does_not_fit_leaves_files_as_they_were(files, place):
    trained, _, _ = train(place, files / "plain.onnx", "--lora", "rank=2")
    out = place / "out.onnx"
    out.write_text("mine")
    cached, into = files / "cached.onnx", ["export", trained, "-o", out, "--into"]
    message = tool.run(*into, tool.ROOT / "models" / "digits_cnn.onnx", "--merge", status=1)
    assert "does not hold, as they were before training, 4 weights that were trained: '" in message
    assert "adapters are layers of their own: add --merge" in tool.run(*into, cached, status=1)
    assert "do not go with it" in tool.run(*into, cached, "--merge", "--dtype", "float16", status=1)
    assert "is a training model" in tool.run(*into, trained, "--merge", status=1)
    assert "--base is of --into" in tool.run("export", trained, "-o", out, "--base", cached, status=1)
    assert "give it another name" in tool.run("export", trained, "-o", cached, "--into", cached, "--merge", status=1)
    empty = place / "empty"
    empty.mkdir()
    assert "is a folder with no .onnx file" in tool.run(*into, empty, "--merge", status=1)
    shutil.copy(cached, empty / "a.onnx")
    shutil.copy(cached, empty / "b.onnx")
    assert "the models a.onnx, b.onnx, and nothing says which is meant" in tool.run("build", empty, "-o", place / "t.onnx", status=1)
    (empty / "genai_config.json").write_text('{"model": {"decoder": {"filename": "c.onnx"}}}')
    assert "c.onnx, which is not there" in tool.run("build", empty, "-o", place / "t.onnx", status=1)
    (empty / "genai_config.json").write_text('{"model": {"decoder": {"filename": "a.onnx"}}}')
    inside = tool.run("export", trained, "--merge", "--into", empty, "-o", empty / "out", status=1)
    assert "are in each other" in inside and not (empty / "out").exists()
    assert out.read_text() == "mine"
    assert "4 trained weights are there, too" in tool.run("export", trained, "--merge", "--into", empty, "-o", place / "both")


def test_python_puts_weights_into_a_file(files, place):
    import onnx_train

    trained, ids, expected = train(place, files / "plain.onnx", "--lora", "rank=2,alpha=4")
    onnx_train.load(trained).export(merge=True, into=str(files / "cached.onnx")).save(place / "out.onnx")
    np.testing.assert_allclose(decode(place / "out.onnx", ids), expected, rtol=1e-4, atol=1e-5)
