"""Conversations as data of the command, by the chat template of the tokenizer: the arrays that transformers' template gives in Python."""

import gzip
import json
import subprocess

import chat_templates
import numpy as np
import onnx
import pytest
import tokenizer_families
import tool

import onnx_train

LENGTH = 128
CHATS = [
    [("user", "Hi  "), ("assistant", " Hallo 😀 ")],
    [("user", "a b"), ("assistant", "b\n"), ("user", "c, d?"), ("assistant", "été")],
    [("user", "x " * 150), ("assistant", "cut")],
    [("user", "你好"), ("assistant", "word " * 160)],
]
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
MARKERS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>",
           "<|end|>", "<s>", "</s>"]  # fmt: skip


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats")
    tokenizer = tokenizer_families.byte_bpe(500, pattern=tokenizer_families.GPT4)
    tokenizer.add_special_tokens(MARKERS)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    size = tokenizer.get_vocab_size()
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        lm (int64[N, T] input_ids) => (float[N, T, {size}] logits) <float[{size}, {size}] table> {{ logits = Gather(table, input_ids) }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((size, size), np.float32), "table"))
    onnx.save(model, folder / "lm.onnx")
    tool.run("build", folder / "lm.onnx", "-o", folder / "train.onnx", "--loss", "cross_entropy(logits, labels, axis=2)", "--optimizer", "sgd")
    return folder


def write_chats(path, chats):
    lines = [json.dumps({"messages": [{"role": role, "content": content} for role, content in chat]}) for chat in chats]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", [*chat_templates.TEMPLATES, "marked"])
def test_answers_are_those_of_transformers(name, language_model, tmp_path):
    (language_model / "chat_template.jinja").write_text(MARKED if name == "marked" else chat_templates.TEMPLATES[name], encoding="utf-8")
    chats = write_chats(tmp_path / "chats.jsonl", CHATS)
    try:
        expected = onnx_train.tokenize_chats(language_model / "tokenizer.json", chats, tmp_path / "chats.npz", length=LENGTH)
    except onnx_train.Error as error:
        assert "changes what it wrote before an answer" in str(error)
        with pytest.raises(onnx_train.Error, match="in another way once there is one"):
            onnx_train.load_data(chats, language_model / "train.onnx", tokenizer=str(language_model), block_size=LENGTH)
        return
    theirs = np.load(tmp_path / "chats.npz")
    ours = onnx_train.load_data(chats, language_model / "train.onnx", tokenizer=str(language_model), block_size=LENGTH)
    assert expected.samples == len(ours["labels"]) and expected.answer_tokens == (ours["labels"] >= 0).sum() > 0
    for array in "input_ids", "labels":
        assert np.array_equal(ours[array], theirs[array]), array


def test_the_command_trains_on_conversations(language_model, tmp_path):
    (language_model / "chat_template.jinja").write_text(chat_templates.TEMPLATES["chatml"], encoding="utf-8")
    chats = write_chats(tmp_path / "chats.jsonl", CHATS * 4)
    printed = tool.run("fit", language_model / "train.onnx", "--data", chats, "--tokenizer", language_model, "--block-size", LENGTH, "--steps", 2,
                       "--batch-size", 4, "--out", tmp_path / "run")  # fmt: skip
    assert "12 conversations of 128 tokens" in printed and "4 without an answer in them are left out" in printed
    (language_model / "chat_template.jinja").write_text("{{ messages | rot13 }}")
    refused = tool.run("fit", language_model / "train.onnx", "--data", chats, "--tokenizer", language_model, "--block-size", LENGTH, "--steps", 1,
                       "--out", tmp_path / "refused", status=1)  # fmt: skip
    assert "the filter 'rot13' is not known here" in refused and "chats.jsonl, line 1" in refused


def with_dropout(source, path):
    """The same model, whose logits pass a Dropout that trains."""
    model = onnx.load(source)
    model.graph.node[0].output[0] = "looked_up"
    dropped = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        d (float[N] looked_up) => (float[N] logits) <float ratio = {0.1}, bool training = {1}> { logits = Dropout(looked_up, ratio, training) }""")
    model.graph.node.extend(dropped.graph.node)
    model.graph.initializer.extend(dropped.graph.initializer)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("options", [[], ["--precision", "bf16"], ["--ema", "0.9"], ["--clip", "1", "--accumulate"]], ids=" ".join)
@pytest.mark.parametrize("dropout", [False, True], ids=["plain", "dropout"])
def test_labels_are_ignored_by_training_models_of_all_kinds(dropout, options, language_model, tmp_path):
    """Also where the step reads other values than "predict": the loss says which label it ignores."""
    (language_model / "chat_template.jinja").write_text(chat_templates.TEMPLATES["chatml"], encoding="utf-8")
    model = with_dropout(language_model / "lm.onnx", tmp_path / "lm.onnx") if dropout else language_model / "lm.onnx"
    tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy(logits, labels, axis=2)", *options)
    chats = write_chats(tmp_path / "chats.jsonl", CHATS)
    fit = ["fit", tmp_path / "train.onnx", "--data", chats, "--tokenizer", language_model, "--block-size", 64, "--batch-size", 2, "--out",
           tmp_path / "run"]  # fmt: skip
    if "--accumulate" in options:
        fit += ["--accumulate", 2]
    tool.run(*fit, "--steps", 1)
    tool.run(*fit, "--steps", 2, "--resume")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_forward_model_takes_what_a_training_model_takes(language_model, tmp_path):
    """Several sources of texts, and streams, without a loss that is given."""
    texts = "".join(json.dumps({"text": "a b c d e " * 8}) + "\n" for _ in range(20))
    (tmp_path / "a.jsonl").write_text(texts)
    (tmp_path / "b.txt").write_text("x y z " * 400)
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write(texts)
    fit = ["fit", language_model / "lm.onnx", "--tokenizer", language_model, "--block-size", 16, "--steps", 2, "--batch-size", 2]
    tool.run(*fit, "--data", f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.txt'}", "--out", tmp_path / "several")
    tool.run(*fit, "--data", tmp_path / "c.jsonl.gz", "--stream", "--out", tmp_path / "stream")
    with open(tmp_path / "a.jsonl") as lines:
        done = subprocess.run([tool.COMMAND, *map(str, fit), "--data", "-", "--out", tmp_path / "piped"], stdin=lines, capture_output=True, text=True,
                              timeout=tool.PATIENCE)  # fmt: skip
    assert done.returncode == 0, done.stderr
    for run in "stream", "piped":
        assert len((tmp_path / run / "metrics.jsonl").read_text().splitlines()) == 2
