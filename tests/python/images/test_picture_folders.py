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
    with pytest.raises(onnx_train.UsageError, match="is preprocessed by resize"):
        history.session.predict(as_arrays(folder / "val")["image"])


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
    assert message.count("cannot be read") == 1 and str(tmp_path / "data") in message
