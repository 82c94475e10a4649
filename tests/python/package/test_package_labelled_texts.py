"""Texts with a label each: bytes by the command and the library, a tokenizer's tokens by the package."""

import csv
import json

import networks
import numpy as np
import pytest
import tool
from export import export

import onnx_train

WORDS = ["good", "fine", "great", "bad", "poor", "awful"]


def reviews(count, seed=0):
    """Texts of words, some of them praise, and whether they are."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    return [(" ".join(WORDS[i] for i in rng.integers(0, 3, rng.integers(1, 6)) + 3 * (1 - label)), int(label))
            for label in labels]  # fmt: skip


def write(folder, rows, form, names=("bad", "good")):
    path = folder / f"reviews.{form}"
    if form == "csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([("id", "label", "text"), *((i, names[y], x) for i, (x, y) in enumerate(rows))])
    else:
        path.write_text("".join(json.dumps({"text": x, "label": names[y]}) + "\n" for x, y in rows))
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT that tells two classes of 128 tokens apart, of any length up to 32."""
    network = networks.bert(tokens=16, vocabulary=128, classes=2)
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    export(network.module, network.inputs, path, optimize=True)
    return path, list(network.inputs)


class Bytes:
    def encode(self, text):
        return list(text.encode())


def test_names_of_classes_go_from_the_texts_into_predictions(bert, tmp_path):
    rows = reviews(64)
    table = write(tmp_path, rows, "csv")
    written = onnx_train.tokenize_labelled(Bytes(), table, tmp_path / "train.npz", length=16)
    assert written.classes == ("bad", "good")
    onnx_train.tokenize_labelled(Bytes(), table, tmp_path / "new.npz", length=16, label=None)
    assert sorted(tool.load(tmp_path / "new.npz")) == ["attention_mask", "input_ids", "token_type_ids"]
    assert sorted(onnx_train.load_data(tmp_path / "train.npz")) == ["attention_mask", "input_ids", "labels", "token_type_ids"]
    tool.run("fit", bert[0], "--data", tmp_path / "train.npz", "--epochs", 8, "--batch-size", 8, "--lr", 0.003,
             "--optimizer", "adamw", "--out", tmp_path / "run")  # fmt: skip
    tool.run("predict", tmp_path / "run" / "last.onnx", "--inputs", tmp_path / "new.npz", "-o", tmp_path / "y.csv")
    predicted = [row["class"] for row in csv.DictReader(open(tmp_path / "y.csv"))]
    assert np.mean([name == ("bad", "good")[label] for name, (_, label) in zip(predicted, rows)]) > 0.9


def test_arrays_that_the_model_has_no_input_for_are_said_and_not_used(bert, tmp_path):
    onnx_train.tokenize_labelled(Bytes(), write(tmp_path, reviews(8), "csv"), tmp_path / "x.npz", length=16)
    data = dict(np.load(tmp_path / "x.npz")) | {"other": np.zeros(8, np.float32)}
    session = onnx_train.Session(onnx_train.build(bert[0]))
    with pytest.warns(UserWarning, match="no input 'other'"):
        history = onnx_train.fit(session, data, steps=1, batch_size=8)
    from_file = onnx_train.fit(onnx_train.build(bert[0]), tmp_path / "x.npz", steps=1, batch_size=8)
    assert history.losses.tolist() == from_file.losses.tolist()
    assert session.predict(data).logits.shape == (8, 2)
    with pytest.warns(UserWarning, match="no input 'other'"):
        session.evaluate(data)
    with pytest.raises(onnx_train.DataError, match="other"):
        session.evaluate({"other": data["other"]})


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_the_command_trains_on_texts_with_labels(bert, tmp_path, form):
    model, inputs = bert
    rows = reviews(96)
    data = write(tmp_path, rows, form)
    said = tool.run("fit", model, "--data", data, "--epochs", 6, "--batch-size", 8, "--lr", 0.003, "--val-split", 0.25,
                    "--optimizer", "adamw", "--out", tmp_path / "run")  # fmt: skip
    assert "loss       cross_entropy" in said and "96 texts, whose bytes are tokens, 16 each" in said
    assert "2: bad, good" in said
    tool.run("predict", tmp_path / "run" / "best.onnx", "--inputs", data, "-o", tmp_path / "y.csv")
    predicted = [row["class"] for row in csv.DictReader(open(tmp_path / "y.csv"))]
    assert np.mean([name == ("bad", "good")[label] for name, (_, label) in zip(predicted, rows)]) > 0.9

    # The arrays are those that one would make by hand.
    tool.run("predict", tmp_path / "run" / "best.onnx", "--inputs", data, "-o", tmp_path / "y.npz")
    tokens = np.zeros((96, 16), np.int64)
    for row, (text, _) in enumerate(rows):
        tokens[row, : len(text)] = list(text.encode()[:16])
    by_hand = {inputs[0]: tokens, "attention_mask": np.array([[t < len(x) for t in range(16)] for x, _ in rows], np.int64)}
    read = onnx_train.load_data(data, tmp_path / "run" / "best.onnx")
    for name, array in by_hand.items():
        np.testing.assert_array_equal(read[name], array)
    tool.run("export", tmp_path / "run" / "best.onnx", "-o", tmp_path / "x.onnx")
    feeds = {name: by_hand.get(name, np.zeros_like(tokens)) for name in inputs}
    expected = tool.session(tmp_path / "x.onnx").run(["logits"], feeds)[0]
    np.testing.assert_allclose(tool.load(tmp_path / "y.npz")["logits"], expected, rtol=1e-4, atol=1e-4)
    tool.run("predict", tmp_path / "x.onnx", "--inputs", data, "-o", tmp_path / "z.npz")
    np.testing.assert_allclose(tool.load(tmp_path / "z.npz")["logits"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_tokenize_labelled_writes_what_a_tokenizer_of_transformers_gives(tmp_path, form):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    transformers = pytest.importorskip("transformers")
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3} | {word: i + 4 for i, word in enumerate(WORDS)}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    own.save(str(tmp_path / "tokenizer.json"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]")
    rows = reviews(20)
    data = write(tmp_path, rows, form)
    expected = theirs([x for x, _ in rows], padding="max_length", truncation=True, max_length=5, return_tensors="np")
    for tokenizer in tmp_path / "tokenizer.json", own, theirs:
        written = onnx_train.tokenize_labelled(tokenizer, data, tmp_path / "x.npz", length=5)
        assert written == onnx_train.LabelledFile(20, sum(len(x.split()) > 3 for x, _ in rows), ("bad", "good"))
        arrays = tool.load(tmp_path / "x.npz")
        np.testing.assert_array_equal(arrays["input_ids"], expected["input_ids"])
        np.testing.assert_array_equal(arrays["attention_mask"], expected["attention_mask"])
        assert (arrays["input_ids"][:, 0] == 2).all() and not arrays["token_type_ids"].any()
        assert arrays["labels"].tolist() == [y for _, y in rows]
    assert own.truncation is None or theirs is not own  # the settings of the caller's tokenizer stay
    (tmp_path / "n.csv").write_text("words,stars\ngood,4\nbad,1\n")
    numbers = onnx_train.tokenize_labelled(own, tmp_path / "n.csv", tmp_path / "n.npz", length=4, text="words", label="stars")
    assert numbers.classes == () and tool.load(tmp_path / "n.npz")["labels"].tolist() == [4, 1]
    with pytest.raises(onnx_train.DataError, match="n.csv, line 2 has no 'text'"):
        onnx_train.tokenize_labelled(own, tmp_path / "n.csv", tmp_path / "n.npz", length=4)
    with pytest.raises(onnx_train.DataError, match="the label 'good' is none of awful, bad"):
        onnx_train.tokenize_labelled(own, data, tmp_path / "n.npz", length=4, classes=("awful", "bad"))


@pytest.fixture(scope="module")
def word_piece(tmp_path_factory):
    """The folder of a tokenizer as BERT has it, which knows "awful" as two pieces."""
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS[:-1], "aw", "##ful", ",", "##s"]
    own = tokenizers.Tokenizer(tokenizers.models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    own.normalizer, own.pre_tokenizer = tokenizers.normalizers.BertNormalizer(), tokenizers.pre_tokenizers.BertPreTokenizer()
    own.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    folder = tmp_path_factory.mktemp("word_piece")
    own.save(str(folder / "tokenizer.json"))
    own.enable_padding(length=16)
    own.enable_truncation(16)
    return folder, own


def test_a_network_that_was_trained_elsewhere_predicts_from_texts(bert, word_piece, tmp_path):
    (model, inputs), (folder, own) = bert, word_piece
    texts = ["Good, FINE", "", "awful poor goods", "great " * 40, "ünknown"]
    encoded = own.encode_batch(texts)
    feeds = {name: np.zeros((5, 16), np.int64) for name in inputs}
    feeds |= {inputs[0]: np.array([e.ids for e in encoded]), "attention_mask": np.array([e.attention_mask for e in encoded])}
    expected = tool.session(model).run(["logits"], feeds)[0]
    with open(tmp_path / "x.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("review", "stars"), *((text, i) for i, text in enumerate(texts))])
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"stars": i, "text": text}) + "\n" for i, text in enumerate(texts)), encoding="utf-8")
    (tmp_path / "x.txt").write_bytes("\r\n".join(texts).encode())
    for form, options in ("csv", ["--map", f"review={inputs[0]}"]), ("jsonl", []), ("txt", []):
        said = tool.run("predict", model, "--inputs", tmp_path / f"x.{form}", "--tokenizer", folder, "-o", tmp_path / f"{form}.npz", *options)
        assert "5 texts as tokens of" in said and "1 is longer, and cut" in said
        np.testing.assert_allclose(tool.load(tmp_path / f"{form}.npz")["logits"], expected, rtol=1e-4, atol=1e-4)
    tool.run("predict", model, "--inputs", tmp_path / "x.txt", "--tokenizer", folder, "-o", tmp_path / "y.csv")
    assert [int(row["index"]) for row in csv.DictReader(open(tmp_path / "y.csv"))] == expected.argmax(1).tolist()
    (tmp_path / "x.jsonl").write_text('{"review": "good"}\n')
    assert 'has no "text" in its first line' in tool.run("predict", model, "--inputs", tmp_path / "x.jsonl", "--tokenizer", folder, "-o", tmp_path / "y.csv", status=1)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_tokenizer_goes_through_fit_eval_and_predict(bert, word_piece, tmp_path, form):
    (model, _), (folder, _) = bert, word_piece
    rows = reviews(96)
    data, tokenizer = write(tmp_path, rows, form), ["--tokenizer", folder]
    said = tool.run("fit", model, "--data", data, *tokenizer, "--epochs", 4, "--batch-size", 8, "--lr", 0.003, "--optimizer", "adamw",
                    "--out", tmp_path / "run")  # fmt: skip
    assert "96 texts as tokens of" in said and "2: bad, good" in said
    last = tmp_path / "run" / "last.onnx"
    evaluated = json.loads(tool.output("eval", last, "--data", data, *tokenizer, "--json"))
    tool.run("export", last, "-o", tmp_path / "x.onnx")
    for trained in last, tmp_path / "x.onnx":
        tool.run("predict", trained, "--inputs", data, *tokenizer, "-o", tmp_path / "y.csv")
        predicted = [row["class"] for row in csv.DictReader(open(tmp_path / "y.csv"))]
        right = np.mean([name == ("bad", "good")[label] for name, (_, label) in zip(predicted, rows)])
        assert right > 0.9 and right == pytest.approx(evaluated["accuracy"])
    # Of the forward model, whose loss is guessed; the same texts by lines.
    forward = json.loads(tool.output("eval", tmp_path / "x.onnx", "--data", data, *tokenizer, "--json"))
    assert forward["loss"] == pytest.approx(evaluated["loss"], rel=1e-5)
    (tmp_path / "lines.txt").write_text("".join(text + "\n" for text, _ in rows))
    (tmp_path / "alone.csv").write_text("text\n" + "".join(text + "\n" for text, _ in rows))
    for without_labels in "lines.txt", "alone.csv":
        tool.run("predict", last, "--inputs", tmp_path / without_labels, *tokenizer, "-o", tmp_path / "z.csv")
        assert [row["class"] for row in csv.DictReader(open(tmp_path / "z.csv"))] == predicted
    assert "--tokenizer" in tool.run("predict", last, "--inputs", data, "-o", tmp_path / "z.csv", status=1)
    assert "--tokenizer" in tool.run("eval", last, "--data", data, status=1)
