"""Training on folders of pictures: the same as on their bytes in arrays, resumed to the bit, told classes by name."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tool
from PIL import Image

sys.path.append(str(tool.ROOT / "examples" / "python"))
import digit_pictures  # noqa: E402

AUGMENT = "pad_crop(1), rotate(10), jitter(0.2), erase(0.2)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """train/ and val/ with 40 and 20 digits of each of three classes, and the training model."""
    root = tmp_path_factory.mktemp("digits")
    for part, file, count in (("train", "digits_train.npz", 40), ("val", "digits_test.npz", 20)):
        arrays = np.load(digit_pictures.DATA / file)
        chosen = np.concatenate([np.flatnonzero(arrays["labels"] == label)[:count] for label in (1, 4, 7)])
        digit_pictures.write(root / part, {name: arrays[name][chosen] for name in ("image", "labels")})
    tool.run("build", tool.ROOT / "models" / "digits_cnn.onnx", "-o", root / "train.onnx")
    return root


def as_arrays(part):
    files = sorted(part.rglob("*.png"))
    classes = sorted(path.name for path in part.iterdir())
    return {
        "image": np.stack([np.asarray(Image.open(file)) for file in files])[:, None],
        "labels": np.array([classes.index(file.parent.name) for file in files]),
    }


def fit(folder, out, *options, data=None, epochs=2):
    data = data or folder / "train"
    return tool.run("fit", folder / "train.onnx", "--data", data, "--epochs", epochs, "--lr", "0.003", "--out", out, *options)


def test_a_folder_trains_as_its_bytes_in_an_array_and_predicts_classes(folder, tmp_path):
    said = fit(folder, tmp_path / "run", "--eval-data", folder / "val")
    assert "3: 1, 4, 7" in said and "image: resize(8), crop(8), scale(1/255)" in said
    arrays = tool.save(tmp_path / "train.npz", as_arrays(folder / "train"))
    fit(folder, tmp_path / "arrays", "--scale", "1/255", data=arrays)
    np.testing.assert_array_equal(tool.losses(tmp_path / "run"), tool.losses(tmp_path / "arrays"))
    fit(folder, tmp_path / "long", "--eval-data", folder / "val", epochs=12)
    best = tmp_path / "long" / "best.onnx"
    assert json.loads(tool.run("eval", best, "--data", folder, "--json"))["accuracy"] > 0.9

    tool.run("export", best, "-o", tmp_path / "digits.onnx")
    tool.run("predict", tmp_path / "digits.onnx", "--inputs", folder, "-o", tmp_path / "x.npz")
    assert tool.load(tmp_path / "x.npz")["logits"].shape == (60, 10)  # of which three have names


def test_classes_are_written_with_their_files(folder, tmp_path):
    tool.run("build", tool.ROOT / "models" / "digits_cnn.onnx", "-o", tmp_path / "all.onnx")
    ten = tmp_path / "ten"
    for label in range(10):
        for path in sorted((folder / "train" / "4").glob("*.png"))[:2]:
            (ten / f"digit, {label}").mkdir(parents=True, exist_ok=True)
            (ten / f"digit, {label}" / path.name).write_bytes(path.read_bytes())
    tool.run("fit", tmp_path / "all.onnx", "--data", ten, "--steps", "1", "--out", tmp_path / "run")
    best = tmp_path / "run" / "last.onnx"
    shown = tool.run("predict", best, "--inputs", folder / "val", "-o", tmp_path / "classes.csv")
    assert "and 50 more" in shown
    with open(tmp_path / "classes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    tool.run("predict", best, "--inputs", folder / "val", "-o", tmp_path / "x.npz")
    logits = tool.load(tmp_path / "x.npz")["logits"].astype(float)
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    assert [row["class"] for row in rows] == [f"digit, {k}" for k in logits.argmax(1)]
    assert [Path(row["file"]).name for row in rows] == [path.name for path in sorted((folder / "val").rglob("*.png"))]
    np.testing.assert_allclose([float(row["probability"]) for row in rows], probabilities.max(1), rtol=1e-6)
    one = sorted((folder / "val" / "7").glob("*.png"))[0]
    tool.run("predict", best, "--inputs", one, "-o", tmp_path / "one.npz")
    assert tool.load(tmp_path / "one.npz")["logits"].shape == (1, 10)
    (ten / "other").mkdir()
    (ten / "other" / "a.png").write_bytes(one.read_bytes())
    assert "the class 'other' is none" in tool.run("eval", best, "--data", ten, status=1)


def test_a_training_with_augmentation_is_resumed_to_the_bit(folder, tmp_path):
    options = ["--augment", AUGMENT, "--batch-size", "25", "--seed", "3", "--threads", "2"]
    fit(folder, tmp_path / "whole", *options)
    fit(folder, tmp_path / "parts", *options, "--steps", "3")
    refused = tool.run("fit", folder / "train.onnx", "--data", folder / "train", "--out", tmp_path / "parts", "--resume",
                       "--steps", "10", "--augment", "flip", status=1)  # fmt: skip
    assert f"augment was {AUGMENT} and is flip" in refused
    fit(folder, tmp_path / "parts", "--resume", "--steps", "10", "--threads", "2")
    np.testing.assert_array_equal(tool.losses(tmp_path / "parts"), tool.losses(tmp_path / "whole"))
    assert (tmp_path / "parts" / "last.onnx").read_bytes() == (tmp_path / "whole" / "last.onnx").read_bytes()
    fit(folder, tmp_path / "plain", "--batch-size", "25", "--seed", "3")
    assert (tool.losses(tmp_path / "plain") != tool.losses(tmp_path / "whole")).all()


def test_python_takes_the_same_texts(folder, tmp_path):
    onnx_train = pytest.importorskip("onnx_train", reason="the Python package is not built")
    fit(folder, tmp_path / "run", "--augment", AUGMENT)
    with pytest.warns(UserWarning, match="resize.8., crop.8., scale"):
        history = onnx_train.fit(folder / "train.onnx", folder / "train", epochs=2, lr=0.003, augment=AUGMENT, threads=1)
    np.testing.assert_array_equal(history.losses.astype(np.float32), tool.losses(tmp_path / "run").astype(np.float32))
    assert history.session.predict(folder / "val").logits.shape == (60, 10)
    pixels = as_arrays(folder / "val")["image"]
    np.testing.assert_array_equal(history.session.predict(pixels).logits, history.session.predict(folder / "val").logits)
    with pytest.raises(onnx_train.UsageError, match="is preprocessed by resize"):
        history.session.predict(pixels.astype(np.float32))


def test_pictures_are_mixed_with_their_classes(folder, tmp_path):
    tool.run("build", tool.ROOT / "models" / "digits_cnn.onnx", "-o", tmp_path / "soft.onnx", "--loss",
             "cross_entropy(probabilities=true)")  # fmt: skip
    options = ["--data", folder / "train", "--epochs", "2", "--lr", "0.003", "--augment", "mixup(0.2), cutmix(1)"]
    tool.run("fit", tmp_path / "soft.onnx", *options, "--out", tmp_path / "run")
    assert np.isfinite(tool.losses(tmp_path / "run")).all()
    message = tool.run("fit", folder / "train.onnx", *options, "--out", tmp_path / "no", status=1)
    assert "cross_entropy(probabilities=true)" in message


def test_preprocessing_is_that_of_pillow(tmp_path):
    value = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 3, 20, 24])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value("x")], [value("y")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (57, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    tool.run("predict", tmp_path / "m.onnx", "--inputs", tmp_path / "x.png", "-o", tmp_path / "y.npz", "--preprocess",
             "resize(32), crop(20, 24), normalize(imagenet)")  # fmt: skip
    wanted = Image.fromarray(pixels).resize((50, 32), Image.BILINEAR).crop((13, 6, 37, 26))
    wanted = (np.asarray(wanted) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(tool.load(tmp_path / "y.npz")["y"][0], wanted.transpose(2, 0, 1), atol=1e-5)


def test_a_damaged_picture_is_named_and_one_of_another_size_too(folder, tmp_path):
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        (tmp_path / "data" / name).write_bytes((sorted((folder / "train").rglob("*.png"))[0]).read_bytes()[:60])
    message = tool.run("fit", folder / "train.onnx", "--data", tmp_path / "data", "--steps", "1", "--out", tmp_path / "run",
                       status=1)  # fmt: skip
    assert f"the picture {tmp_path}/data/a/1.png cannot be read: it is cut off" in message and "b/2.png" not in message
    assert "2 of 2 pictures cannot be read" in message and "--on-bad-picture skip" in message
    assert not (tmp_path / "run").exists()  # it is found before the first step


@pytest.mark.parametrize("form", ["folders", "csv", "masks"])
def test_damaged_pictures_are_left_out_where_that_is_asked_for(folder, tmp_path, form):
    """Training is that on the folder without them."""
    train = folder / "train.onnx"
    for name in "whole", "damaged":
        files = [p.relative_to(folder / "train") for p in sorted((folder / "train").rglob("*.png"))]
        for i, file in enumerate(files):
            to = tmp_path / name / file
            if form == "masks":
                to = tmp_path / name / "images" / f"{i:03}.png"
                (tmp_path / name / "masks").mkdir(parents=True, exist_ok=True)
            to.parent.mkdir(parents=True, exist_ok=True)
            data = (folder / "train" / file).read_bytes()
            bad = i in (5, 77)
            if bad and name == "whole" and form != "csv":
                continue
            broken = bad and name == "damaged"
            to.write_bytes(data[:70] if broken and (form != "masks" or i == 5) else data)
            if form == "masks":
                mask = tmp_path / name / "masks" / f"{i:03}.png"
                Image.fromarray(np.full((8, 8), i % 2, np.uint8)).save(mask)
                if broken and i == 77:
                    mask.write_bytes(b"no picture")
        if form == "csv":
            rows = [f"{file},{file.parts[0]}" for i, file in enumerate(files) if name == "damaged" or i not in (5, 77)]
            (tmp_path / name / "train.csv").write_text("\n".join(["path,class", *rows]))
    data = {name: tmp_path / name / ("train.csv" if form == "csv" else "") for name in ("whole", "damaged")}
    if form == "masks":
        train = tmp_path / "train.onnx"
        value = lambda name, *shape: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", *shape])
        weight = onnx.numpy_helper.from_array(np.ones((2, 1, 1, 1), np.float32), "w")
        graph = onnx.helper.make_graph([onnx.helper.make_node("Conv", ["x", "w"], ["logits"])], "g", [value("x", 1, 8, 8)],
                                       [value("logits", 2, 8, 8)], [weight])  # fmt: skip
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
        tool.run("build", tmp_path / "m.onnx", "-o", train)
    run = ["fit", train, "--epochs", 2, "--lr", "0.003", "--val-split", "0.1", "--data"]
    tool.run(*run, data["whole"], "--out", tmp_path / "expected")
    said = tool.run(*run, data["damaged"], "--on-bad-picture", "skip", "--out", tmp_path / "run")
    assert "2 pictures are left out, the first: the picture " in said
    assert said.count("cannot be read") == 2 and "2 pictures left out that cannot be read" in said
    np.testing.assert_array_equal(tool.losses(tmp_path / "run"), tool.losses(tmp_path / "expected"))
    if form != "folders":
        return
    tool.run("predict", tmp_path / "run" / "last.onnx", "--inputs", data["damaged"], "-o", tmp_path / "y.csv",
             "--on-bad-picture", "skip")  # fmt: skip
    assert len((tmp_path / "y.csv").read_text().splitlines()) == 1 + 118
    assert "--on-bad-picture skip" in tool.run("eval", tmp_path / "run" / "last.onnx", "--data", data["damaged"], status=1)
    import onnx_train

    with pytest.warns(UserWarning, match="2 pictures are left out"):
        arrays = onnx_train.Session(tmp_path / "run" / "last.onnx").predict(data["damaged"], on_bad_picture="skip")
    assert arrays.logits.shape == (118, 10)


@pytest.mark.parametrize("form", ["columns", "separator", "numbers"])
def test_a_csv_gives_pictures_several_labels_or_numbers(folder, tmp_path, form):
    """As the same numbers in arrays."""
    arrays = as_arrays(folder / "train")
    digit = np.array([1, 4, 7])[arrays["labels"]]
    targets = np.stack([digit % 2 == 0, digit > 3, digit == 7], -1).astype(np.float32)
    names = ["even", "large", "seven"]
    files = [str(p) for p in sorted((folder / "train").rglob("*.png"))]
    options = []
    if form == "separator":
        lines = ["path,class", *(f"{f}, {'|'.join(n for n, y in zip(names, row) if y)}" for f, row in zip(files, targets))]
        options = ["--label-separator", "|"]
    elif form == "columns":
        lines = [f"path,{','.join(names)}", *(f"{f},{','.join(f'{y:.0f}' for y in row)}" for f, row in zip(files, targets))]
    else:
        targets = np.stack([digit / 2, -digit, targets[:, 0]], -1).astype(np.float32)
        lines = ["file,id,a,b,c", *(f"{f},{i},{','.join(map(str, row))}" for i, (f, row) in enumerate(zip(files, targets)))]
        options = ["--columns", "labels=a,b,c"]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    run = ["fit", tool.ROOT / "models" / "digits_cnn.onnx", "--head", "logits=3", "--epochs", 3, "--lr", 0.003, "--seed", 1]
    said = tool.run(*run, "--data", tmp_path / "train.csv", *options, "--out", tmp_path / "run")
    assert ("mse" if form == "numbers" else "bce_with_logits(logits, labels)") in said
    data = tool.save(tmp_path / "train.npz", {"image": arrays["image"], "labels": targets})
    tool.run(*run, "--data", data, "--scale", "1/255", "--out", tmp_path / "arrays")
    np.testing.assert_array_equal(tool.losses(tmp_path / "run"), tool.losses(tmp_path / "arrays"))
    last = tmp_path / "run" / "last.onnx"
    ours, theirs = (
        json.loads(tool.run("eval", model, "--data", path, "--json", *more).splitlines()[0])["loss"]
        for model, path, more in ((last, tmp_path / "train.csv", options if form == "separator" else []),
                                  (tmp_path / "arrays" / "last.onnx", data, []))  # fmt: skip
    )
    assert ours == theirs
    tool.run("predict", last, "--inputs", tmp_path / "train.csv", "-o", tmp_path / "y.npz")
    assert tool.load(tmp_path / "y.npz")["logits"].shape == (120, 3)
    if form == "numbers":
        return
    tool.run("predict", last, "--inputs", tmp_path / "train.csv", "-o", tmp_path / "y.csv")
    assert (tmp_path / "y.csv").read_text().splitlines()[0] == "file,even,large,seven"
