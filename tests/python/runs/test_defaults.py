"""What `fit` finds out itself of a forward model, says, and keeps."""

import json

import numpy as np
import onnx
import tool

GPT = tool.ROOT / "models" / "gpt.onnx"
TEXT = tool.ROOT / "models" / "data" / "devils_dictionary.txt"
DIGITS = tool.ROOT / "models" / "digits_cnn.onnx"
TRAIN, TEST = (tool.ROOT / "models" / "data" / f"digits_{part}.npz" for part in ("train", "test"))


def test_tokens_have_their_loss(tmp_path):
    said = tool.run("fit", GPT, "--data", TEXT, "--steps", 2, "--batch-size", 2, "--out", tmp_path / "run")
    assert "loss       cross_entropy(logits, labels" in said and "a class for each row of logits" in said
    tool.run("eval", GPT, "--data", TEXT, "--limit", 4)


def test_bytes_are_refused_for_the_tokens_of_a_tokenizer(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (int64[N,T] ids) => (float[N,T,512] y)
      { w = ConstantOfShape<value = float {0.1}>(s) y = Gather(w, ids) }""")  # fmt: skip
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([512, 512]), "s"))
    del model.graph.node[0]
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.eye(512, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "text.txt").write_text("a text of some length " * 20)
    said = tool.run("fit", tmp_path / "model.onnx", "--data", tmp_path / "text.txt", "--block-size", 8, "--epochs", 1, "--out",
                    tmp_path / "run", status=1)  # fmt: skip
    assert "the model tells 512 tokens of 'ids' apart" in said and not (tmp_path / "run").exists()


def test_the_same_command_builds_the_same(tmp_path):
    said = tool.run("fit", DIGITS, "--data", TRAIN, "--eval-data", TEST, "--epochs", 1, "--batch-size", 64, "--metric", "f1",
                    "--metric", "top2=top_k(k=2)", "--ema", 0.9, "--out", tmp_path / "run")  # fmt: skip
    line = next(line for line in said.splitlines() if "the same" in line)
    arguments = line.split("onnx-train build ")[1].replace("'", "").split()
    arguments[arguments.index("-o") + 1] = tmp_path / "built.onnx"
    tool.run("build", *arguments)
    assert (tmp_path / "built.onnx").read_bytes() == (tmp_path / "run" / "train.onnx").read_bytes()


def test_a_fixed_batch_is_said_and_opened(tmp_path):
    model = onnx.load(DIGITS)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, tmp_path / "two.onnx")
    fit = ["fit", tmp_path / "two.onnx", "--data", TRAIN, "--steps", 2, "--out", tmp_path / "run", "--overwrite"]
    assert "fixes a batch of 2 samples; --batch dynamic" in tool.run(*fit)
    assert "fixes a batch" not in tool.run(*fit, "--batch", "dynamic", "--batch-size", 16)


def test_a_run_that_fails_at_its_first_step_is_no_run(tmp_path):
    train = np.load(TRAIN)
    data = {"image": train["image"][:64].copy(), "labels": train["labels"][:64]}
    data["image"][3] = np.nan
    bad = tool.save(tmp_path / "bad.npz", data)
    fit = ["fit", DIGITS, "--loss", "cross_entropy", "--epochs", 1, "--batch-size", 64, "--out", tmp_path / "run"]
    assert "the loss is nan at step 1" in tool.run(*fit, "--data", bad, "--no-data-check", status=1)
    tool.run(*fit, "--data", TRAIN)
    assert "holds a run" in tool.run(*fit, "--data", TRAIN, status=2)


def test_a_resumed_run_ends_where_it_was_to_end(tmp_path):
    fit = ["fit", DIGITS, "--data", TRAIN, "--batch-size", 64, "--schedule", "cosine"]
    tool.run(*fit, "--epochs", 4, "--out", tmp_path / "whole")
    tool.run(*fit, "--epochs", 4, "--time-limit", "0.001s", "--out", tmp_path / "parts")
    steps = [len(tool.metrics(tmp_path / name)) for name in ("whole", "parts")]
    assert steps[1] < steps[0]
    tool.run(*fit[:4], "--out", tmp_path / "parts", "--resume")
    assert np.array_equal(tool.losses(tmp_path / "parts"), tool.losses(tmp_path / "whole"))
    position = json.loads((tmp_path / "parts" / "options.json").read_text())
    assert position["epochs"] == 4


def test_what_rounding_loses_is_told_for_tokens_of_any_length(tmp_path):
    model = onnx.load(GPT)
    tool.run("build", GPT, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy")
    size = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    (tmp_path / "text.txt").write_text(TEXT.read_text()[:10_000])
    said = tool.run("export", tmp_path / "train.onnx", "-o", tmp_path / "half.onnx", "--dtype", "float16", "--eval-data",
                    tmp_path / "text.txt", "--block-size", size)  # fmt: skip
    assert "as trained" in said and "as stored" in said
