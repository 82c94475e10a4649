"""Documents that share rows: gradients of packed and unpacked steps, batches by length, tokens that are kept, streams."""

import gzip
import json
import os
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
import tokenizer_families
import tool

import onnx_train

VOCABULARY, WIDTH, PLACES = 320, 8, 32
LOSS = "cross_entropy(logits, labels, axis=2)"
WORDS = "a packed row holds several documents of which none reads another one"
DOCUMENTS = [WORDS[i : i + n] for i, n in ((0, 5), (3, 14), (20, 2), (9, 20), (30, 9), (1, 7), (40, 17), (11, 3))]

# Scores [N, 2, T, T] of x [N, T, 8] and the output y, around a mask.
ATTENTION = """
    qh = MatMul(x, wq)
    kh = MatMul(x, wk)
    vh = MatMul(x, wv)
    q0 = Reshape(qh, heads)
    k0 = Reshape(kh, heads)
    v0 = Reshape(vh, heads)
    q1 = Transpose <perm = [0, 2, 1, 3]> (q0)
    k1 = Transpose <perm = [0, 2, 1, 3]> (k0)
    v = Transpose <perm = [0, 2, 1, 3]> (v0)
    {turn}
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    scores = MatMul(q, kt)
    {mask}
    weights = Softmax <axis = -1> (masked)
    read = MatMul(weights, v)
    back = Transpose <perm = [0, 2, 1, 3]> (read)
    flat = Reshape(back, joined)
    y = Add(x, flat)
    logits = MatMul(y, head)
"""
STRAIGHT = "q = Identity(q1) k = Identity(k1)"
# Rotary positions, float[T] or [N, T, 1] as they come: (a, b) becomes (a cos - b sin, b cos + a sin).
TURNED = "".join(f"""
    {x}a, {x}b = Split <axis = -1, num_outputs = 2> ({x}1)
    {x}ac = Mul({x}a, cos)
    {x}bs = Mul({x}b, sin)
    {x}bc = Mul({x}b, cos)
    {x}as = Mul({x}a, sin)
    {x}first = Sub({x}ac, {x}bs)
    {x}second = Add({x}bc, {x}as)
    {x} = Concat <axis = -1> ({x}first, {x}second)""" for x in "qk")  # fmt: skip
COUNTED = "count = Shape <start = 1> (input_ids) one_count = Squeeze(count) places = Range(zero, one_count, one)"
LATER = f"""
    column = Unsqueeze(places, last)
    earlier = LessOrEqual(places, column)"""
LEARNED = "learned = Gather(table_of_places, {}) x = Add(words, learned)"
ANGLES = """
    {0}
    angles = Mul(angle, frequencies)
    cos = Cos(angles)
    sin = Sin(angles)
    x = Identity(words)"""
GRAPHS = {
    # GPT-2 as it is exported: positions and causal mask are counted inside.
    "gpt": ("", COUNTED + LATER + LEARNED.format("places"), STRAIGHT, "masked = Where(earlier, scores, lowest)"),
    # Llama: a mask of tokens, rotary positions that are counted inside.
    "llama": (", int64[N, T] attention_mask", COUNTED + LATER + ANGLES.format("floats = Cast <to = {F}> (places) angle = Unsqueeze(floats, last)"),
              TURNED,
              """there = Cast <to = 9> (attention_mask) theirs = Unsqueeze(there, pair) both = And(earlier, theirs)
              masked = Where(both, scores, lowest)"""),
    # The same with positions of the data, and a mask that is added.
    "positions": (", int64[N, T] attention_mask, int64[N, T] position_ids",
                  COUNTED + LATER + ANGLES.format("floats = Cast <to = {F}> (position_ids) angle = Unsqueeze(floats, ends)"), TURNED,
                  """there = Cast <to = 9> (attention_mask) theirs = Unsqueeze(there, pair) both = And(earlier, theirs)
                  bias = Where(both, none, lowest) masked = Add(scores, bias)"""),
    # A mask of pairs, as transformers takes a 4-D one.
    "pairs": (", {F4}[N, 1, T, T] attention_mask, int64[N, T] position_ids", LEARNED.format("position_ids"), STRAIGHT,
              "masked = Add(scores, attention_mask)"),
    "flags": (", bool[N, 1, T, T] attention_mask, int64[N, T] position_ids", LEARNED.format("position_ids"), STRAIGHT,
              "masked = Where(attention_mask, scores, lowest)"),
}  # fmt: skip


def language_model(name):
    inputs, before, turn, mask = GRAPHS[name]
    text = f"words = Gather(table, input_ids) {before} {ATTENTION.format(turn=turn, mask=mask)}".replace("{F}", "1")
    rng = np.random.default_rng(1)
    weights = {"table": (VOCABULARY, WIDTH), "wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH), "wv": (WIDTH, WIDTH), "head": (WIDTH, VOCABULARY)}
    if "table_of_places" in before:
        weights["table_of_places"] = (PLACES, WIDTH)
    constants = {"heads": np.array([0, 0, 2, 4]), "joined": np.array([0, 0, WIDTH]), "zero": np.array(0), "one": np.array(1), "last": np.array([-1]),
                 "ends": np.array([1, 3]), "pair": np.array([1, 2]), "lowest": np.float32(-3e38), "none": np.float32(0),
                 "frequencies": np.array([1, 0.1], np.float32)}  # fmt: skip
    constants = {key: value for key, value in constants.items() if f" {key})" in text or f", {key}" in text or f"({key}," in text}
    kinds = {np.dtype(np.int64): "int64", np.dtype(np.float32): "float"}
    declared = [f"float[{r}, {c}] {key}" for key, (r, c) in weights.items()]
    declared += [f"{kinds[np.asarray(value).dtype]}[{', '.join(map(str, np.shape(value)))}] {key}" for key, value in constants.items()]
    declared = [line.replace("[]", "") for line in declared]
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        lm (int64[N, T] input_ids{inputs.replace("{F4}", "float")}) => (float[N, T, {VOCABULARY}] logits) <{", ".join(declared)}> {{ {text} }}""")
    values = {key: rng.normal(size=shape).astype(np.float32) / 2 for key, shape in weights.items()} | constants
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in values.items())
    return model


def write_documents(path, documents=DOCUMENTS):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def gradients(model, data, packing, **reading):
    """Those of one step over all samples, and the loss."""
    session = onnx_train.Session(model)
    arrays = dict(onnx_train.load_data(data, session, packing=packing, block_size=PLACES, **reading))
    before = {port.name: np.array(session.state[port.name]) for port in session.states() if not port.role}
    loss = session.step(arrays, lr=1.0).loss
    return float(loss), {name: value - np.array(session.state[name]) for name, value in before.items()}, arrays


@pytest.mark.parametrize("name", GRAPHS)
def test_packed_documents_have_the_gradients_of_unpacked_ones(name, tmp_path):
    data = write_documents(tmp_path / "documents.jsonl")
    model = onnx_train.load(language_model(name)).build(loss=LOSS, optimizer="sgd", document_mask=True, dtype="float32")
    loss, expected, alone = gradients(model, data, "none")
    assert alone["input_ids"].shape == (len(DOCUMENTS), PLACES)
    counts = {"bfd": 3, "wrapped": None}
    for packing in counts:
        packed_loss, packed, arrays = gradients(model, data, packing)
        if packing == "bfd":
            assert len(arrays["input_ids"]) == 3
            assert (arrays["labels"] >= 0).sum() == (alone["labels"] >= 0).sum()
            assert abs(packed_loss - loss) < 1e-6
            assert {"table", "wq", "wk", "wv", "head"} <= set(expected)
            for weight, gradient in expected.items():
                assert np.abs(gradient).max() > 1e-3, weight
                np.testing.assert_allclose(packed[weight], gradient, rtol=0, atol=1e-6, err_msg=weight)
        else:  # cut where a row ends
            assert (arrays["labels"] >= 0).sum() == (alone["labels"] >= 0).sum()


@pytest.mark.parametrize("kind", ["GPT2", "Llama"])
def test_exports_of_transformers_keep_documents_apart(kind, tmp_path):
    """Learned positions that are counted inside, and rotary ones with shared keys; masks of tokens alone."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = {"GPT2": {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2},
              "Llama": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                        "max_position_embeddings": 64}}[kind]  # fmt: skip
    module = getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'ForCausalLM'}")(getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **config))
    module.config.use_cache = False

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, input_ids, attention_mask):
            return self.module(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits

    tokens = torch.zeros((2, 8), dtype=torch.long)
    sizes = {0: torch.export.Dim("batch", min=1, max=4096), 1: torch.export.Dim("tokens", min=2, max=64)}
    torch.onnx.export(Logits().eval(), (tokens, torch.ones_like(tokens)), str(tmp_path / "lm.onnx"), input_names=["input_ids", "attention_mask"],
                      output_names=["logits"], dynamic_shapes=(sizes, sizes), dynamo=True, external_data=False)  # fmt: skip
    model = onnx_train.load(tmp_path / "lm.onnx").build(loss=LOSS, optimizer="sgd", document_mask=True)
    data = write_documents(tmp_path / "documents.jsonl")
    loss, expected, _ = gradients(model, data, "none")
    packed_loss, packed, arrays = gradients(model, data, "bfd")
    assert len(arrays["labels"]) == 3 and abs(packed_loss - loss) < 1e-6
    assert max(np.abs(gradient).max() for gradient in expected.values()) > 1e-2
    for weight, gradient in expected.items():
        np.testing.assert_allclose(packed[weight], gradient, rtol=0, atol=1e-6, err_msg=weight)


def test_without_the_mask_packed_documents_are_refused(tmp_path):
    data = write_documents(tmp_path / "documents.jsonl")
    onnx.save(language_model("llama"), tmp_path / "lm.onnx")
    tool.run("build", tmp_path / "lm.onnx", "-o", tmp_path / "train.onnx", "--loss", LOSS)
    fit = ("--data", data, "--block-size", PLACES, "--packing", "bfd", "--steps", 2, "--batch-size", 2)
    refused = tool.run("fit", tmp_path / "train.onnx", *fit, "--out", tmp_path / "refused", status=2)
    assert "'attention_mask' int64[N,T] says which tokens there are, so that documents of a row would read each other" in refused
    # Of a forward model fit builds one with the mask, and goes on with it; what it trains is exported without.
    printed = tool.run("fit", tmp_path / "lm.onnx", *fit, "--out", tmp_path / "run")
    assert "8 documents in 3 samples of 32 tokens (bfd)" in printed
    tool.run("fit", tmp_path / "lm.onnx", "--data", data, "--steps", 4, "--resume", "--out", tmp_path / "run")
    tool.run("fit", tmp_path / "lm.onnx", *fit[:-4], "--steps", 4, "--batch-size", 2, "--out", tmp_path / "whole")
    assert (tmp_path / "run/last.onnx").read_bytes() == (tmp_path / "whole/last.onnx").read_bytes()
    tool.run("export", tmp_path / "run/last.onnx", "-o", tmp_path / "served.onnx")
    served = onnx.load(tmp_path / "served.onnx")
    assert [port.name for port in served.graph.input] == ["input_ids", "attention_mask"]
    batch = {"input_ids": np.full((1, 5), 65), "attention_mask": np.ones((1, 5), np.int64)}
    expected = onnx_train.Session(onnx_train.load(tmp_path / "run/last.onnx")).predict(batch | {"document_starts": np.zeros((1, 5), np.int64)}).logits
    np.testing.assert_allclose(tool.session(tmp_path / "served.onnx").run(None, batch)[0], expected, atol=1e-5)


def test_batches_by_length_are_the_same_for_ranks_and_after_a_resume(tmp_path):
    rng = np.random.default_rng(0)
    data = write_documents(tmp_path / "documents.jsonl", ["x" * n for n in rng.integers(2, 32, 60)])
    onnx.save(language_model("llama"), tmp_path / "lm.onnx")
    tool.run("build", tmp_path / "lm.onnx", "-o", tmp_path / "train.onnx", "--loss", LOSS, "--accumulate")
    fit = ("fit", tmp_path / "train.onnx", "--data", data, "--block-size", PLACES, "--packing", "none", "--batch-size", 4, "--accumulate", 2)
    tool.run(*fit, "--group-by-length", "--steps", 12, "--out", tmp_path / "whole")
    tool.run(*fit, "--group-by-length", "--steps", 12, "--devices", "cpu,cpu", "--out", tmp_path / "ranks")
    tool.run(*fit, "--group-by-length", "--steps", 5, "--out", tmp_path / "parts")
    tool.run(*fit, "--steps", 12, "--resume", "--out", tmp_path / "parts")
    assert (tmp_path / "whole/last.onnx").read_bytes() == (tmp_path / "parts/last.onnx").read_bytes()
    np.testing.assert_array_equal(tool.losses(tmp_path / "whole"), tool.losses(tmp_path / "ranks"))
    tool.run(*fit, "--steps", 1, "--group-by-length", "--no-shuffle", "--out", tmp_path / "x", status=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training model with the mask, and the folder of a tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer_families.byte_bpe(300).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}")
    onnx.save(language_model("gpt"), folder / "lm.onnx")
    tool.run("build", folder / "lm.onnx", "-o", folder / "train.onnx", "--loss", LOSS, "--document-mask", "--accumulate")
    return folder


def test_tokens_are_kept_beside_the_text(trained, tmp_path):
    data = write_documents(tmp_path / "documents.jsonl")

    def load(**reading):
        return dict(onnx_train.load_data(data, trained / "train.onnx", tokenizer=str(trained), block_size=8, **reading))

    def kept():
        return [path for path in tmp_path.iterdir() if path.suffix == ".tokens"]

    expected = load(packing="bfd", token_cache=False)
    assert not kept()
    load(packing="bfd")
    (file,) = kept()
    written = file.read_bytes(), file.stat().st_mtime_ns
    for reading in {"packing": "bfd"}, {"packing": "none"}, {}:
        again = load(**reading)
        if reading == {"packing": "bfd"}:
            for name, array in expected.items():
                np.testing.assert_array_equal(again[name], array)
        assert (file.read_bytes(), file.stat().st_mtime_ns) == written
    # Another end of documents has a file of its own; another text, or a damaged file, takes the place of the one that is there.
    load(document_end=5)
    assert len(kept()) == 2
    for damage in written[0][:100], written[0][:8] + b"x" * 100, b"", written[0].replace(b'"ends"', b'"ende"'):
        file.write_bytes(damage)
        np.testing.assert_array_equal(load(packing="bfd")["input_ids"], expected["input_ids"])
        assert file.read_bytes() == written[0]
    write_documents(data, [*DOCUMENTS, "one more document of text"])
    assert (load(packing="none")["labels"] >= 0).sum() > (expected["labels"] >= 0).sum()
    assert file.read_bytes() != written[0]


def test_tokens_of_a_folder_that_is_not_written_are_kept_for_the_user(trained, tmp_path):
    folder = tmp_path / "read_only"
    folder.mkdir()
    chats = folder / "chats.jsonl"
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello yourself"}]
    chats.write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(9)))
    fit = ("fit", trained / "train.onnx", "--data", chats, "--tokenizer", trained, "--block-size", PLACES, "--packing", "bfd", "--steps", 1, "--batch-size", 2)
    # Where the file would be, there is a folder: so it is for root, who may write everywhere.
    first = tool.run(*fit, "--out", tmp_path / "a")
    (beside,) = (path for path in folder.iterdir() if path.suffix == ".tokens")
    assert f"the tokens of {chats} are kept for the next run in {beside}; --no-token-cache leaves that out" in first
    assert "9 conversations in " in first and "samples (bfd) of 32 tokens" in first
    beside.unlink()
    beside.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_TRAIN_CACHE", str(tmp_path / "cache"))
        second = tool.run(*fit, "--out", tmp_path / "b")
        assert f"are kept for the next run in {tmp_path}/cache/tokens/chats.jsonl." in second
        third = tool.run(*fit, "--out", tmp_path / "c")
        assert f"are those that {tmp_path}/cache/tokens/chats.jsonl." in third
        assert "tokens of" not in tool.run(*fit, "--no-token-cache", "--out", tmp_path / "d").replace("tokens of answers", "")
        patch.setenv("ONNX_TRAIN_CACHE", str(chats))
        assert "are not kept for the next run: " in tool.run(*fit, "--out", tmp_path / "e")
    losses = [tool.losses(tmp_path / run) for run in "abcde"]
    assert all(np.array_equal(loss, losses[0]) for loss in losses)


def test_processes_that_start_together_keep_one_file(trained, tmp_path):
    data = write_documents(tmp_path / "documents.jsonl", DOCUMENTS * 50)
    fit = ("fit", trained / "train.onnx", "--data", data, "--tokenizer", trained, "--block-size", PLACES, "--steps", 1, "--batch-size", 4)
    started = [tool.start(*fit, "--out", tmp_path / f"run{i}") for i in range(4)]
    assert [process.wait(timeout=tool.PATIENCE) for process in started] == [0] * 4
    (file,) = (path for path in tmp_path.iterdir() if ".tokens" in path.name)
    assert "are those that" in tool.run(*fit, "--out", tmp_path / "last")
    assert all(np.array_equal(tool.losses(tmp_path / f"run{i}"), tool.losses(tmp_path / "last")) for i in range(4))


def test_shards_are_streamed_alike_by_ranks_and_after_a_resume(trained, tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    lines = [json.dumps({"text": DOCUMENTS[i % 8] + str(i)}) + "\n" for i in range(90)]
    (shards / "a_train.jsonl").write_text("".join(lines[:40]))
    (shards / "b_train.jsonl.gz").write_bytes(gzip.compress("".join(lines[40:]).encode()))
    fit = ("fit", trained / "train.onnx", "--data", f"{shards}/*_train*", "--tokenizer", trained, "--block-size", PLACES, "--packing", "wrapped",
           "--batch-size", 2, "--accumulate", 2, "--lr", 0.1)  # fmt: skip
    streamed = (*fit, "--stream", "--shuffle-buffer", 8)
    printed = tool.run(*streamed, "--epochs", 2, "--out", tmp_path / "whole")
    assert "read while it is trained on, 8 samples at a time" in printed
    tool.run(*streamed, "--epochs", 2, "--devices", "cpu,cpu", "--out", tmp_path / "ranks")
    steps = len(tool.losses(tmp_path / "whole"))
    tool.run(*streamed, "--steps", steps // 2 + 1, "--out", tmp_path / "parts")
    tool.run(*streamed, "--epochs", 2, "--resume", "--out", tmp_path / "parts")
    np.testing.assert_array_equal(tool.losses(tmp_path / "ranks"), tool.losses(tmp_path / "whole"))
    np.testing.assert_array_equal(tool.losses(tmp_path / "parts"), tool.losses(tmp_path / "whole"))
    assert "no such" not in printed and not list(shards.glob("*.tokens"))


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "txt", "bin"])
def test_a_stream_goes_on_where_the_run_was(trained, tmp_path, kind):
    """At each step of two epochs: the samples are those of a run that never stopped."""
    shards = tmp_path / "shards"
    shards.mkdir()
    options = () if kind == "bin" else ("--tokenizer", trained)
    for i in range(3):
        lines = "".join(json.dumps({"text": DOCUMENTS[(3 * i + k) % 8] + f" {i} {k}"}) + "\n\n" for k in range(9))
        text = {"jsonl": lines.encode(), "jsonl.gz": gzip.compress(lines.encode()), "txt": " ".join(DOCUMENTS[i:]).encode(),
                "bin": (np.arange(140, dtype=np.uint16) * (i + 3) % 50).tobytes()}[kind]  # fmt: skip
        (shards / f"{i}_train.{kind}").write_bytes(text)
    fit = ("fit", trained / "train.onnx", "--data", f"{shards}/*_train*", *options, "--block-size", 8, "--batch-size", 3, "--lr", 0.1, "--stream",
           "--shuffle-buffer", 4)  # fmt: skip
    tool.run(*fit, "--epochs", 2, "--out", tmp_path / "whole")
    expected, steps = tool.losses(tmp_path / "whole"), len(tool.losses(tmp_path / "whole"))
    assert steps > 6
    for step in range(1, steps):  # from checkpoint to checkpoint
        tool.run(*fit, "--steps", step, "--out", tmp_path / "parts", *(("--resume",) if step > 1 else ()))
    tool.run(*fit, "--epochs", 2, "--resume", "--out", tmp_path / "parts")
    np.testing.assert_array_equal(tool.losses(tmp_path / "parts"), expected)
    whole = tool.state_of(onnx.load(tmp_path / "whole/last.onnx"))
    for name, value in tool.state_of(onnx.load(tmp_path / "parts/last.onnx")).items():
        np.testing.assert_array_equal(value, whole[name])


def test_a_resumed_stream_makes_no_tokens_of_what_it_has_seen(trained, tmp_path):
    """Lines that the run has read may be anything by now, if they are as long."""
    data = tmp_path / "a_train.jsonl"
    lines = [json.dumps({"text": DOCUMENTS[i % 8] + str(i)}) + "\n" for i in range(90)]
    data.write_text("".join(lines))
    fit = ("fit", trained / "train.onnx", "--data", data, "--tokenizer", trained, "--block-size", PLACES, "--packing", "wrapped", "--batch-size", 2,
           "--stream", "--shuffle-buffer", 4, "--no-shuffle")  # fmt: skip
    tool.run(*fit, "--epochs", 1, "--out", tmp_path / "whole")
    steps = len(tool.losses(tmp_path / "whole"))
    tool.run(*fit, "--steps", steps - 2, "--out", tmp_path / "run")
    seen = range(30, 50)  # behind the first window, which is checked, and before that of the last steps
    data.write_text("".join("?" * (len(line) - 1) + "\n" if i in seen else line for i, line in enumerate(lines)))
    tool.run(*fit, "--epochs", 1, "--resume", "--out", tmp_path / "run")
    np.testing.assert_array_equal(tool.losses(tmp_path / "run"), tool.losses(tmp_path / "whole"))
    position = json.loads(onnx_train.load(tmp_path / "run/last.onnx").metadata["onnx_train.checkpoint"])
    assert "place" not in position  # the end of an epoch is the start of the next one


def test_standard_input_is_streamed(trained, tmp_path):
    def stream(text, *options, status=0):
        process = subprocess.run([tool.COMMAND, "fit", str(trained / "train.onnx"), "--data", "-", "--block-size", "8", "--batch-size", "2", *map(str, options)],
                                 input=text.encode(), capture_output=True, timeout=tool.PATIENCE, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
        assert process.returncode == status, process.stderr.decode()
        return (process.stdout + process.stderr).decode()

    lines = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS * 4)
    assert "standard input: read while it is trained on" in stream(lines, "--epochs", 1, "--out", tmp_path / "json")
    stream("\n".join(DOCUMENTS * 4) + "\n", "--epochs", 1, "--out", tmp_path / "text")
    np.testing.assert_array_equal(tool.losses(tmp_path / "json"), tool.losses(tmp_path / "text"))
    assert "standard input has ended" in stream(lines, "--steps", 1000, "--out", tmp_path / "short", status=1)
    # A writer without an end, which falls silent: the training ends first.
    writer = subprocess.Popen([sys.executable, "-c", "import time; print('some words\\n' * 100, flush=True); time.sleep(600)"], stdout=subprocess.PIPE)
    try:
        endless = subprocess.run([tool.COMMAND, "fit", str(trained / "train.onnx"), "--data", "-", "--block-size", "8", "--batch-size", "2", "--steps", "3",
                                  "--shuffle-buffer", "8", "--out", str(tmp_path / "endless")], stdin=writer.stdout, capture_output=True, timeout=tool.PATIENCE)  # fmt: skip
    finally:
        writer.kill()
        writer.wait()
    assert endless.returncode == 0 and len(tool.losses(tmp_path / "endless")) == 3
    # The same input again: what the run has read is skipped. Another input is read from its start.
    stream(lines, "--steps", 9, "--shuffle-buffer", 4, "--out", tmp_path / "parts")
    said = stream(lines, "--epochs", 1, "--shuffle-buffer", 4, "--resume", "--out", tmp_path / "parts")
    stream(lines, "--epochs", 1, "--shuffle-buffer", 4, "--out", tmp_path / "windows")
    np.testing.assert_array_equal(tool.losses(tmp_path / "parts"), tool.losses(tmp_path / "windows"))
    assert re.search(r"standard input: the first \d+ bytes are skipped, which the run has read before", said)
    others = "".join(json.dumps({"text": text[::-1]}) + "\n" for text in DOCUMENTS * 4)
    for next_one in (others, others[: len(others) // 2]):
        stream(lines, "--steps", 9, "--shuffle-buffer", 4, "--overwrite", "--out", tmp_path / "more")
        said = stream(next_one, "--epochs", 1, "--shuffle-buffer", 4, "--resume", "--out", tmp_path / "more")
        assert "standard input is not the one that the run has read before: it is read from its start" in said
        stream(next_one, "--epochs", 1, "--shuffle-buffer", 4, "--no-shuffle", "--out", tmp_path / "alone", "--overwrite")
        assert len(tool.losses(tmp_path / "more")) == 9 + len(tool.losses(tmp_path / "alone"))
    stream(lines, "--steps", len(tool.losses(tmp_path / "windows")) - 1, "--shuffle-buffer", 4, "--out", tmp_path / "late")
    said = stream(lines[: len(lines) // 3], "--epochs", 1, "--shuffle-buffer", 4, "--resume", "--out", tmp_path / "late", status=1)
    assert "cannot resume: standard input has fewer than the " in said
