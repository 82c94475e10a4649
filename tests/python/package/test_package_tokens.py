"""Tokens, tables and selections of samples: the batches that trainings get, by numpy; the command and Python read the same."""

import json

import numpy as np
import onnx
import pytest
import tool

import onnx_train

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
VOCABULARY = 50

# A language model without a body: the sum of two tables, so that a step takes no time.
MODEL = f"""<ir_version: 10, opset_import: ["" : 21]>
    lm (int64[N, T] input_ids, int64[N, T] position_ids) => (float[N, T, {VOCABULARY}] logits)
    <float[{VOCABULARY}, {VOCABULARY}] table, float[64, {VOCABULARY}] places> {{
        a = Gather(table, input_ids)
        b = Gather(places, position_ids)
        logits = Add(a, b)
    }}"""


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    model = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, rows in ("table", VOCABULARY), ("places", 64):
        weight = onnx.numpy_helper.from_array(rng.normal(size=(rows, VOCABULARY)).astype(np.float32), name)
        model.graph.initializer.append(weight)
    path = tmp_path_factory.mktemp("lm") / "lm.onnx"
    onnx.save(model, path)
    loss = "cross_entropy(logits, labels, axis=2)"
    tool.run("build", path, "-o", path.with_name("train.onnx"), "--loss", loss, "--optimizer", "sgd")
    return path.with_name("train.onnx")


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    path = tmp_path_factory.mktemp("mlp") / "train.onnx"
    tool.run("build", MLP, "-o", path, "--loss", "cross_entropy", "--optimizer", "sgd")
    return path


def fails(*arguments):
    """The message of a command that fails."""
    process = tool.start(*arguments)
    _, errors = process.communicate(timeout=tool.PATIENCE)
    assert process.returncode in (1, 2), errors
    return errors


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).astype(np.uint16)


def blocks(stream, size):
    """nanoGPT's x and y, at each multiple of the size."""
    starts = range(0, len(stream) - size, size)
    stream = stream.astype(np.int64)
    return {"input_ids": np.stack([stream[i : i + size] for i in starts]),
            "labels": np.stack([stream[i + 1 : i + 1 + size] for i in starts])}  # fmt: skip


def llm_c(stream):
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, len(stream)
    return header.tobytes() + stream.astype(np.uint16).tobytes()


def test_a_training_gets_the_blocks_that_numpy_cuts(language_model, tmp_path):
    shards = [tokens(200 + i, i) for i in range(2)]
    for i, shard in enumerate(shards):
        (tmp_path / f"part_train_{i}.bin").write_bytes(llm_c(shard))
    parts = [blocks(shard, 16) for shard in shards]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    arrays["position_ids"] = np.tile(np.arange(16), (len(arrays["labels"]), 1))
    pattern = str(tmp_path / "part_train_*.bin")
    read = onnx_train.load_data(pattern, language_model, block_size=16)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    with pytest.warns(UserWarning, match="'position_ids' is no part of tokens"):
        by_files = onnx_train.fit(language_model, pattern, epochs=2, batch_size=5, block_size=16, lr=0.1)
    by_arrays = onnx_train.fit(language_model, arrays, epochs=2, batch_size=5, lr=0.1)
    assert all(step.tokens == 16 * step.samples and step.utilization is None for step in by_arrays.steps)
    np.testing.assert_array_equal(by_files.losses, by_arrays.losses)
    tool.run("fit", language_model, "--data", pattern, "--epochs", 2, "--batch-size", 5, "--block-size", 16, "--lr", 0.1,
             "--out", tmp_path / "run")  # fmt: skip
    np.testing.assert_allclose(tool.losses(tmp_path / "run"), by_files.losses, rtol=1e-12)


def test_arrays_need_no_positions(language_model, tmp_path):
    """As models of transformers need none. A mask is of the data, and not made."""
    rows = tokens(6 * 16).astype(np.int64).reshape(6, 16)
    arrays = {"input_ids": rows, "labels": np.roll(rows, -1, 1)}
    data = tool.save(tmp_path / "data.npz", arrays)
    whole = arrays | {"position_ids": np.tile(np.arange(16), (6, 1))}
    expected = onnx_train.fit(language_model, whole, epochs=2, batch_size=4, lr=0.1)
    for given in arrays, str(data):
        with pytest.warns(UserWarning, match="'position_ids' is not in the data, and gets 0, 1, 2, ..."):
            history = onnx_train.fit(language_model, given, epochs=2, batch_size=4, lr=0.1)
        np.testing.assert_array_equal(history.losses, expected.losses)
    assert "'position_ids' is not in the data" in tool.run("fit", language_model, "--data", data, "--steps", 1, "--out", tmp_path / "run")
    forward = onnx.parser.parse_model(MODEL)
    forward.graph.initializer.extend(onnx.numpy_helper.from_array(np.ones((rows, VOCABULARY), np.float32), name)
                                     for name, rows in (("table", VOCABULARY), ("places", 64)))  # fmt: skip
    onnx.save(forward, tmp_path / "forward.onnx")
    assert "note: 'position_ids' is not in the data" in tool.run("grad", tmp_path / "forward.onnx", "--inputs", data, "-o", tmp_path / "g.npz",
                                                                "--loss", "cross_entropy(logits, labels, axis=2)")  # fmt: skip
    masked = onnx.parser.parse_model(MODEL.replace("int64[N, T] position_ids", "int64[N, T] attention_mask").replace("position_ids", "attention_mask"))
    masked.graph.initializer.extend(onnx.numpy_helper.from_array(np.ones((rows, VOCABULARY), np.float32), name)
                                    for name, rows in (("table", VOCABULARY), ("places", 64)))  # fmt: skip
    onnx.save(masked, tmp_path / "masked.onnx")
    tool.run("build", tmp_path / "masked.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy(logits, labels, axis=2)")
    assert "data.npz has no 'attention_mask'" in fails("fit", tmp_path / "train.onnx", "--data", data, "--steps", 1)


def test_stopping_in_an_epoch_of_tokens_and_resuming_changes_no_byte(language_model, tmp_path):
    (tmp_path / "train.bin").write_bytes(tokens(700).tobytes())
    fit = ("fit", language_model, "--data", tmp_path / "train.bin", "--batch-size", 4, "--lr", 0.1)
    reading = ("--block-size", 16, "--document-end", 3, "--val-split", 0.2, "--limit", 40, "--drop-last", "--seed", 2)
    tool.run(*fit, *reading, "--steps", 13, "--out", tmp_path / "whole")
    tool.run(*fit, *reading, "--steps", 5, "--out", tmp_path / "parts")
    # What is not given again stays as the run has it.
    tool.run(*fit, "--steps", 13, "--out", tmp_path / "parts", "--resume")
    assert (tmp_path / "whole/last.onnx").read_bytes() == (tmp_path / "parts/last.onnx").read_bytes()
    message = fails(*fit, "--steps", 20, "--block-size", 8, "--out", tmp_path / "parts", "--resume")
    assert "block-size was 16 and is 8" in message


def test_the_vocabulary_is_checked_before_the_first_step(language_model, tmp_path):
    stream = tokens(100)
    stream[37] = VOCABULARY
    (tmp_path / "train.bin").write_bytes(stream.tobytes())
    message = fails("fit", language_model, "--data", tmp_path / "train.bin", "--block-size", 16, "--steps", 1, "--out",
                         tmp_path / "run")  # fmt: skip
    assert f"token 50 at position 37 of {tmp_path}/train.bin, for 'input_ids'; " in message
    assert "takes 0 to 49: are these tokens of another tokenizer (--resize-vocabulary makes room for new ones), or of another --token-type?" in message


def test_a_block_has_as_many_tokens_as_there_are_positions(language_model, tmp_path):
    (tmp_path / "train.bin").write_bytes(tokens(200).tobytes())
    fit = ("fit", language_model, "--data", tmp_path / "train.bin", "--steps", 1, "--out", tmp_path / "run")
    assert "'places' has 64 positions: --block-size 64 at most" in fails(*fit, "--block-size", 65)
    tool.run(*fit, "--block-size", 64)
    (tmp_path / "empty.txt").write_text("")
    assert "empty.txt is empty" in fails("fit", language_model, "--data", tmp_path / "empty.txt", "--block-size", 8, "--steps", 1)


def test_labels_that_equal_the_tokens_are_shifted_when_asked(language_model, tmp_path):
    rows = tokens(5 * 16).astype(np.int64).reshape(5, 16)
    places = np.tile(np.arange(16), (5, 1))
    copied = tool.save(tmp_path / "copied.npz", {"input_ids": rows, "labels": rows, "position_ids": places})
    following = np.concatenate([rows[:, 1:], np.full((5, 1), -100)], axis=1)
    tool.save(tmp_path / "shifted.npz", {"input_ids": rows, "labels": following, "position_ids": places})
    fit = ("fit", language_model, "--steps", 3, "--lr", 0.1)
    message = fails(*fit, "--data", copied, "--out", tmp_path / "a")
    assert "'labels' equals 'input_ids'" in message and "--shift-labels" in message
    tool.run(*fit, "--data", copied, "--shift-labels", "--out", tmp_path / "a")
    tool.run(*fit, "--data", tmp_path / "shifted.npz", "--out", tmp_path / "b")
    np.testing.assert_array_equal(tool.losses(tmp_path / "a"), tool.losses(tmp_path / "b"))
    with pytest.raises(onnx_train.DataError, match="'labels' equals 'input_ids'"):
        onnx_train.fit(language_model, copied, steps=1)
    history = onnx_train.fit(language_model, copied, steps=3, lr=0.1, shift_labels=True)
    np.testing.assert_allclose(history.losses, tool.losses(tmp_path / "b"), rtol=1e-12)


def test_evaluation_data_need_not_be_given_again(language_model, tmp_path):
    for name in "train", "val":
        (tmp_path / f"{name}.bin").write_bytes(tokens(200).tobytes())
    fit = ("fit", language_model, "--data", tmp_path / "train.bin", "--block-size", 16, "--out", tmp_path / "run")
    tool.run(*fit, "--eval-data", tmp_path / "val.bin", "--epochs", 1)
    assert "eval loss" in tool.run(*fit, "--epochs", 2, "--resume")


def test_no_text_gives_no_tokens(tmp_path):
    class Letters:
        def encode(self, text):
            return [ord(letter) for letter in text]

    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(onnx_train.DataError, match="empty.txt: there is no text"):
        onnx_train.tokenize(Letters(), tmp_path / "empty.txt", tmp_path / "x.bin")


def test_tokenize_writes_what_fit_reads(language_model, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    vocabulary = {f"w{i}": i for i in range(48)} | {"[UNK]": 48, "<|endoftext|>": 49}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [" ".join(f"w{i}" for i in tokens(n, n) % 48) for n in (30, 50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    written = onnx_train.tokenize(tmp_path / "tokenizer.json", tmp_path / "a.jsonl", tmp_path / "a.bin",
                                  document_end="<|endoftext|>")  # fmt: skip
    stream = np.concatenate([np.append(tokens(n, n) % 48, 49) for n in (30, 50)])
    assert (written.tokens, written.documents, written.dtype, written.document_end) == (82, 2, "uint16", 49)
    assert (tmp_path / "a.bin").read_bytes() == llm_c(stream)
    read = onnx_train.load_data(tmp_path / "a.bin", language_model, block_size=8, document_end=49)
    expected = blocks(stream, 8)
    np.testing.assert_array_equal(read["input_ids"], expected["input_ids"])
    np.testing.assert_array_equal(read["labels"], np.where(expected["input_ids"] == 49, -100, expected["labels"]))
    with pytest.raises(onnx_train.UsageError, match="knows no token 'x'"):
        onnx_train.tokenize(tmp_path / "tokenizer.json", tmp_path / "a.jsonl", tmp_path / "b.bin", document_end="x")


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    return {"x": x, "labels": np.argmax(x[:, :3], axis=1)}


def test_folds_train_and_evaluate_on_all_samples_once(training, data):
    evaluated, count = 0.0, 0
    for fold in (1, 2, 3):
        history = onnx_train.fit(training, data, epochs=1, batch_size=7, lr=1e-12, folds=3, fold=fold)
        assert sum(step.samples for step in history.steps) == 40
        evaluated += history.evaluations[-1].metrics["loss"] * 20
        count += 20
    whole = onnx_train.Session(onnx_train.load(training)).evaluate(data["x"], data["labels"]).loss
    assert evaluated / count == pytest.approx(whole, rel=1e-5)


def test_the_samples_that_options_leave(training, data):
    def samples(**options):
        steps = onnx_train.fit(training, data, epochs=2, batch_size=8, **options).steps
        return [step.samples for step in steps if step.epoch == 2]

    assert samples() == [8] * 7 + [4]
    assert samples(drop_last=True) == [8] * 7
    assert samples(limit=10) == [8, 2]
    assert samples(overfit_batches=2) == [8, 8]
    assert samples(val_split=0.5) == [8, 8, 8, 6]
    with pytest.raises(onnx_train.UsageError, match="give folder"):
        onnx_train.fit(training, data, epochs=1, val_split=0.5, checkpoint="x.onnx")
    with pytest.raises(onnx_train.UsageError, match="batches of the program"):
        onnx_train.fit(training, [data], epochs=1, val_split=0.5)


def test_classes_are_balanced(training, data):
    rare = {"x": data["x"], "labels": np.where(np.arange(60) == 7, 1, 0)}
    # With a rate of 0, the mean loss of an epoch is the mean of the losses of what was drawn.
    session = onnx_train.Session(onnx_train.load(training))
    losses = [session.evaluate(data["x"][rare["labels"] == c], rare["labels"][rare["labels"] == c]).loss for c in (0, 1)]
    drawn = onnx_train.fit(training, rare, epochs=20, batch_size=60, lr=1e-12, class_balance=True)
    assert np.mean(drawn.losses) == pytest.approx(np.mean(losses), rel=0.05)


def test_the_best_state_is_that_of_the_metric(training, data, tmp_path):
    np.savez(tmp_path / "data.npz", **data)
    run = tmp_path / "run"
    out = tool.run("fit", training, "--data", tmp_path / "data.npz", "--val-split", 0.5, "--epochs", 6, "--lr", 0.5,
                   "--best", "accuracy", "--early-stop", 2, "--out", run)  # fmt: skip
    epochs = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    accuracies = [epoch["eval_accuracy"] for epoch in epochs]
    best = [accuracies[i] > max(accuracies[:i], default=-1) for i in range(len(epochs))]
    assert [epoch["best"] for epoch in epochs] == best
    assert "highest evaluation accuracy" in " ".join(out.split())
    message = fails("fit", training, "--data", tmp_path / "data.npz", "--epochs", 1, "--best", "accuracy", "--out", run / "x")
    assert "--eval-data or --val-split" in message
    message = fails("fit", training, "--data", tmp_path / "data.npz", "--val-split", 0.5, "--epochs", 1, "--best", "f1",
                         "--out", run / "x")  # fmt: skip
    assert "the evaluation gives no 'f1'; it gives loss, accuracy" in message


class Frame:
    """What is used of a frame of pandas."""

    columns = ["a", "b", "c", "d", "kind"]

    def __init__(self, text):
        self.text = text

    def to_csv(self, path, index):
        assert index is False
        with open(path, "w") as file:
            file.write(self.text)


def test_a_table_of_texts_trains_and_its_classes_stay_with_the_model(training, tmp_path):
    rng = np.random.default_rng(1)
    kinds = np.array(["ant", "bee", "cat"])[rng.integers(0, 3, 30)]
    rows = [f"{rng.normal():.3f},{rng.normal():.3f},{rng.choice(['red', 'blue'])},{i % 7 or ''},{kind}" for i, kind in enumerate(kinds)]
    text = "\n".join(["a,b,c,d,kind", *rows]) + "\n"
    (tmp_path / "train.csv").write_text(text)
    (tmp_path / "one.csv").write_text("a,b,c,d,kind\n1,2,red,,cat\n")
    options = ("--missing", "mean", "--map", "kind=labels")
    tool.run("fit", training, "--data", tmp_path / "train.csv", *options, "--epochs", 1, "--out", tmp_path / "run")
    trained = onnx.load(tmp_path / "run/last.onnx")
    metadata = {entry.key: entry.value for entry in trained.metadata_props}
    assert json.loads(metadata["onnx_train.classes"]) == ["ant", "bee", "cat"]
    means = np.mean([i % 7 for i in range(30) if i % 7])
    assert json.loads(metadata["onnx_train.columns"])["c"] == ["blue", "red"]
    assert json.loads(metadata["onnx_train.columns"])["d"] == pytest.approx(means)
    tool.run("export", tmp_path / "run/last.onnx", "-o", tmp_path / "trained.onnx")
    one = onnx_train.load_data(tmp_path / "one.csv", tmp_path / "run/last.onnx", entry="evaluate", map={"kind": "labels"})
    np.testing.assert_allclose(one["x"], [[1, 2, 1, means]])
    assert one["labels"].tolist() == [2]
    one = onnx_train.load_data(tmp_path / "one.csv", tmp_path / "trained.onnx", columns={"x": ["a", "b", "c", "d"]})
    np.testing.assert_allclose(one["x"], [[1, 2, 1, means]])
    with pytest.warns(UserWarning):
        frame = onnx_train.fit(training, Frame(text), epochs=1, missing="mean", map={"kind": "labels"}, lr=0.01)
    with pytest.warns(UserWarning):
        table = onnx_train.fit(training, tmp_path / "train.csv", epochs=1, missing="mean", map={"kind": "labels"}, lr=0.01)
    np.testing.assert_array_equal(frame.losses, table.losses)


def test_parquet_is_read_where_pyarrow_is_installed(training, tmp_path):
    message = fails("fit", training, "--data", tmp_path / "x.parquet", "--epochs", 1, "--out", tmp_path / "run")
    assert "there is no data at" in message
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    message = fails("fit", training, "--data", tmp_path / "x.parquet", "--epochs", 1, "--out", tmp_path / "run")
    assert "from Python alone" in message
    try:
        import pyarrow.parquet
    except ImportError:
        with pytest.raises(onnx_train.UsageError, match="needs the package pyarrow"):
            onnx_train.fit(training, tmp_path / "x.parquet", epochs=1)
        return
    rng = np.random.default_rng(0)
    columns = {f"x{i}": rng.normal(size=20) for i in range(4)} | {"labels": ["b", "a"] * 10}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    with pytest.warns(UserWarning, match="2 classes"):
        read = onnx_train.fit(training, tmp_path / "x.parquet", epochs=1)
    arrays = {"x": np.stack([columns[f"x{i}"] for i in range(4)], axis=1), "labels": np.array([1, 0] * 10)}
    np.testing.assert_array_equal(read.losses, onnx_train.fit(training, arrays, epochs=1).losses)


def test_the_command_and_python_write_the_same_texts(tmp_path):
    model = onnx.load(tool.ROOT / "tests" / "fixtures" / "next.onnx")
    table = np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)
    table[:, :32] = -50  # ends of lines are no text of a line
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(table, "table"))
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 128
    onnx.save(model, tmp_path / "lm.onnx")
    options = {"tokens": 20, "temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 3}
    flags = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), value)]
    seen = []
    prompt = [104, 105]
    texts = onnx_train.generate(tmp_path / "lm.onnx", [prompt, prompt], **options,
                                on_token=lambda text, token: seen.append((text, token)))  # fmt: skip
    assert [len(text) for text in texts] == [20, 20] and texts[0] != texts[1]
    assert seen[:2] == [(0, texts[0][0]), (1, texts[1][0])]
    written = tool.output("sample", tmp_path / "lm.onnx", "--prompt-ids", "104,105", *flags)
    assert [int(word) for word in written.split()] == prompt + texts[0]
    written = tool.output("sample", tmp_path / "lm.onnx", "--prompt", "hi", *flags)
    assert written == "hi" + bytes(texts[0]).decode() + "\n"
    written = tool.output("sample", tmp_path / "lm.onnx", "--prompt", "hi", "--texts", 2, "--ids", *flags)
    assert [[int(word) for word in line.split()] for line in written.splitlines()] == [prompt + text for text in texts]

    class Letters:
        def encode(self, text):
            return list(text.encode())

        def decode(self, tokens):
            return bytes(tokens).decode()

        def piece_to_id(self, token):
            return 98 if token == "<end>" else None

    session = onnx_train.Session(tmp_path / "lm.onnx")
    assert onnx_train.generate(session, "hi", tokenizer=Letters(), **options) == bytes(texts[0]).decode()
    ended = onnx_train.generate(session, ["hi"], tokenizer=Letters(), end="<end>", **options | {"tokens": 2000})
    assert ended[0].index("b") == len(ended[0]) - 1
    with pytest.raises(KeyError, match="mine"):
        onnx_train.generate(session, prompt, on_token=lambda text, token: {}["mine"])
    with pytest.raises(onnx_train.UsageError, match="end is the number of a token"):
        onnx_train.generate(session, prompt, end="<end>")
    for arguments in ["--prompt", "a", "--prompt-ids", "1"], [], ["--prompt-ids", "1,x"], ["--prompt-ids", ""]:
        assert "prompt" in fails("sample", tmp_path / "lm.onnx", *arguments)


@pytest.mark.parametrize("options", [{"val_split": 0.3}, {"folds": 4, "fold": 2}, {"val_split": 0.5, "limit": 31},
                                     {"val_split": 0.5, "limit": 30, "skip": 20}])  # fmt: skip
def test_split_rows_says_what_fit_evaluates_on(training, data, options):
    history = onnx_train.fit(training, data, epochs=1, batch_size=7, lr=0.01, seed=5, **options)
    train, held_out = onnx_train.split_rows(60, seed=5, **options)
    skip = options.get("skip", 0)
    assert sorted([*train, *held_out]) == list(range(skip, skip + options.get("limit", 60)))
    assert sum(step.samples for step in history.steps) == len(train)
    rows = {name: array[held_out] for name, array in data.items()}
    expected = history.evaluations[-1].metrics["loss"]
    assert history.session.evaluate(rows).loss == pytest.approx(expected, rel=1e-6)
    logits = history.session.predict(rows["x"]).logits
    own = history.session.evaluate(rows, metrics={"mistakes": lambda outputs, of: (outputs["logits"].argmax(1) != of["labels"]).sum()})
    assert own.mistakes == (logits.argmax(1) != rows["labels"]).sum()
    with pytest.raises(onnx_train.UsageError):
        onnx_train.split_rows(0, val_split=0.5)
    assert len(onnx_train.split_rows(5)[1]) == 0
