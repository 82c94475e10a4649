"""Folders of language models that Optimum and ONNX Runtime GenAI's model builder have written: in, three steps, out. What serves
them then writes the tokens that `sample` writes. A few are in tests/fixtures/served. All others are made here if two variables name
the Pythons of environments that have the builders:

    ONNX_TRAIN_GENAI_PYTHON    pip install torch transformers onnx onnx-ir onnxruntime-genai
    ONNX_TRAIN_OPTIMUM_PYTHON  pip install torch optimum-onnx onnxruntime accelerate
"""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import other_builders
import pytest
import tool

PROGRAM = Path(other_builders.__file__)
TEXT = tool.ROOT / "models" / "data" / "devils_dictionary.txt"
PROMPTS = [[5, 17, 23, 40], [9]]
TOKENS, HEAD = 8, 16
# What the builders have written is in tests/fixtures/served.
STORED = ("genai_llama", "genai_qwen2_int4", "optimum_gpt2_merged")
BUILDERS = {"genai": "pip install torch transformers onnx onnxruntime-genai", "optimum": "pip install torch optimum-onnx accelerate"}


def python_of(builder):
    variable = f"ONNX_TRAIN_{builder.upper()}_PYTHON"
    python = os.environ.get(variable, tool.ROOT / ".deps" / builder / "bin" / "python")
    if not os.path.exists(python):
        pytest.skip(f"{builder} is not installed: {BUILDERS[builder]}, and {variable} names the Python that has it")
    return python


def ask(builder, *arguments):
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([python_of(builder), PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=1200,
                          env=os.environ | quiet)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """The folder of a name; all of a builder are made at once, in a folder whose name has a space."""
    made = {}

    def folder_of(name):
        builder = name.split("_")[0]
        if builder == "stored":
            return tool.ROOT / "tests" / "fixtures" / "served" / name.removeprefix("stored_")
        if builder not in made:
            python_of(builder)  # skips the test, and each that comes after it
            made[builder] = tmp_path_factory.mktemp(f"made by {builder}")
            ask(builder, "make", made[builder], *(other for other in other_builders.FOLDERS if other.startswith(builder)))
        error = made[builder] / name / "error.txt"
        if error.exists() and error.read_text().startswith("SystemExit"):
            pytest.skip(f"this version of the builder of {name} does not know its options")
        assert not error.exists(), error.read_text()
        return made[builder] / name

    return folder_of


def model_of(folder):
    config = folder / "genai_config.json"
    if config.exists():
        return folder / json.loads(config.read_text())["model"]["decoder"]["filename"]
    return next(path for path in sorted(folder.rglob("*.onnx")))


def feeds_of(session, ids, past, cache):
    """The inputs of a decoder for the tokens of one text after `past` others."""
    given = {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, past + len(ids)), np.int64),
             "position_ids": np.arange(past, past + len(ids))[None], "use_cache_branch": np.array([past > 0])}  # fmt: skip
    feeds = {}
    for spec in session.get_inputs():
        if spec.name.startswith("past"):
            kind = np.float16 if "float16" in spec.type else np.float32
            empty = [1, spec.shape[1] if isinstance(spec.shape[1], int) else 1, 0, HEAD]
            feeds[spec.name] = cache[spec.name.replace("past_key_values", "present")] if cache else np.zeros(empty, kind)
        elif spec.name in given:
            feeds[spec.name] = given[spec.name]
    return feeds


def decode(path, prompts, tokens, adapter=None, given=None):
    """Greedy tokens after each prompt, or those that are given, read with the cache where the file has one; and the logits that each
    was drawn of."""
    session, options = tool.session(path), onnxruntime.RunOptions()
    if adapter:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(str(adapter))
        options.add_active_adapter(loaded)
    names = [output.name for output in session.get_outputs()]
    texts, logits = [], []
    for i, prompt in enumerate(prompts):
        text, read, cache = list(prompt), 0, {}
        for place in range(tokens):
            outputs = dict(zip(names, session.run(None, feeds_of(session, text[read:], read, cache), options)))
            cache = {name: value for name, value in outputs.items() if name.startswith("present")}
            read = len(text) if cache else 0
            logits.append(outputs["logits"][0, -1].astype(np.float32))
            text.append(given[i][place] if given else int(logits[-1].argmax()))
        texts.append(text[len(prompt) :])
    return texts, np.array(logits)


def sampled(model, prompts, tokens):
    """The same by the command."""
    said = []
    for prompt in prompts:
        ids = ",".join(map(str, prompt))
        out = tool.output("sample", model, "--prompt-ids", ids, "--tokens", tokens, "--temperature", 0, "--ids")
        said.append([int(number) for number in re.findall(r"\d+", out.splitlines()[-1])][-tokens:])
    return said


def inputs_of(model, ids):
    """The inputs that the model has of these: tokens int[texts, tokens], their mask and their positions."""
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape)}
    names = {value.name for value in onnx.load(model, load_external_data=False).graph.input}
    return {name: array for name, array in given.items() if name in names}


def predicted(model, prompts, texts, place):
    """The logits of each token of the texts, of all tokens at once."""
    logits = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = np.array([prompt + text[:-1]])
        tool.save(place / "ids.npz", inputs_of(model, ids))
        tool.run("predict", model, "--inputs", place / "ids.npz", "-o", place / "y.npz")
        logits.append(tool.load(place / "y.npz")["logits"][0, len(prompt) - 1 :])
    return np.concatenate(logits)


def train(folder, place, *options):
    tool.run("build", folder, "-o", place / "train.onnx", "--loss", "cross_entropy", "--seed", 1, *options)
    data = ["--data", TEXT, "--tokenizer", folder, "--block-size", 16]
    if not (folder / "tokenizer.json").exists():
        tokens = np.random.default_rng(0).integers(0, 64, (16, 17))
        arrays = inputs_of(place / "train.onnx", tokens[:, :-1]) | {"labels": tokens[:, 1:]}
        data = ["--data", tool.save(place / "data.npz", arrays)]
    tool.run("fit", place / "train.onnx", *data, "--steps", 3, "--batch-size", 4, "--lr", 0.02, "--out", place / "run")
    return place / "run" / "last.onnx"


# Float16, and products that round what they read to 8 bits.
ROUNDED = ("_fp16", "_dml", "_webgpu", "_heads", "_rounded")
# What GenAI serves on this machine's processor.
ON_OTHER_DEVICES = ("_fp16", "_dml", "_webgpu", "_heads")


def near(name):
    return dict(atol=8e-2, rtol=8e-2) if name.endswith(ROUNDED) else dict(atol=1e-4, rtol=1e-4)


def expect_same(name, texts, others, logits):
    """Texts are the same tokens up to one whose logit is as near to another one as rounding may be."""
    best = np.sort(logits, -1)
    sure = (best[:, -1] - best[:, -2] > 2 * near(name)["atol"]).reshape(len(PROMPTS), TOKENS)
    for text, other, clear in zip(texts, others, sure, strict=True):
        same = [a == b for a, b in zip(text, other, strict=True)]
        first = same.index(False) if False in same else TOKENS
        assert first == TOKENS or not clear[first], (text, other)


def generated(name, folder, adapters):
    """The tokens of GenAI's generator, without adapters under the name ""."""
    question = {"folder": str(folder), "prompts": PROMPTS, "tokens": TOKENS, "adapters": adapters}
    return json.loads(ask("genai", "generate", json.dumps([question])))[0]


def other_files(folder, model):
    kept = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in kept.items() if not str(name).startswith(model.name)}


NAMES = [*(f"stored_{name}" for name in STORED), *other_builders.FOLDERS]


@pytest.mark.parametrize("name", NAMES)
def test_all_weights_are_trained_and_served(folders, name, tmp_path):
    folder, out = folders(name), tmp_path / "trained folder"
    trained = train(folder, tmp_path)
    tool.run("export", trained, "--into", folder, "-o", out)
    model = model_of(out)
    texts, logits = decode(model, PROMPTS, TOKENS)
    np.testing.assert_allclose(logits, predicted(trained, PROMPTS, texts, tmp_path), **near(name))
    for written in trained, out:
        expect_same(name, texts, sampled(written, PROMPTS, TOKENS), logits)
    assert np.abs(decode(model_of(folder), PROMPTS, 1)[1] - logits[::TOKENS]).max() > 0.02
    assert other_files(out, model) == other_files(folder, model)
    if name.startswith("genai") and not name.endswith(ON_OTHER_DEVICES):
        expect_same(name, texts, generated(name, out, {})[""], logits)


@pytest.mark.parametrize("name", NAMES)
def test_two_adapters_of_one_base_are_trained_and_swapped(folders, name, tmp_path):
    folder, base = folders(name), tmp_path / "base"
    files, texts, logits = {}, {}, {}
    for adapter, lora in (("one", "rank=2,alpha=8"), ("two", "rank=4,alpha=4")):
        place = tmp_path / adapter
        place.mkdir()
        trained = train(folder, place, "--lora", lora)
        files[adapter] = str(place / f"{adapter}.onnx_adapter")
        tool.run("export", trained, "-o", files[adapter])
        if adapter == "one":
            tool.run("export", trained, "--adapter-inputs", "--into", folder, "-o", base)
        texts[adapter], logits[adapter] = decode(model_of(base), PROMPTS, TOKENS, files[adapter])
        np.testing.assert_allclose(logits[adapter], predicted(trained, PROMPTS, texts[adapter], place), **near(name))
        expect_same(name, texts[adapter], sampled(trained, PROMPTS, TOKENS), logits[adapter])
        if "MatMulNBits" in model_of(folder).read_bytes().decode("latin1"):
            continue  # integers have no place for what is merged
        tool.run("export", trained, "--merge", "--into", folder, "-o", place / "merged")
        merged = decode(model_of(place / "merged"), PROMPTS, TOKENS, given=texts[adapter])
        np.testing.assert_allclose(merged[1], logits[adapter], **near(name))
    texts[""], logits[""] = decode(model_of(base), PROMPTS, TOKENS)
    before = decode(model_of(folder), PROMPTS, TOKENS)
    expect_same(name, texts[""], before[0], before[1])
    np.testing.assert_allclose(logits[""][::TOKENS], before[1][::TOKENS], **(near(name) if name.endswith(ROUNDED) else dict(atol=1e-6)))
    assert np.abs(logits["one"][::TOKENS] - logits["two"][::TOKENS]).max() > 1e-2
    if name.startswith("genai") and not name.endswith(ON_OTHER_DEVICES):
        for adapter, answer in generated(name, base, files).items():
            expect_same(name, texts[adapter], answer, logits[adapter])
