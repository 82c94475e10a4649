"""Frozen weights are in the file that a run started from, and its checkpoints refer to them (--checkpoint-base): all that
reads a checkpoint has the numbers of a whole one, and says where the base is looked for when it is not there."""

import os
import random
import shutil
import time

import numpy as np
import onnx
import onnx_train
import pytest
import tool
from onnx import TensorProto, helper, numpy_helper

REFER, WHOLE = ("--checkpoint-base", "refer"), ("--checkpoint-base", "whole")
FIT = ("--batch-size", 8, "--lr", 0.05, "--threads", 1)


def network(path, width=48):
    """x -> tanh(x a) -> tanh(. b) -> logits, in weights of `width` rows."""
    rng = np.random.default_rng(0)
    shapes = {"a": (8, width), "b": (width, width), "c": (width, 5)}
    weights = [numpy_helper.from_array((rng.normal(size=s) / s[0] ** 0.5).astype("f4"), n) for n, s in shapes.items()]
    nodes = [helper.make_node("MatMul", ["x", "a"], ["xa"]), helper.make_node("Tanh", ["xa"], ["h"]),
             helper.make_node("MatMul", ["h", "b"], ["hb"]), helper.make_node("Tanh", ["hb"], ["g"]),
             helper.make_node("MatMul", ["g", "c"], ["logits"])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 5])], weights)  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A forward model, training models of it, samples, and a run with whole checkpoints."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(1)
    tool.save(folder / "data.npz", {"x": rng.normal(size=(64, 8)).astype("f4"), "labels": rng.integers(0, 5, 64)})
    network(folder / "model.onnx")
    lora = ("--lora", "rank=2", "--optimizer", "adam")
    tool.run("build", folder / "model.onnx", "-o", folder / "train.onnx", *lora)
    tool.run("build", folder / "model.onnx", "-o", folder / "parts.onnx", *lora, "--accumulate")
    fit(folder, folder / "train.onnx", folder / "whole", *WHOLE)
    return folder


def fit(files, model, out, *options, steps=6, **more):
    return tool.run("fit", model, "--data", files / "data.npz", "--steps", steps, *FIT, "--out", out, *options, **more)


def exported(checkpoint, folder, *options):
    """The weights of a checkpoint, as a reader of safetensors has them."""
    path = folder / "exported.safetensors"
    tool.run("export", checkpoint, "-o", path, *options)
    return path.read_bytes()


def line_of(text):
    """The one line that a command ended with."""
    (line,) = (line for line in text.splitlines() if line.startswith("onnx-train: ") and "note:" not in line)
    return line


def test_a_checkpoint_that_refers_is_read_as_a_whole_one(files, tmp_path):
    said = fit(files, files / "train.onnx", tmp_path / "run", *REFER, "--eval-data", files / "data.npz")
    assert f"checkpoints do not hold the frozen weights, 10.5 KiB, which stay in {files}/train.onnx" in said
    last, whole = tmp_path / "run/last.onnx", files / "whole/last.onnx"
    assert last.stat().st_size < whole.stat().st_size - 9000
    assert (tmp_path / "run/best.onnx").stat().st_size < whole.stat().st_size - 9000
    assert exported(last, tmp_path) == exported(whole, tmp_path)
    assert exported(last, tmp_path, "--merge") == exported(whole, tmp_path, "--merge")
    for command in (("predict", "--inputs"), ("eval", "--data")):
        results = []
        for path in (last, whole):
            out = ("-o", tmp_path / f"{path.parent.name}.npz") if command[0] == "predict" else ()
            printed = tool.run(command[0], path, command[1], files / "data.npz", *out)
            results.append([line for line in printed.splitlines() if "loss" in line])
        assert results[0] == results[1]
    assert (tmp_path / "run.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    # What any command writes of it needs no other file.
    tool.run("export", last, "-o", tmp_path / "served.onnx")
    graph = onnx.load(tmp_path / "served.onnx", load_external_data=False)
    assert all(tensor.data_location == TensorProto.DEFAULT for tensor in graph.graph.initializer)
    assert not any("base" in entry.key for entry in graph.metadata_props)


def test_programs_read_and_write_such_checkpoints(files, tmp_path):
    model = onnx_train.load(files / "train.onnx")
    data = onnx_train.load_data(files / "data.npz", model)
    session = onnx_train.Session(model)
    with pytest.warns(UserWarning, match="checkpoints do not hold the frozen weights"):
        onnx_train.fit(session, data, steps=6, batch_size=8, lr=0.05, folder=str(tmp_path / "run"), checkpoint_base="refer")
    assert exported(tmp_path / "run/last.onnx", tmp_path) == exported(files / "whole/last.onnx", tmp_path)
    again = onnx_train.Session(onnx_train.load(tmp_path / "run/last.onnx"))
    for name in session.state:
        np.testing.assert_array_equal(np.asarray(again.state[name]), np.asarray(session.state[name]))
    again.save(tmp_path / "saved.onnx")  # of no run: whole
    saved = onnx.load(tmp_path / "saved.onnx", load_external_data=False)
    assert all(tensor.data_location == TensorProto.DEFAULT for tensor in saved.graph.initializer)
    onnx_train.load(tmp_path / "run/last.onnx").save(tmp_path / "copied.onnx")
    assert exported(tmp_path / "copied.onnx", tmp_path) == exported(files / "whole/last.onnx", tmp_path)


def test_a_run_of_a_forward_model_refers_to_its_own_training_model(files, tmp_path):
    def of(out, *options, steps=6):
        fit(files, files / "model.onnx", out, "--loss", "cross_entropy", "--lora", "rank=2", "--optimizer", "adam", *options, steps=steps)

    of(tmp_path / "run", *REFER)
    last = tmp_path / "run/last.onnx"
    tensors = onnx.load(last, load_external_data=False).graph.initializer
    places = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    assert places == {"train.onnx"}
    # So that any program that reads ONNX reads it, and the folder may go anywhere.
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    x = tool.load(files / "data.npz")["x"]
    ours = tool.session(tmp_path / "elsewhere/last.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(ours, tool.session(files / "whole/last.onnx").run(None, {"x": x})[0], rtol=1e-6, atol=1e-6)
    assert exported(tmp_path / "elsewhere/last.onnx", tmp_path) == exported(files / "whole/last.onnx", tmp_path)
    # A resumed run refers to it, too, and leaves it as it is.
    of(tmp_path / "half", *REFER, steps=3)
    before = (tmp_path / "half/train.onnx").stat()
    of(tmp_path / "half", "--resume")
    assert (tmp_path / "half/train.onnx").stat() == before
    assert (tmp_path / "half/last.onnx").stat().st_size < (tmp_path / "elsewhere/last.onnx").stat().st_size + 200
    assert exported(tmp_path / "half/last.onnx", tmp_path) == exported(files / "whole/last.onnx", tmp_path)


def test_a_run_goes_on_to_the_bit_and_may_change_its_mind(files, tmp_path):
    def go(out, *options, epochs):
        fit(files, files / "train.onnx", tmp_path / out, *options, steps=8 * epochs)
        return (tmp_path / out / "last.onnx").read_bytes()

    expected = go("all", *REFER, epochs=3)
    assert len(go("run", *REFER, epochs=1)) < len(expected) + 200
    assert go("run", "--resume", epochs=3) == expected  # the option stays
    # Whole from now on, and back.
    go("mixed", *REFER, epochs=1)
    assert len(go("mixed", *WHOLE, "--resume", epochs=2)) > len(expected) + 9000
    shutil.copytree(tmp_path / "mixed", tmp_path / "copies")
    assert go("mixed", *REFER, "--resume", epochs=3) == expected
    assert go("copies", "--resume", epochs=3) == go("straight", *WHOLE, epochs=3)
    assert exported(tmp_path / "copies/last.onnx", tmp_path) == exported(tmp_path / "all/last.onnx", tmp_path)
    # A run that begins with a checkpoint has its base, if it has one; the checkpoint itself is none, for it is replaced.
    fit(files, tmp_path / "all/last.onnx", tmp_path / "second", *REFER)
    assert (tmp_path / "second/last.onnx").stat().st_size < len(expected) + 1000
    said = fit(files, files / "whole/last.onnx", tmp_path / "third", *REFER)
    assert "no file holds the frozen weights as they are; the frozen weights are written with each checkpoint" in said
    exported(tmp_path / "third/last.onnx", tmp_path)


def test_small_models_and_what_trains_whole_stay_in_one_file(files, tmp_path):
    said = fit(files, files / "train.onnx", tmp_path / "small")
    assert "do not hold" not in said
    assert (tmp_path / "small/last.onnx").read_bytes() == (files / "whole/last.onnx").read_bytes()
    network(tmp_path / "large.onnx", width=2100)  # 17 MB
    tool.run("build", tmp_path / "large.onnx", "-o", tmp_path / "lora.onnx", "--lora", "rank=2")
    said = fit(files, tmp_path / "lora.onnx", tmp_path / "large", steps=1)
    assert f"16.9 MiB, which stay in {tmp_path}/lora.onnx; --checkpoint-base whole makes files that need no other" in said
    assert (tmp_path / "large/last.onnx").stat().st_size < 2**20
    fit(files, tmp_path / "lora.onnx", tmp_path / "copies", *WHOLE, steps=1)
    assert exported(tmp_path / "large/last.onnx", tmp_path) == exported(tmp_path / "copies/last.onnx", tmp_path)
    tool.run("build", tmp_path / "large.onnx", "-o", tmp_path / "full.onnx")
    assert "do not hold" not in fit(files, tmp_path / "full.onnx", tmp_path / "full", steps=1)


@pytest.fixture
def moved(files, tmp_path):
    """A project of a training model and a run beside it, which refers to it."""
    project = tmp_path / "a project"
    project.mkdir()
    shutil.copy(files / "train.onnx", project / "train.onnx")
    fit(files, project / "train.onnx", project / "run", *REFER)
    return project


def test_a_run_that_is_moved_with_its_base_finds_it(files, moved, tmp_path):
    shutil.move(moved, tmp_path / "elsewhere")
    assert exported(tmp_path / "elsewhere/run/last.onnx", tmp_path) == exported(files / "whole/last.onnx", tmp_path)


def test_a_run_that_is_moved_alone_says_where_its_base_is_looked_for(files, moved, tmp_path):
    expected = exported(files / "whole/last.onnx", tmp_path)
    (tmp_path / "deep/er").mkdir(parents=True)
    alone, base = tmp_path / "deep/er/run", tmp_path / "kept/base.onnx"
    shutil.move(moved / "run", alone)
    assert exported(alone / "last.onnx", tmp_path) == expected  # by its absolute path
    base.parent.mkdir()
    shutil.move(moved / "train.onnx", base)
    line = line_of(tool.run("export", alone / "last.onnx", "-o", tmp_path / "a.safetensors", status=1))
    for place in (alone / "../train.onnx", moved / "train.onnx", alone / "train.onnx"):
        assert str(place) in line
    assert line.endswith("put it beside the checkpoint, or say where it is: --base-model FILE [OT1004]")
    assert not (tmp_path / "a.safetensors").exists()
    # Each way out: the option, with the file or its folder; the file beside the checkpoint; MODEL of a run that goes on.
    assert exported(alone / "last.onnx", tmp_path, "--base-model", base) == expected
    shutil.copy(base, base.parent / "train.onnx")
    assert exported(alone / "last.onnx", tmp_path, "--base-model", base.parent) == expected
    os.unlink(base.parent / "train.onnx")
    fit(files, base, alone, "--resume", steps=8)
    assert exported(alone / "last.onnx", tmp_path) != expected  # and refers to the new place
    shutil.move(base, alone / "base.onnx")
    again = exported(alone / "last.onnx", tmp_path)
    fit(files, files / "train.onnx", tmp_path / "straight", *WHOLE, steps=8)
    assert again == exported(tmp_path / "straight/last.onnx", tmp_path)


def test_another_base_is_refused_with_both_names(files, moved, tmp_path):
    base, kept = moved / "train.onnx", (moved / "train.onnx").read_bytes()
    other = network(tmp_path / "other.onnx", width=47)
    tool.run("build", other, "-o", tmp_path / "other_train.onnx", "--lora", "rank=2", "--optimizer", "adam")
    checkpoint = (moved / "run/last.onnx").read_bytes()

    def refused(*options):
        line = line_of(tool.run("export", moved / "run/last.onnx", "-o", tmp_path / "no.safetensors", *options, status=1))
        assert str(moved / "run/last.onnx") in line and str(base) in line and "--base-model FILE" in line
        return line

    assert str(tmp_path / "other_train.onnx") in refused("--base-model", tmp_path / "other_train.onnx")
    assert "there is no such file at " in refused("--base-model", tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    assert "there is no such file at " in refused("--base-model", tmp_path / "pipe")
    at = kept.index(np.asarray(onnx.numpy_helper.to_array(onnx.load(files / "model.onnx").graph.initializer[1])).tobytes()) + 40
    base.unlink()
    base.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])
    assert "holds others than those that it was trained with" in refused()
    base.write_bytes(kept[:-1])
    assert ": another file; " in refused()
    base.write_bytes(b"")
    assert ": another file; " in refused()
    assert "--base-model" in line_of(fit(files, network(tmp_path / "model.onnx"), moved / "run", "--resume", "--loss", "cross_entropy", "--lora", "rank=2",
                                         "--optimizer", "adam", steps=9, status=1))  # fmt: skip
    with pytest.raises(onnx_train.Error, match="--base-model"):
        onnx_train.load(moved / "run/last.onnx")
    base.write_bytes(kept)
    assert (moved / "run/last.onnx").read_bytes() == checkpoint
    assert exported(moved / "run/last.onnx", tmp_path) == exported(files / "whole/last.onnx", tmp_path)


def test_a_model_reads_no_file_whose_contents_its_writer_did_not_know(moved, tmp_path):
    """A record that leads to another file is no way to read it: its hash is that of what the checkpoint needs."""
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom((moved / "train.onnx").stat().st_size))
    model = onnx.load(moved / "run/last.onnx", load_external_data=False)
    (record,) = (entry for entry in model.metadata_props if entry.key == "onnx_train.base")
    location, size, digest, _, _ = record.value.rstrip("\n").split("\t")
    record.value = "\t".join([location, size, digest, str(secret), str(secret)]) + "\n"
    path = tmp_path / "evil.onnx"
    path.write_bytes(model.SerializeToString())
    for command in (("opt", path, "-o", tmp_path / "out.onnx", "--passes", "simplify_indexing"), ("export", path, "-o", tmp_path / "out.onnx"), ("show", path)):
        assert "holds others than" in line_of(tool.run(*command, status=1))
        assert not (tmp_path / "out.onnx").exists()
    for text in ("", "\n", "a\tb", record.value.replace("\t" + size + "\t", "\t-1\t"), record.value * 2, "\t".join(["x"] * 4)):
        record.value = text
        path.write_bytes(model.SerializeToString())
        assert line_of(tool.run("show", path, status=1))


@pytest.mark.parametrize("shards", ["on", "off"])
def test_ranks_refer_to_one_base(files, tmp_path, shards):
    ranks = ("--devices", "cpu,cpu", "--zero", 3, "--checkpoint-shards", shards, "--accumulate", 2)
    fit(files, files / "parts.onnx", tmp_path / "whole", *ranks, *WHOLE)
    fit(files, files / "parts.onnx", tmp_path / "run", *ranks, *REFER, steps=3)
    fit(files, files / "parts.onnx", tmp_path / "run", *ranks, *REFER, "--resume")
    assert exported(tmp_path / "run/last.onnx", tmp_path) == exported(tmp_path / "whole/last.onnx", tmp_path)

    def bytes_of(run):
        return sum(path.stat().st_size for path in [run / "last.onnx", *run.glob("step-*/*")])

    assert bytes_of(tmp_path / "run") < bytes_of(tmp_path / "whole") - 9000
    fit(files, files / "parts.onnx", tmp_path / "run", "--accumulate", 2, "--resume", steps=8)  # one process goes on
    fit(files, files / "parts.onnx", tmp_path / "whole", "--accumulate", 2, *WHOLE, "--resume", steps=8)
    assert exported(tmp_path / "run/last.onnx", tmp_path) == exported(tmp_path / "whole/last.onnx", tmp_path)


def test_a_kill_leaves_a_run_that_goes_on(files, tmp_path):
    """Kills after a few steps, each of which has a checkpoint that is written meanwhile."""
    fit(files, files / "train.onnx", tmp_path / "all", *REFER, "--checkpoint-every", 1, steps=64)
    rng, run, kills = random.Random(0), tmp_path / "run", 0

    def steps():
        path = run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    for _ in range(100):
        process = tool.start("fit", files / "train.onnx", "--data", files / "data.npz", "--steps", 64, *FIT, "--out", run, *REFER,
                             "--checkpoint-every", 1, "--resume")  # fmt: skip
        end = steps() + rng.randrange(2, 15)
        while process.poll() is None and steps() < end:
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.004))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        tool.run("show", run / "last.onnx")
    assert process.communicate()[0] is not None and process.returncode == 0 and kills > 2
    assert (run / "last.onnx").read_bytes() == (tmp_path / "all/last.onnx").read_bytes()
