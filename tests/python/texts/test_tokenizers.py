"""Tokens of texts, id for id, against Hugging Face's tokenizers, and what they become again; trainings and texts by the command."""

import json
import os
import subprocess

import numpy as np
import onnx
import pytest
import tokenizer_families
import tool

TOOL = tool.BUILD / "tests" / "tokenizer_tool"
LINES = int(os.environ.get("ONNX_TRAIN_TOKENIZER_LINES", 1500))  # of each family


def shown(tokenizer, texts, folder):
    """For each text its tokens, those with what is put around, and what they become again, without special tokens and with them."""
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    done = subprocess.run([TOOL, tokenizer, folder / "texts.json", folder / "shown.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "shown.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", tokenizer_families.FAMILIES, ids=lambda family: family.__name__)
def test_tokens_are_those_of_hugging_face(family, tmp_path):
    theirs = family()
    theirs.save(str(tmp_path / "tokenizer.json"))
    special = [token.content for token in theirs.get_added_tokens_decoder().values()]
    texts = list(tokenizer_families.lines(LINES, seed=2, special=special))
    for text, ours in zip(texts, shown(tmp_path, texts, tmp_path), strict=True):
        tokens = theirs.encode(text, add_special_tokens=False).ids
        assert ours == [tokens, theirs.encode(text).ids, theirs.decode(tokens), theirs.decode(tokens, skip_special_tokens=False)], repr(text)


def test_truncation_and_padding_of_the_file_are_left_out(tmp_path):
    theirs = tokenizer_families.gpt2()
    theirs.enable_truncation(2)
    theirs.enable_padding(length=100)
    theirs.save(str(tmp_path / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    text = tokenizer_families.SENTENCES[0]
    assert shown(tmp_path, [text], tmp_path)[0][0] == theirs.encode(text).ids


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A folder with a tokenizer and a model without a body: the logits are rows of a table."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tokenizer_families.gpt2()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    size = tokenizer.get_vocab_size()
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        lm (int64[N, T] input_ids) => (float[N, T, {size}] logits) <float[{size}, {size}] table> {{ logits = Gather(table, input_ids) }}""")
    weight = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32) * 0.02
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "table"))
    onnx.save(model, folder / "lm.onnx")
    tool.run("build", folder / "lm.onnx", "-o", folder / "train.onnx", "--loss", "cross_entropy(logits, labels, axis=2)", "--optimizer", "adamw")
    return folder, tokenizer


def test_a_model_learns_texts_and_writes_them(language_model, tmp_path):
    folder, tokenizer = language_model
    sentence = "Übung macht"  # no token comes twice, so that each says the next one
    assert len(set(tokenizer.encode(sentence).ids)) == len(tokenizer.encode(sentence).ids)
    (tmp_path / "train.jsonl").write_text((json.dumps({"text": sentence}) + "\n") * 40)
    printed = tool.run("fit", folder / "train.onnx", "--data", tmp_path / "train.jsonl", "--tokenizer", folder, "--block-size", 16, "--steps", 60,
                       "--batch-size", 8, "--lr", 0.05, "--out", tmp_path / "run")  # fmt: skip
    assert "40 documents, the token 0 after each" in printed
    last = tmp_path / "run" / "last.onnx"
    metadata = {entry.key: entry.value for entry in onnx.load(last).metadata_props}
    assert metadata["onnx_train.tokenizer"].startswith("tokenizer.json ")
    assert str(folder) in (tmp_path / "run" / "options.json").read_text()
    evaluated = tool.run("eval", last, "--data", tmp_path / "train.jsonl", "--tokenizer", folder / "tokenizer.json", "--block-size", 16)
    assert "another" not in evaluated
    # The same text, to the token that ends it; once more as numbers.
    assert tool.output("sample", last, "--tokenizer", folder, "--prompt", "Übung", "--temperature", 0).strip() == sentence
    tokens = tokenizer.encode(sentence).ids
    first = len(tokenizer.encode("Übung").ids)
    numbers = tool.output("sample", last, "--tokenizer", folder, "--prompt", "Übung", "--temperature", 0, "--ids").split()
    assert [int(number) for number in numbers] == [*tokens, 0] and first < len(tokens)
    for wrong in (["sample", last, "--prompt", "Übung"], ["eval", last, "--data", tmp_path / "train.jsonl", "--block-size", 16]):
        assert "--tokenizer" in tool.run(*wrong, status=2 if wrong[0] == "sample" else 1)


def test_a_tokenizer_without_texts_is_said(language_model, tmp_path):
    folder, _ = language_model
    np.arange(40, dtype=np.uint16).tofile(tmp_path / "a.bin")
    said = tool.run("fit", folder / "train.onnx", "--data", tmp_path / "a.bin", "--tokenizer", folder, "--block-size", 4, "--steps", 1,
                    "--out", tmp_path / "run")  # fmt: skip
    assert "--tokenizer has no use: " in said and "a.bin holds no texts" in said


def test_tokens_beyond_the_model_are_named(language_model, tmp_path):
    folder, _ = language_model
    larger = tokenizer_families.gpt2()
    larger.add_tokens(["Meister"])
    larger.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("macht den Meister " * 20)
    said = tool.run("fit", folder / "train.onnx", "--data", tmp_path / "a.txt", "--tokenizer", tmp_path, "--block-size", 4, "--steps", 1,
                    "--out", tmp_path / "run", status=1)  # fmt: skip
    assert f"token {larger.get_vocab_size() - 1} at position " in said and "a.txt" in said and "another tokenizer" in said
