"""Data files in Python: the arrays, trainings, evaluations and predictions of the command, by the same paths."""

import gc
import gzip
import json
import warnings

import numpy as np
import onnx
import pytest
import tool

import onnx_train
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
rng = np.random.default_rng(0)
FLOATS = rng.normal(size=(40, 4)).astype(np.float32)
BYTES = rng.integers(0, 256, (40, 2, 2), dtype=np.uint8)
PICTURES = rng.integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)


def labels_of(x, classes=3):
    return np.argmax(x.reshape(len(x), -1)[:, :classes], axis=1)


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_npz(folder):
    np.savez(folder / "data.npz", x=FLOATS, labels=labels_of(FLOATS), unused=np.zeros(3))
    return folder / "data.npz", {"x": FLOATS, "labels": labels_of(FLOATS)}


def write_compressed(folder):
    np.savez_compressed(folder / "data.npz", x=FLOATS.astype(np.float64), labels=labels_of(FLOATS).astype(np.int32))
    return folder / "data.npz", {"x": FLOATS.astype(np.float64), "labels": labels_of(FLOATS).astype(np.int32)}


def write_npy(folder):
    np.save(folder / "x.npy", FLOATS)
    np.save(folder / "labels.npy", labels_of(FLOATS))
    return folder, {"x": FLOATS, "labels": labels_of(FLOATS)}


def write_csv(folder):
    x = np.round(FLOATS.astype(np.float64), 3)
    lines = ["a,b,labels,c,d", *(f"{r[0]},{r[1]},{label},{r[2]},{r[3]}" for r, label in zip(x, labels_of(FLOATS)))]
    (folder / "data.csv").write_text("\n".join(lines))
    return folder / "data.csv", {"x": x, "labels": labels_of(FLOATS)}


def write_libsvm(folder):
    x = np.where(FLOATS > 0, FLOATS, 0)
    rows = [" ".join([str(label), *(f"{i + 1}:{v}" for i, v in enumerate(row) if v)]) for row, label in zip(x, labels_of(FLOATS))]
    (folder / "data.libsvm").write_text("\n".join(rows))
    return folder / "data.libsvm", {"x": x, "labels": labels_of(FLOATS)}


def write_idx(folder):
    for name, rows in ("train", BYTES), ("t10k", BYTES[:13]):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(rows))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels_of(rows).astype(np.uint8))))
    return folder, {"x": BYTES, "labels": labels_of(BYTES).astype(np.uint8)}


def write_idx_pair(folder):
    write_idx(folder)
    path = f"{folder / 't10k-images-idx3-ubyte'},{folder / 't10k-labels-idx1-ubyte.gz'}"
    return path, {"x": BYTES[:13], "labels": labels_of(BYTES[:13]).astype(np.uint8)}


def cifar(pictures):
    labels = labels_of(pictures, 10).astype(np.uint8)
    return b"".join(bytes([label]) + picture.tobytes() for label, picture in zip(labels, pictures))


def write_cifar(folder):
    (folder / "data_batch_1.bin").write_bytes(cifar(PICTURES[:10]))
    (folder / "data_batch_2.bin").write_bytes(cifar(PICTURES[10:]))
    (folder / "test_batch.bin").write_bytes(cifar(PICTURES[:7]))
    return folder, {"x": PICTURES, "labels": labels_of(PICTURES, 10).astype(np.uint8)}


def write_cifar_file(folder):
    write_cifar(folder)
    return folder / "test_batch.bin", {"x": PICTURES[:7], "labels": labels_of(PICTURES[:7], 10).astype(np.uint8)}


FORMATS = [write_npz, write_compressed, write_npy, write_csv, write_libsvm, write_idx, write_idx_pair, write_cifar,
           write_cifar_file]  # fmt: skip


def training(arrays):
    """A training model that takes rows of these shapes."""
    if arrays["x"].shape[1:] != (3, 32, 32):
        return onnx_train.build(MLP, optimizer="adamw(lr=0.01)")
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        colours (float[N, 3, 32, 32] x) => (float[N, 10] logits) { f = Flatten (x)  logits = Gemm (f, weight, bias) }""")
    weight = rng.normal(size=(3072, 10)).astype(np.float32) / 64
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(10, np.float32), "bias"))
    return onnx_train.build(model, loss="cross_entropy", optimizer="adamw(lr=0.01)")


@pytest.fixture(params=FORMATS, ids=lambda write: write.__name__.removeprefix("write_"))
def files(request, tmp_path):
    """(path, its arrays for training, training model, folder of the model)"""
    folder = tmp_path / "data"
    folder.mkdir()
    path, arrays = request.param(folder)
    model = training(arrays)
    model.save(tmp_path / "train.onnx")
    return path, arrays, model, tmp_path


def test_a_path_has_the_arrays_that_were_written(files):
    path, arrays, model, _ = files
    loaded = onnx_train.load_data(path, model)
    assert sorted(loaded) == sorted(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype and np.array_equal(loaded[name], array)
        with pytest.raises(ValueError, match="read-only"):
            loaded[name][0] = 0


def test_a_training_on_a_path_is_that_of_the_command_and_that_on_its_arrays(files):
    path, arrays, model, folder = files
    scale = ["--scale", "1/255"] if arrays["x"].dtype == np.uint8 else []
    tool.run("fit", folder / "train.onnx", "--data", path, "--eval-data", path, "--epochs", 2, "--batch-size", 5,
             "--seed", 3, "--out", folder / "run", *scale)  # fmt: skip
    options = {"epochs": 2, "batch_size": 5, "seed": 3, "scale": "1/255" if scale else None, "threads": 1}
    history = onnx_train.fit(model, path, eval_data=path, **options)
    steps = [line for line in tool.metrics(folder / "run") if "lr" in line]
    assert len(steps) > 2 and [step.samples for step in history.steps] == [line["samples"] for line in steps]
    assert np.array_equal(np.float32(history.losses), np.float32([line["loss"] for line in steps]))
    assert np.array_equal(history.losses, onnx_train.fit(model, arrays, **options).losses)

    evaluated = json.loads(tool.run("eval", folder / "run" / "last.onnx", "--data", path, "--json"))
    assert history.session.evaluate(path) == evaluated
    assert history.session.evaluate(path, batch_size=5) == history.evaluations[-1].metrics
    tool.run("predict", folder / "run" / "last.onnx", "--data", path, "-o", folder / "out.npz")
    assert np.array_equal(history.session.predict(path).logits, tool.load(folder / "out.npz")["logits"])


def test_of_a_folder_with_both_evaluation_reads_the_files_for_tests(tmp_path):
    path, arrays = write_idx(tmp_path)
    session = onnx_train.Session(training(arrays), threads=1)
    test = {"x": BYTES[:13].reshape(13, 4).astype(np.float32), "labels": labels_of(BYTES[:13])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert session.evaluate(path).loss == session.evaluate(test).loss != session.evaluate(path, scale="1/255").loss
        assert len(session.predict(path).logits) == 13
        history = onnx_train.fit(session, path, eval_data=path, epochs=1)
    assert history.evaluations[-1].loss == session.evaluate(test).loss
    assert len(onnx_train.load_data(path, session, entry="evaluate")["x"]) == 13
    assert len(onnx_train.load_data(path, session, entry="step")["x"]) == 40


def test_stored_arrays_are_views_of_the_mapped_file_as_long_as_one_is_used(tmp_path):
    def is_mapped():
        with open("/proc/self/maps") as maps:
            return any(line.rstrip().endswith(str(path)) for line in maps)

    path, arrays = write_npz(tmp_path)
    loaded = onnx_train.load_data(path)
    assert sorted(loaded) == ["labels", "unused", "x"] and is_mapped()
    x = loaded.pop("x")[3:]
    del loaded
    gc.collect()
    assert is_mapped() and np.array_equal(x, arrays["x"][3:])
    del x
    gc.collect()
    assert not is_mapped()


def test_the_default_batch_size_is_that_of_the_command(tmp_path):
    path, _ = write_npz(tmp_path)
    for batch, sizes in ("8", [8] * 5), ("dynamic", [32, 8]):
        model = onnx_train.build(MLP, batch=batch)
        history = onnx_train.fit(model, path, epochs=1, schedule="cosine", checkpoint=tmp_path / "c.onnx", threads=1)
        assert [step.samples for step in history.steps] == sizes
    with pytest.raises(onnx_train.UsageError, match="the batch size is 41, but the data has 40 samples"):
        onnx_train.fit(model, path, epochs=1, batch_size=41)


def test_bytes_are_pointed_out_as_by_the_command(tmp_path):
    path, arrays = write_idx(tmp_path)
    model = training(arrays)
    model.save(tmp_path / "train.onnx")
    printed = tool.run("fit", tmp_path / "train.onnx", "--data", path, "--epochs", 1, "--out", tmp_path / "run")
    for call in (
        lambda **options: onnx_train.fit(model, path, epochs=1, threads=1, **options),
        lambda **options: onnx_train.Session(model, threads=1).evaluate(path, **options),
        lambda **options: onnx_train.Session(model, threads=1).predict(path, **options),
    ):
        with pytest.warns(UserWarning, match="'x' holds bytes, .* scale=1/255") as warned:
            call()
        assert len(warned) == 1 and str(warned[0].message).replace("scale=", "--scale ") in printed and warned[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(scale="1/255")
            onnx_train.fit(model, onnx_train.load_data(path, model), epochs=1, scale="1/255", threads=1)


def without_labels(folder):
    np.savez(folder / "data.npz", x=FLOATS)
    return "data"


def of_wrong_width(folder):
    np.savez(folder / "data.npz", x=FLOATS[:, :3], labels=labels_of(FLOATS))
    return "data"


def cut_off(folder):
    path, _ = write_npz(folder)
    path.write_bytes(path.read_bytes()[:200])
    return "file"


def missing(folder):
    return "file"


@pytest.mark.parametrize("write", [without_labels, of_wrong_width, cut_off, missing])
def test_errors_are_those_of_the_command(tmp_path, write):
    kind = write(tmp_path)
    path, model = tmp_path / "data.npz", onnx_train.build(MLP)
    model.save(tmp_path / "train.onnx")
    printed = tool.run("fit", tmp_path / "train.onnx", "--data", path, "--epochs", 1, "--out", tmp_path / "run", status=1)
    for call in (
        lambda: onnx_train.fit(model, path, epochs=1),
        lambda: onnx_train.fit(model, {"x": FLOATS, "labels": labels_of(FLOATS)}, eval_data=path, epochs=1),
        lambda: onnx_train.Session(model).evaluate(str(path)),
        lambda: onnx_train.load_data(path, model),
    ):
        with pytest.raises(onnx_train.Error) as error:
            call()
        assert str(error.value) in printed and error.value.kind == kind


def test_what_the_model_cannot_use_is_found_before_the_first_step(tmp_path):
    labels = labels_of(FLOATS)
    labels[17] = 3
    np.savez(tmp_path / "data.npz", x=FLOATS, labels=labels)
    steps = []
    with pytest.raises(onnx_train.DataError, match=r"data\.npz: 'labels' holds 3 in sample 17 .* takes 0 to 2"):
        onnx_train.fit(onnx_train.build(MLP), tmp_path / "data.npz", epochs=1, callbacks=[lambda s, t: steps.append(t)])
    assert not steps


def test_a_path_without_names_needs_a_model(tmp_path):
    path, arrays = write_csv(tmp_path)
    with pytest.raises(onnx_train.UsageError, match="names no arrays"):
        onnx_train.load_data(path)
    with pytest.raises(onnx_train.UsageError, match="'step' has no model"):
        onnx_train.load_data(path, entry="step")
    with pytest.raises(onnx_train.UsageError, match="stp"):
        onnx_train.load_data(path, training(arrays), entry="stp")
    session = onnx_train.Session(training(arrays), threads=1)
    assert session.step(onnx_train.load_data(path, session)).loss > 0
    with pytest.raises(onnx_train.UsageError, match="for a path of data"):
        session.predict(FLOATS, batch_size=8)


def test_a_run_of_the_command_goes_on_in_python(tmp_path):
    path, arrays = write_npz(tmp_path)
    model = training(arrays)
    model.save(tmp_path / "train.onnx")
    fit = ["fit", tmp_path / "train.onnx", "--data", path, "--batch-size", 16, "--lr", 0.01, "--out"]
    tool.run(*fit, tmp_path / "whole", "--epochs", 2)
    tool.run(*fit, tmp_path / "parts", "--epochs", 1)
    history = onnx_train.fit(model, path, epochs=2, batch_size=16, lr=0.01, folder=tmp_path / "parts", resume=True,
                             threads=1)  # fmt: skip
    assert history.steps[0].epoch == 2
    last = [onnx_train.Session(tmp_path / run / "last.onnx").state for run in ("whole", "parts")]
    assert all(np.array_equal(last[0][name], last[1][name]) for name in last[0])


def test_an_error_may_quote_bytes_that_are_no_text(tmp_path):
    path, arrays = write_csv(tmp_path)
    path.write_bytes(path.read_bytes() + b"\n1,2,3,\xd2(,0\n")
    with pytest.raises(onnx_train.Error, match="data.csv"):
        onnx_train.fit(training(arrays), path, epochs=1, batch_size=8)
