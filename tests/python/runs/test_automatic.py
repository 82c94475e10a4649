"""What fit finds out itself: a training model of a forward model, the largest batch, a learning rate."""

import json
import re

import numpy as np
import onnx
import onnx_train
import pytest
import reference
import tool


@pytest.fixture(scope="module")
def forward(exported, tmp_path_factory):
    """A forward model with dropout, and its data."""
    example, path = exported("mlp", dropout=0.2, train=True)
    return path, tool.save(tmp_path_factory.mktemp("data") / "data.npz", reference.repeated(example, 8))


def test_a_forward_model_is_built_and_can_be_resumed(forward, tmp_path):
    path, data = forward
    arguments = "fit", path, "--data", data, "--batch-size", 6, "--optimizer", "sgd"
    printed = tool.run(*arguments, "--steps", 12, "--out", tmp_path / "whole")
    command = re.search(r"the same +onnx-train (build .*)", printed)[1].split()
    assert command[-4:] == ["--loss", "cross_entropy", "--optimizer", "sgd"]
    assert "a class for each row of logits" in printed
    written = (tmp_path / "whole/train.onnx").read_bytes()
    tool.run(*command)
    assert (tmp_path / "whole/train.onnx").read_bytes() == written
    for start in path, tmp_path / "parts/train.onnx":
        folder = tmp_path / f"parts{start == path}"
        tool.run(*arguments, "--steps", 5, "--out", folder)
        (tmp_path / "parts").mkdir(exist_ok=True)
        (tmp_path / "parts/train.onnx").write_bytes((folder / "train.onnx").read_bytes())
        given = arguments if start == path else ("fit", start, *arguments[2:-2])
        tool.run(*given, "--steps", 12, "--out", folder, "--resume")
        assert (folder / "last.onnx").read_bytes() == (tmp_path / "whole/last.onnx").read_bytes()
    refused = tool.run(*arguments[:-1], "adam", "--steps", 12, "--out", tmp_path / "whole", "--resume", status=1)
    assert "was built with optimizer sgd" in refused
    refused = tool.run("fit", tmp_path / "whole/train.onnx", "--data", data, "--steps", 1, "--loss", "mse", status=2)
    assert "is a training model, which is built already; leave out --loss mse" in refused


def test_python_builds_the_same(forward):
    path, data = forward
    with pytest.warns(UserWarning, match=r"loss cross_entropy \(labels of the data is int64\[48\], a class"):
        history = onnx_train.fit(path, tool.load(data), steps=3, batch_size=6, optimizer="sgd", shuffle=False)
    with pytest.warns(UserWarning, match="loss cross_entropy"):
        from_file = onnx_train.fit(path, data, steps=3, batch_size=6, optimizer="sgd", shuffle=False)
    built = onnx_train.fit(onnx_train.build(path, optimizer="sgd"), data, steps=3, batch_size=6, shuffle=False)
    np.testing.assert_array_equal(history.losses, built.losses)
    np.testing.assert_array_equal(from_file.losses, built.losses)
    with pytest.raises(onnx_train.UsageError, match="leave out loss"):
        onnx_train.fit(onnx_train.build(path), data, steps=1, loss="mse")


def test_the_batch_found_takes_the_memory_that_is_planned(exported, tmp_path):
    """In a process of its own: the peak of the system's count is below the limit, and a twentieth more is above."""
    _, path = exported("mlp", sizes=(8, 32, 32, 32, 32, 32, 32, 3))
    x = np.random.default_rng(0).integers(-3, 4, (400_000, 8), np.int8)
    data = tmp_path / "data.npz"
    np.savez_compressed(data, x=x, labels=(x[:, 0] > 0).astype(np.int8))  # what is mapped would not count
    limit = 300e6
    arguments = "fit", path, "--data", data, "--steps", 1, "--overwrite", "--no-data-check"
    automatic = "--batch-size", "auto", "--memory-limit", "300MB"
    by_rule = {"ONNX_TRAIN_TIMED_CHOICES": "off"}  # what timing leaves in a process is not planned, but measured
    peak, _ = tool.peak_of(*arguments, "--out", tmp_path / "run", *automatic, env=by_rule)
    options = json.loads((tmp_path / "run/options.json").read_text())
    assert 0.95 * limit < peak <= limit
    assert 0.98 * limit < options["derived"]["batch-size"]["planned"] <= limit
    larger = int(1.07 * options["batch-size"])
    assert tool.peak_of(*arguments, "--out", tmp_path / "more", "--batch-size", larger, env=by_rule)[0] > limit


@pytest.mark.parametrize("layers, threads", [(4, 2), (100, 1), (100, 2)])
def test_the_limit_and_the_table_hold_what_grows_with_the_graph(tmp_path, layers, threads):
    """A whole epoch: its last batch is smaller, and has a plan of its own that is made beside the first one."""
    width, rng = 48, np.random.default_rng(0)
    weights = [np.float32(rng.normal(size=(8 if i == 0 else width, width)) / 7) for i in range(layers)]
    names = ["x", *(f"h{i}" for i in range(layers - 1)), "logits"]
    nodes = [onnx.helper.make_node("MatMul", [names[i], f"w{i}"], [f"p{i}"]) for i in range(layers)]
    nodes = [n for i, m in enumerate(nodes) for n in (m, onnx.helper.make_node("Tanh", [f"p{i}"], [names[i + 1]]))]
    sizes = {"x": 8, "logits": width}
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", size]) for name, size in sizes.items()]
    held = [onnx.numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "layers", ends[:1], ends[1:], held)), tmp_path / "model.onnx")
    x = rng.integers(-3, 4, (2_000_000 // layers, 8), np.int8)
    np.savez_compressed(tmp_path / "data.npz", x=x, labels=(x[:, 0] > 0).astype(np.int8))
    limit = 200e6
    peak, text = tool.peak_of("fit", tmp_path / "model.onnx", "--data", tmp_path / "data.npz", "--epochs", 1, "--batch-size", "auto",
                              "--memory-limit", "200MB", "--no-data-check", "--out", tmp_path / "run", threads=threads)  # fmt: skip
    total = float(re.search(r"^ *total +([\d.]+) MiB", text, re.M)[1]) * 2**20
    assert 0.8 * limit < peak <= limit
    assert total == pytest.approx(peak, rel=0.1)
    batch = json.loads((tmp_path / "run/options.json").read_text())["batch-size"]
    assert batch < len(x)


def test_the_limit_holds_whatever_is_chosen(tmp_path):
    """The first run times its products, the second has their forms, and times those of a last, smaller batch alone."""
    rng = np.random.default_rng(0)
    sizes = 64, 2000, 2000, 10
    weights = [np.float32(rng.normal(size=(a, b)) / a**0.5) for a, b in zip(sizes, sizes[1:])]
    names = ["x", "h0", "h1", "logits"]
    nodes = [onnx.helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(3)]
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", s]) for n, s in (("x", 64), ("logits", 10))]
    held = [onnx.numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "layers", ends[:1], ends[1:], held)), tmp_path / "model.onnx")
    np.savez_compressed(tmp_path / "data.npz", x=rng.integers(-3, 4, (12_000, 64), np.int8), labels=rng.integers(0, 10, 12_000, np.int8))
    for run in "first", "second":
        peak, text = tool.peak_of("fit", tmp_path / "model.onnx", "--data", tmp_path / "data.npz", "--epochs", 1, "--optimizer", "sgd", "--lr", 1e-4,
                                  "--batch-size", "auto", "--memory-limit", "200MB", "--no-data-check", "--out", tmp_path / run,
                                  env={"ONNX_TRAIN_CACHE": str(tmp_path / "cache"), "ONNX_TRAIN_TIMED_CHOICES": "3"})  # fmt: skip
        assert 0.9 * 200e6 < peak <= 200e6, text
    assert (tmp_path / "cache/cpu").is_dir()


def test_a_fixed_batch_is_said(exported, tmp_path, forward):
    _, path = exported("mlp")
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--batch", 4)
    printed = tool.run("fit", tmp_path / "train.onnx", "--data", forward[1], "--steps", 1, "--batch-size", "auto",
                       "--out", tmp_path / "run")  # fmt: skip
    assert "batches of 4, bounded by the model, which fixes it" in printed


def test_a_range_test_changes_nothing_but_the_rate(forward, tmp_path):
    """Dropout and a short epoch: the run is that of the rate alone, to the byte; resuming keeps the rate."""
    path, data = forward
    arguments = "fit", path, "--data", data, "--batch-size", 6, "--seed", 3
    tool.run(*arguments, "--lr", "auto", "--steps", 4, "--out", tmp_path / "auto")
    options = json.loads((tmp_path / "auto/options.json").read_text())
    found = options["lr"]
    assert options["derived"]["lr"]["found"] == found and len(options["derived"]["lr"]["test"]) <= 100
    tool.run(*arguments, "--lr", "auto", "--steps", 9, "--out", tmp_path / "auto", "--resume")
    tool.run(*arguments, "--lr", repr(found), "--steps", 9, "--out", tmp_path / "given")
    assert (tmp_path / "auto/last.onnx").read_bytes() == (tmp_path / "given/last.onnx").read_bytes()


def test_python_finds_batch_and_rate(forward):
    path, data = forward
    with pytest.warns(UserWarning) as notes:
        history = onnx_train.fit(onnx_train.build(path), data, epochs=2, batch_size="auto", lr="auto")
    texts = [str(note.message) for note in notes]
    assert any("batches of 48, bounded by the 48 samples of the data" in text for text in texts)
    rate = next(float(text.split()[2].rstrip(",")) for text in texts if text.startswith("learning rate "))
    assert history.steps[0].samples == 48 and history.steps[0].learning_rate == pytest.approx(rate, rel=1e-3)
    with pytest.raises(onnx_train.UsageError, match="arrays and files"):
        onnx_train.fit(onnx_train.build(path), [tool.load(data)], steps=2, lr="auto")


def test_the_precision_follows_the_processor(exported, tmp_path, monkeypatch):
    _, path = exported("mlp")
    monkeypatch.setenv("ONNX_TRAIN_ISA", "scalar")
    printed = tool.run("build", path, "-o", tmp_path / "train.onnx", "--precision", "auto")
    assert "auto: cpu does not multiply bfloat16" in printed
    monkeypatch.delenv("ONNX_TRAIN_ISA")
    printed = tool.run("build", path, "-o", tmp_path / "train.onnx", "--precision", "auto")
    highest = re.search(r"scalar|neon|avx2|avx512_bf16|avx512|amx", tool.run("devices"))[0]
    assert ("bf16" in re.search(r"precision +(\S+)", printed)[1]) == (highest in ("avx512_bf16", "amx"))
