"""The command, the C interface and Python take the same options of a training, but for those that are listed here."""

import ctypes
import inspect
import re

import numpy as np
import onnx_train
import pytest
import tool

# What the command has and programs do not: where it gets its data, what it shows and writes, the processes that it starts,
# and how plans are looked at.
COMMAND_ALONE = {"data", "eval-data", "config", "json", "tui", "tensorboard", "dry-run", "dtype", "devices", "elastic", "transport",
                 "lowering", "no-lowering", "dump-lowering", "check-memory", "allow-links", "base-model", "stream", "shuffle-buffer", "help"}  # fmt: skip
PROGRAMS_ALONE = {"ranks", "allow-non-finite", "wait-for-steps"}
# Python's arguments for options that have another name, and its arguments that are no options.
PYTHON_NAMES = {"folder": "out", "shuffle": "no-shuffle", "data_check": "no-data-check", "token_cache": "no-token-cache"}
PYTHON_ALONE = {"model", "callbacks", "progress", "checkpoint"}
PYTHON_DECIDES = {"wait-for-steps"}  # by whether there are callbacks


def options_of_command():
    printed = tool.run("fit", "--help")
    return set(re.findall(r"^  (?:-\w,)?--([a-z0-9-]+)", printed, re.M))


def options_of_c(of):
    table = ctypes.CDLL(tool.COMMAND.parent / "libonnx_train.so").onnx_train_options
    table.restype = ctypes.c_char_p
    text = table(of.encode())
    assert text is not None
    rows = [line.split("\t") for line in text.decode().splitlines()]
    assert all(len(row) == 4 and row[0] and row[1] and row[3] for row in rows), rows
    return [row[0] for row in rows]


def test_the_front_ends_take_the_same_options_of_a_training():
    command = options_of_command() - COMMAND_ALONE
    build = command & set(options_of_c("build"))  # of a forward model
    c = [name for of in ("fit", "session", "data") for name in options_of_c(of)]
    c_alone = {name for name in c if c.count(name) > 1}
    assert c_alone == {"seed"}, "the session's is of random operators in evaluations"
    assert set(c) | build == command | PROGRAMS_ALONE
    assert {"limit", "val-split"} < set(options_of_c("samples")) < set(options_of_c("fit"))

    arguments = set(inspect.signature(onnx_train.fit).parameters) - PYTHON_ALONE
    python = {PYTHON_NAMES.get(name, name.replace("_", "-")) for name in arguments} - {"data", "eval-data"}
    assert python == (set(c) | build) - PYTHON_DECIDES


def test_a_session_has_the_same_options_in_c_and_python():
    arguments = set(inspect.signature(onnx_train.Session).parameters) - {"model"}
    assert {name.replace("_", "-") for name in arguments} == set(options_of_c("session"))


@pytest.mark.parametrize("of, function", [("export", "onnx_train_model_export_with"), ("generate", "onnx_train_generate")])
def test_the_header_names_the_options_of_a_function(of, function):
    header = (tool.ROOT / "include/onnx_train/onnx_train.h").read_text()
    comment = re.findall(r"/\*(?:(?!\*/).)*\*/", header.partition(f"onnx_train_status {function}(")[0], re.DOTALL)[-1]
    assert set(options_of_c(of)) == {name for name in re.findall(r'"([a-z-]+)"', comment) if name != "predict"}


def test_options_of_an_unknown_word_are_none():
    table = ctypes.CDLL(tool.COMMAND.parent / "libonnx_train.so").onnx_train_options
    table.restype = ctypes.c_char_p
    assert table(b"fitt") is None and table(None) is None


def test_a_bool_with_a_value_is_on_or_off():
    assert "--deterministic takes on or off, not 'perhaps'" in tool.run("fit", tool.ROOT / "tests/fixtures/mlp.onnx", "--data", "x.npz",
                                                                       "--deterministic", "perhaps", "--epochs", 1, status=2)  # fmt: skip


def test_arguments_are_documented_as_the_command_documents_options():
    documented = inspect.getdoc(onnx_train.fit)
    assert "    stop_at: stop after the first evaluation with METRIC>=X" in documented
    assert "    shuffle: False: take the samples in their order" in documented
    assert "    threads: " in documented and "threads: " in inspect.getdoc(onnx_train.Session.__init__)
    assert inspect.signature(onnx_train.fit).parameters["batch_size"].annotation == "int | str | None"
    with pytest.raises(TypeError, match=r"fit\(\) has no argument 'epoch'; did you mean 'epochs'\?"):
        onnx_train.fit("mlp.onnx", {}, epoch=1)
    with pytest.raises(TypeError, match="has no argument 'thread'; did you mean 'threads'"):
        onnx_train.Session("mlp.onnx", thread=1)


def test_lists_take_mappings_and_flags_that_are_off_are_not_given():
    from onnx_train._options import options_of

    assert options_of(lora={"rank": 8, "targets": ["q", "v"], "dora": True}) == [
        ("lora", "rank=8"), ("lora", "targets=q,v"), ("lora", "dora=true")]  # fmt: skip
    assert options_of(columns={"x": ["a", "b"]}, scale={"x": 0.5}) == [("columns", "x=a,b"), ("scale", "x=0.5")]
    assert options_of(shuffle=True, data_check=False, tf32=False, deterministic=False, lr=np.float64(0.1)) == [
        ("no-data-check", "true"), ("deterministic", "false"), ("lr", "0.1")]  # fmt: skip
    assert options_of({"lr"}, lr=1, epochs=2) == [("lr", "1")]


def test_messages_name_arguments_as_python_does():
    from onnx_train._errors import spelled

    assert spelled("give --batch-size as a number") == "give batch_size as a number"
    assert spelled("--scale 1/255 makes 0..1 of them") == "scale=1/255 makes 0..1 of them"
    assert spelled("--train '*' --train fc1 trains it") == "train=['*', 'fc1'] trains it"
    assert spelled("take another --out") == "take another folder"
    assert spelled("onnx-train fit m.onnx --lr 1") == "onnx-train fit m.onnx --lr 1"  # to type
    assert spelled("--elastic is the command's") == "--elastic is the command's"
    assert spelled("name a loss: --loss EXPR (docs)") == "name a loss: loss='EXPR' (docs)"
    assert spelled("as labels: --map NAME=labels, or --map COLUMN=INPUT.") == (
        "as labels: map={'NAME': 'labels'}, or map={'COLUMN': 'INPUT'}.")  # fmt: skip
    assert spelled("build --head OUTPUT=3 gives it") == "build head={'OUTPUT': 3} gives it"
    assert spelled("--lora rank=8,targets=q,v trains") == "lora={'rank': 8, 'targets': ['q', 'v']} trains"
    assert spelled("--folds K needs --fold I, from 1 to K") == "folds=K needs fold=I, from 1 to K"
    assert spelled("--tokenizer FILE.") == "tokenizer='FILE'."
    assert spelled("--lr Is no number") == "lr Is no number"


@pytest.mark.parametrize("options, message", [
    (dict(lr=[0.1]), "lr takes one value, not a list"),
    (dict(clip={"x": 1}), "clip takes one value, not a dict"),
    (dict(shuffle="x"), "shuffle takes True or False, not 'x'"),
])  # fmt: skip
def test_an_option_of_one_value_takes_no_list_and_a_flag_no_text(options, message):
    from onnx_train._options import options_of

    with pytest.raises(onnx_train.UsageError, match=message):
        options_of(**options)
    assert options_of(lr=0.1, shuffle=False, freeze=["a", "b"]) == [
        ("lr", "0.1"), ("no-shuffle", "true"), ("freeze", "a"), ("freeze", "b")]  # fmt: skip
