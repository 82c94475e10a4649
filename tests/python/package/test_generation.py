"""Texts with a cache of keys and values: the same tokens as without, in ONNX Runtime, too."""

import os
import subprocess
import warnings

import numpy as np
import onnx
import onnx_train
import onnxruntime
import pytest
import tool
import torch
import transformers
from export import quiet
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 50
SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=64, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=1,
)  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "tie_word_embeddings": False}
GPT2 = dict(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=2, use_cache=False, bos_token_id=1,
            eos_token_id=1)  # fmt: skip
BLOOM = dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, use_cache=False, bos_token_id=1, eos_token_id=1,
             pad_token_id=0)  # fmt: skip


def decoder(kind, config, attention):
    """Random weights, large enough that the most likely token is far from the next one."""
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(attn_implementation=attention, **config)
    module = getattr(transformers, f"{kind}ForCausalLM" if kind != "GPT2" else "GPT2LMHeadModel")(settings).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return module


class Plain(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, input_ids, attention_mask):
        return self.module(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


class Cached(Plain):
    """As Optimum exports it: the earlier keys and values are inputs, those to come outputs."""

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        out = self.module(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                          past_key_values=cache, use_cache=True)  # fmt: skip
        return out.logits, *(tensor for layer in out.past_key_values.layers for tensor in (layer.keys, layer.values))


def export(module, path):
    """Both axes are open."""
    text = torch.randint(2, VOCABULARY, (2, 7))
    both = {0: "batch", 1: "tokens"}
    with quiet():
        torch.onnx.export(
            Plain(module), (text, torch.ones_like(text)), path, dynamo=False, opset_version=18,
            input_names=["input_ids", "attention_mask"], output_names=["logits"],
            dynamic_axes={"input_ids": both, "attention_mask": both, "logits": both},
        )  # fmt: skip


def export_with_cache(module, path, heads, size):
    text, earlier, layers = torch.randint(2, VOCABULARY, (2, 7)), 3, module.config.num_hidden_layers
    past = [torch.randn(2, heads, earlier, size) for _ in range(2 * layers)]
    names = [f"{layer}.{what}" for layer in range(layers) for what in ("key", "value")]
    both = {0: "batch", 1: "tokens"}
    axes = {"input_ids": both, "position_ids": both, "attention_mask": {0: "batch", 1: "total"}}
    axes |= {f"past_key_values.{name}": {0: "batch", 2: "past"} for name in names}
    axes |= {f"present.{name}": {0: "batch", 2: "total"} for name in names}
    with quiet():
        torch.onnx.export(
            Cached(module), (text, torch.ones(2, earlier + 7, dtype=torch.int64), torch.arange(earlier, earlier + 7).repeat(2, 1), *past),
            path, dynamo=False, opset_version=18, dynamic_axes=axes,
            input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in names)],
            output_names=["logits", *(f"present.{name}" for name in names)],
        )  # fmt: skip


FAMILIES = {
    "GPT-2": ("GPT2", GPT2, "sdpa"),  # learned positions
    "Llama": ("Llama", GROUPED, "eager"),  # rotary positions, grouped queries
    "Mistral": ("Mistral", GROUPED | {"sliding_window": 4}, "eager"),
    "BLOOM": ("Bloom", BLOOM, "eager"),  # ALiBi
}


def with_onnxruntime(path, prompts, tokens):
    """The loop that every program writes for a model with a cache: prompts of one length, the most likely token."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = {i.name: i for i in session.get_inputs()}
    read, rows, total = np.array(prompts, np.int64), len(prompts), 0
    cache = {
        name: np.zeros([rows if d == "batch" else 0 if isinstance(d, str) else d for d in i.shape], np.float32)
        for name, i in inputs.items() if name.startswith("past")
    }  # fmt: skip
    written = []
    for _ in range(tokens):
        given = dict(cache)
        given["input_ids" if "input_ids" in inputs else "tokens"] = read
        total += read.shape[1]
        if "attention_mask" in inputs:
            given["attention_mask"] = np.ones((rows, total), np.int64)
        if "position_ids" in inputs:
            given["position_ids"] = np.broadcast_to(np.arange(total - read.shape[1], total), read.shape).copy()
        logits, *present = session.run(None, given)
        cache = dict(zip(cache, present, strict=True))
        read = logits[:, -1:].argmax(-1)
        written.append(read[:, 0])
    return np.array(written).T.tolist()


def written_by_command(*arguments):
    run = subprocess.run([os.environ["ONNX_TRAIN"], "sample", *arguments], capture_output=True, text=True, check=True)
    return [int(token) for token in run.stdout.split()], run.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_gives_the_same_tokens_here_and_in_onnxruntime(family, tmp_path):
    path = tmp_path / "model.onnx"
    export(decoder(*FAMILIES[family]), path)
    prompts = [[5, 9, 2, 31, 7, 7, 12], [40, 3, 3, 8, 21, 6, 2]]
    session = onnx_train.Session(path)
    written = onnx_train.generate(session, prompts, tokens=20, temperature=0)
    assert written == onnx_train.generate(session, prompts, tokens=20, temperature=0, cache=False)
    assert len(set(written[0])) > 2  # not one token again and again
    assert onnx_train.generate(session, [prompts[0], [4]], tokens=20, temperature=0)[0] == written[0]
    text, said = written_by_command(str(path), "--prompt-ids", ",".join(map(str, prompts[0])), "--tokens", "20", "--temperature", "0")
    assert text == prompts[0] + written[0]
    assert "anew" not in said and "written one by one: 19 tokens" in said
    onnx_train.build(path, optimizer="sgd").export(cache=True).save(tmp_path / "cached.onnx")
    onnx.checker.check_model(tmp_path / "cached.onnx", full_check=True)
    assert with_onnxruntime(tmp_path / "cached.onnx", prompts, 20) == written
    text, said = written_by_command(str(tmp_path / "cached.onnx"), "--prompt-ids", ",".join(map(str, prompts[1])), "--tokens", "20", "--temperature", "0")
    assert text == prompts[1] + written[1] and "anew" not in said


def test_a_cache_of_the_export_is_used(tmp_path):
    path = tmp_path / "model.onnx"
    export_with_cache(decoder("Llama", GROUPED, "eager"), path, heads=2, size=8)
    prompts = [[5, 9, 2, 31, 7, 7, 12], [40, 3, 3, 8, 21, 6, 2]]
    written = onnx_train.generate(path, prompts, tokens=20, temperature=0)
    assert written == with_onnxruntime(path, prompts, 20)
    text, said = written_by_command(str(path), "--prompt-ids", ",".join(map(str, prompts[0])), "--tokens", "20", "--temperature", "0")
    assert text == prompts[0] + written[0] and "anew" not in said


def grouped_query_attention(path, heads=4, key_heads=2, size=16):
    """As the model builder of ONNX Runtime GenAI writes a decoder."""
    random = np.random.default_rng(0)
    width = heads * size
    angles = np.arange(64)[:, None] * 10.0 ** (-np.arange(size // 2) / 2)
    arrays = {
        "embedding": random.normal(size=(VOCABULARY, width)), "qkv": random.normal(size=(width, (heads + 2 * key_heads) * size)),
        "mix": random.normal(size=(width, width)), "head": random.normal(size=(width, VOCABULARY)), "scale": np.ones(width),
        "cosines": np.cos(angles), "sines": np.sin(angles),
    }  # fmt: skip
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()} | {"one": np.array(1), "last": np.array([1])}
    n = helper.make_node
    nodes = [
        n("ReduceSum", ["attention_mask", "last"], ["lengths"], keepdims=1), n("Sub", ["lengths", "one"], ["places"]),
        n("Cast", ["places"], ["seqlens_k"], to=TensorProto.INT32), n("Shape", ["attention_mask"], ["sizes"]),
        n("Gather", ["sizes", "one"], ["total"]), n("Cast", ["total"], ["total_length"], to=TensorProto.INT32),
        n("Gather", ["embedding", "input_ids"], ["x"]),
        n("SimplifiedLayerNormalization", ["x", "scale"], ["normal"], axis=-1, epsilon=1e-6),
        n("MatMul", ["normal", "qkv"], ["packed"]),
        n("GroupQueryAttention", ["packed", "", "", "past_key_values.0.key", "past_key_values.0.value", "seqlens_k",
                                  "total_length", "cosines", "sines"],
          ["attended", "present.0.key", "present.0.value"], domain="com.microsoft", num_heads=heads, kv_num_heads=key_heads, do_rotary=1),
        n("MatMul", ["attended", "mix"], ["mixed"]), n("Add", ["x", "mixed"], ["sum"]), n("MatMul", ["sum", "head"], ["logits"]),
    ]  # fmt: skip
    value, kinds = helper.make_tensor_value_info, (TensorProto.FLOAT, TensorProto.INT64)
    inputs = [value("input_ids", kinds[1], ["batch", "tokens"]), value("attention_mask", kinds[1], ["batch", "total"])]
    inputs += [value(f"past_key_values.0.{what}", kinds[0], ["batch", key_heads, "past", size]) for what in ("key", "value")]
    outputs = [value("logits", kinds[0], ["batch", "tokens", VOCABULARY])]
    outputs += [value(f"present.0.{what}", kinds[0], ["batch", key_heads, "total", size]) for what in ("key", "value")]
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, [numpy_helper.from_array(a, name) for name, a in arrays.items()])
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)


def test_grouped_query_attention_of_onnxruntime_is_cached(tmp_path):
    path = tmp_path / "model.onnx"
    grouped_query_attention(path)
    prompt = [5, 9, 2, 31, 7, 7, 12]
    arguments = str(path), "--prompt-ids", ",".join(map(str, prompt)), "--tokens", "20", "--temperature", "0"
    text, said = written_by_command(*arguments)
    assert text == prompt + with_onnxruntime(path, [prompt], 20)[0] and "anew" not in said
    assert written_by_command(*arguments, "--no-cache")[0] == text


def attention_of_one_node(path, operator, heads=4, size=16):
    """With a cache of its own, and positions that are an input."""
    random, key_heads = np.random.default_rng(0), heads // 2 if operator == "Attention" else heads
    width, of_keys = heads * size, key_heads * size
    sizes = {"words": (VOCABULARY, width), "places": (64, width), "wq": (width, width), "wk": (width, of_keys),
             "wv": (width, of_keys), "head": (width, VOCABULARY)}  # fmt: skip
    arrays = {name: random.normal(size=size).astype(np.float32) / (8 if name[0] == "w" else 1) for name, size in sizes.items()}
    past, present = (["past_key_values.0.key", "past_key_values.0.value"], ["present.0.key", "present.0.value"])
    n = helper.make_node
    if operator == "Attention":
        attention = n(operator, ["q", "k", "v", "", *past], ["attended", *present], q_num_heads=heads, kv_num_heads=key_heads, is_causal=1)
    else:
        attention = n(operator, ["q", "k", "v", "", "", "", *past], ["attended", *present], domain="com.microsoft",
                      num_heads=heads, unidirectional=1)  # fmt: skip
    nodes = [
        n("Gather", ["words", "input_ids"], ["e"]), n("Gather", ["places", "position_ids"], ["p"]), n("Add", ["e", "p"], ["x"]),
        *(n("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"), attention, n("Add", ["x", "attended"], ["y"]),
        n("MatMul", ["y", "head"], ["logits"]),
    ]  # fmt: skip
    value, kinds = helper.make_tensor_value_info, (TensorProto.FLOAT, TensorProto.INT64)
    inputs = [value(name, kinds[1], ["batch", "tokens"]) for name in ("position_ids", "input_ids")]
    inputs += [value(name, kinds[0], ["batch", key_heads, "past", size]) for name in past]
    outputs = [value("logits", kinds[0], ["batch", "tokens", VOCABULARY])]
    outputs += [value(name, kinds[0], ["batch", key_heads, "total", size]) for name in present]
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, [numpy_helper.from_array(a, name) for name, a in arrays.items()])
    domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=11), path)


@pytest.mark.parametrize("operator", ["Attention", "MultiHeadAttention"])
def test_other_operators_for_attention_are_cached(operator, tmp_path):
    path = tmp_path / "model.onnx"
    attention_of_one_node(path, operator)
    arguments = str(path), "--prompt-ids", "5,9,2,7", "--tokens", "20", "--temperature", "0"
    text, said = written_by_command(*arguments)
    assert text == [5, 9, 2, 7, *with_onnxruntime(path, [[5, 9, 2, 7]], 20)[0]] and "anew" not in said
    assert written_by_command(*arguments, "--no-cache")[0] == text


def test_a_model_of_a_fixed_number_of_tokens_is_opened(tmp_path):
    """Width, vocabulary and number of positions of this one are the same number."""
    training = onnx_train.build(tool.ROOT / "models" / "gpt.onnx", optimizer="sgd")
    prompts = [[76, 79, 86, 69], [40, 3, 3, 8]]
    written = onnx_train.generate(training, prompts, tokens=20, temperature=0)
    assert written == onnx_train.generate(training, prompts, tokens=20, temperature=0, cache=False)
    training.export(cache=True).save(tmp_path / "cached.onnx")
    assert with_onnxruntime(tmp_path / "cached.onnx", prompts, 20) == written


def test_a_text_stops_at_a_sequence(tmp_path):
    path = tmp_path / "model.onnx"
    grouped_query_attention(path)
    prompt = [5, 9, 2]
    arguments = str(path), "--prompt-ids", "5,9,2", "--tokens", "20", "--temperature", "0"
    text = written_by_command(*arguments)[0][len(prompt) :]
    stop = f"{text[3]},{text[4]}"
    end = next(i for i in range(1, 20) if text[i - 1 : i + 1] == text[3:5]) + 1
    assert written_by_command(*arguments, "--stop", "99", "--stop", stop)[0] == prompt + text[:end]


def test_python_says_why_there_is_no_cache():
    path = tool.ROOT / "tests" / "fixtures" / "next.onnx"
    with pytest.warns(UserWarning, match="read anew for each one: .* no attention was found"):
        written = onnx_train.generate(path, [1, 2], tokens=3, temperature=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert onnx_train.generate(path, [1, 2], tokens=3, temperature=0, cache=False) == written
