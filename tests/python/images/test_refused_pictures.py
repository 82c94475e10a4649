"""Data of pictures that do not fit: what is said before the first step, and the options that are the way out."""

import csv
import json

import numpy as np
import onnx
import pytest
import tool
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import onnx_train

CLASSES = ("circle", "square", "star")


def save_model(path, nodes, outputs, weights, channels=3):
    """A network of pictures of 8 x 8 pixels."""
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
    graph = helper.make_graph(nodes, "net", [value("image", (channels, 8, 8))], [value(*outputs)],
                              [numpy_helper.from_array(w, name) for name, w in weights.items()])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def segmenter(path, classes):
    weight = np.random.default_rng(0).normal(size=(classes, 3, 1, 1)).astype(np.float32) * 0.1
    return save_model(path, [helper.make_node("Conv", ["image", "w"], ["logits"])], ("logits", (classes, 8, 8)), {"w": weight})


def classifier(path, classes, first=(), weights=(), name="logits", seed=0):
    weight = np.random.default_rng(seed).normal(size=(3, classes)).astype(np.float32) * 0.1
    source = first[-1].output[0] if first else "image"
    nodes = [*first, helper.make_node("GlobalAveragePool", [source], ["mean"]), helper.make_node("Flatten", ["mean"], ["f"]),
             helper.make_node("MatMul", ["f", "w"], [name])]  # fmt: skip
    return save_model(path, nodes, (name, (classes,)), {"w": weight, **dict(weights)})


def picture(path, seed, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)).save(path)


def masked(root, values, count=6):
    """Pictures with masks of squares, which hold these values."""
    for i in range(count):
        picture(root / "images" / f"{i}.png", i)
        (root / "masks").mkdir(exist_ok=True)
        mask = np.zeros((8, 8), np.uint8)
        mask[i : i + 3, 2:5] = 1
        Image.fromarray(np.array(values, np.uint8)[mask]).save(root / "masks" / f"{i}.png")
    return root


def in_folders(root, count=4):
    for label in CLASSES:
        for i in range(count):
            picture(root / label / f"{i}.png", i + 10 * len(label))
    return root


def fit(model, data, out, *options, status=0):
    return tool.run("fit", model, "--data", data, "--epochs", 1, "--batch-size", 1, "--out", out, *options, status=status)


@pytest.mark.parametrize("loss", ["bce_with_logits", "sigmoid_focal", "dice(sigmoid=true)", "cross_entropy", None])
def test_black_and_white_masks_are_refused_and_mapped(tmp_path, loss):
    """Trained by --mask-values as masks of 0 and 1, which the model keeps."""
    model = segmenter(tmp_path / "m.onnx", 2 if loss == "cross_entropy" else 1)
    options = [] if loss is None else ["--loss", loss]
    said = fit(model, masked(tmp_path / "data", (0, 255)), tmp_path / "run", *options, status=1)
    assert "it holds 0 and 255 alone: --mask-values 0,255 makes them 0 and 1" in said and "masks/0.png" in said
    assert "step 1" not in said and ("takes 0 to 1" in said) and "ignore_index=" not in said
    fit(model, tmp_path / "data", tmp_path / "run", *options, "--mask-values", "0,255")
    fit(model, masked(tmp_path / "ones", (0, 1)), tmp_path / "expected", *options)
    np.testing.assert_array_equal(tool.losses(tmp_path / "run"), tool.losses(tmp_path / "expected"))
    found, expected = (
        json.loads(tool.run("eval", tmp_path / run / "last.onnx", "--data", tmp_path / data, "--json").splitlines()[0])
        for run, data in (("run", "data"), ("expected", "ones"))
    )
    assert found["loss"] == expected["loss"]


def test_a_value_that_mask_values_lack_is_named(tmp_path):
    model = segmenter(tmp_path / "m.onnx", 2)
    said = fit(model, masked(tmp_path / "data", (0, 9)), tmp_path / "run", "--mask-values", "0,255", status=1)
    assert "masks/0.png holds 9, which is not among --mask-values" in said
    assert "is no value of a mask" in fit(model, tmp_path / "data", tmp_path / "run", "--mask-values", "0,black", status=2)


def test_masks_of_two_values_train_by_binary_cross_entropy(tmp_path):
    said = fit(segmenter(tmp_path / "m.onnx", 1), masked(tmp_path / "data", (0, 1)), tmp_path / "run")
    assert "bce_with_logits(logits, labels)" in said and "of two values" in said


def test_masks_of_all_data_are_checked_before_the_first_step(tmp_path):
    """One pixel in the last mask, also of the data to evaluate on; the fact is said once."""
    model = segmenter(tmp_path / "m.onnx", 2)
    good, bad = masked(tmp_path / "good", (0, 1)), masked(tmp_path / "bad", (0, 1))
    mask = np.asarray(Image.open(bad / "masks" / "5.png")).copy()
    mask[7, 7] = 9
    Image.fromarray(mask).save(bad / "masks" / "5.png")
    for data in ([bad], [good, "--eval-data", bad]):
        said = fit(model, *data[:1], tmp_path / "run", *data[1:], status=1)
        assert "'labels' holds 9 in sample 5" in said and "bad/masks/5.png" in said and "step 1" not in said
        assert said.count("takes 0 to 1") == 1 and "build with ignore_index=9" in said
        assert "--no-data-check" not in said  # which would fail in a step
    said = fit(model, bad, tmp_path / "run", "--no-data-check", status=1)
    assert said.count("takes 0 to 1") == 1 and "is outside" not in said


def test_a_mask_or_boxes_of_another_size_are_found_before_the_first_step(tmp_path):
    data = masked(tmp_path / "data", (0, 1))
    Image.fromarray(np.zeros((4, 8), np.uint8)).save(data / "masks" / "5.png")
    said = fit(segmenter(tmp_path / "m.onnx", 2), data, tmp_path / "run", status=1)
    assert "masks/5.png has 8 x 4 pixels" in said and "images/5.png 8 x 8" in said and "step 1" not in said


def test_labels_that_begin_at_one_are_told(tmp_path):
    in_folders(tmp_path / "data")
    rows = [(f"data/{name}/0.png", i + 1) for i, name in enumerate(CLASSES)]
    with open(tmp_path / "x.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    said = fit(classifier(tmp_path / "m.onnx", 3), tmp_path / "x.csv", tmp_path / "run", status=1)
    assert "'labels' holds 3" in said and "the labels begin at 1, classes at 0: subtract 1" in said
    assert "--no-data-check" not in said


@pytest.mark.parametrize("inside", [True, False])
def test_a_network_that_takes_bytes_gets_them(tmp_path, inside):
    """Its first nodes divide by 255, or subtract a mean of 0 to 1."""
    first = [helper.make_node("Sub", ["image", "m"], ["centred"])]
    weights = {"m": np.full((1, 3, 1, 1), 0.45, np.float32)}
    if inside:
        first = [helper.make_node("Div", ["image", "c"], ["scaled"], name="divide"), helper.make_node("Sub", ["scaled", "m"], ["x"])]
        weights["c"] = np.array(255, np.float32)
    model = classifier(tmp_path / "m.onnx", 3, first, weights.items())
    said = fit(model, in_folders(tmp_path / "data"), tmp_path / "run")
    assert (("node 'divide' (Div) divides by 255" in said) == inside) and ("scale(1/255)" in said) == (not inside)
    fit(model, tmp_path / "data", tmp_path / "same", "--preprocess", f"resize(8), crop(8), {'scale(1)' if inside else 'scale(1/255)'}")
    np.testing.assert_array_equal(tool.losses(tmp_path / "run"), tool.losses(tmp_path / "same"))


def test_a_scale_that_is_added_is_told(tmp_path):
    said = fit(classifier(tmp_path / "m.onnx", 3), in_folders(tmp_path / "data"), tmp_path / "run", "--preprocess", "resize(8), crop(8)")
    assert "scale(1/255) was added; write scale(1) to leave it out" in said and "says otherwise" not in said


def test_a_student_takes_the_preprocessing_of_its_teacher(tmp_path):
    data = in_folders(tmp_path / "data")
    teacher, student = classifier(tmp_path / "t.onnx", 3, seed=1), classifier(tmp_path / "s.onnx", 3)
    fit(teacher, data, tmp_path / "taught", "--preprocess", "resize(8), crop(8), normalize(half)")
    tool.run("export", tmp_path / "taught" / "last.onnx", "-o", tmp_path / "teacher.onnx")
    build = ["build", "-o", tmp_path / "train.onnx", "--teacher", tmp_path / "teacher.onnx", "--loss",
             "distill(logits, teacher.logits, temperature=2)"]  # fmt: skip
    assert "is that of the teacher" in tool.run(*build, student)
    assert "image: resize(8), crop(8), scale(1/255), normalize(half)" in fit(tmp_path / "train.onnx", data, tmp_path / "run")
    fit(student, data, tmp_path / "own")
    tool.run("export", tmp_path / "own" / "last.onnx", "-o", tmp_path / "own.onnx")
    assert "differs from that of the teacher" in tool.run(*build, tmp_path / "own.onnx")

    built = onnx_train.build(student, "distill(logits, teacher.logits)", teacher=onnx_train.load(tmp_path / "teacher.onnx"))
    same = onnx_train.build(student, "distill(logits, teacher.logits)", teacher=tmp_path / "teacher.onnx")
    assert built.to_bytes() == same.to_bytes()
    from_memory = onnx_train.load((tmp_path / "teacher.onnx").read_bytes())
    assert onnx_train.build(student, "distill(logits, teacher.logits)", teacher=from_memory).metadata["onnx_train.preprocess"]


def test_a_run_with_options_of_build_is_resumed_without_them(tmp_path):
    """To the byte, from the command; as often as one likes."""
    model, data = classifier(tmp_path / "m.onnx", 10), in_folders(tmp_path / "data")
    options = ["--head", "logits=3", "--optimizer", "sgd"]
    run = ["fit", model, "--data", data, "--batch-size", 2]
    tool.run(*run, "--epochs", 3, *options, "--out", tmp_path / "whole")
    tool.run(*run, "--epochs", 1, *options, "--out", tmp_path / "run")
    tool.run(*run, "--epochs", 2, "--out", tmp_path / "run", "--resume")
    tool.run("fit", "--config", tmp_path / "run" / "options.json", "--epochs", 3, "--resume")
    np.testing.assert_array_equal(tool.losses(tmp_path / "run"), tool.losses(tmp_path / "whole"))
    said = tool.run(*run, "--epochs", 4, "--optimizer", "adam", "--out", tmp_path / "run", "--resume", status=1)
    assert "was built with optimizer sgd" in said


def test_a_guessed_loss_is_recorded(tmp_path):
    model, data = segmenter(tmp_path / "m.onnx", 1), masked(tmp_path / "data", (0, 1))
    fit(model, data, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "options.json").read_text())["loss"] == "bce_with_logits"
    tool.run("fit", "--config", tmp_path / "run" / "options.json", "--epochs", 2, "--resume")


def test_python_builds_with_a_head_and_goes_on_with_the_run(tmp_path):
    model, data = classifier(tmp_path / "m.onnx", 10), in_folders(tmp_path / "data")
    with pytest.warns(UserWarning, match="a training model is built"):
        onnx_train.fit(model, data, epochs=1, batch_size=2, head={"logits": 3}, optimizer="sgd", folder=tmp_path / "run", progress=False)
    again = onnx_train.fit(model, data, epochs=2, batch_size=2, folder=tmp_path / "run", resume=True, progress=False)
    assert len(again.steps) == 6 and again.session.predict(data).logits.shape == (12, 3)
    with pytest.raises(TypeError, match=r"fit\(\) has no argument 'epoch'; did you mean 'epochs'\?"):
        onnx_train.fit(model, data, epoch=1)
    with pytest.raises(TypeError, match="has no argument 'optimiser'; did you mean 'optimizer'"):
        onnx_train.build(model, optimiser="sgd")


def write_boxes(path, names, labels=(0, 1)):
    """A picture with a box of each label, in COCO's form."""
    picture(path.parent / "0.png", 0, size=64)
    boxes = [{"id": i, "image_id": 0, "category_id": label, "bbox": [4 + 20 * i, 5, 15, 16]} for i, label in enumerate(labels)]
    path.write_text(json.dumps({
        "images": [{"id": 0, "file_name": "0.png", "width": 64, "height": 64}],
        "categories": [{"id": i, "name": name} for i, name in enumerate(names)], "annotations": boxes,
    }))  # fmt: skip
    return path


def detector(path, classes):
    """[N, 4 + classes, 84], as models/losses/yolo_64.onnx reads it."""
    anchors = onnx.load(tool.ROOT / "models" / "losses" / "yolo_64.onnx").graph.input[0].type.tensor_type.shape.dim[2].dim_value
    numbers = (4 + classes) * anchors
    nodes = [helper.make_node("GlobalAveragePool", ["images"], ["mean"]), helper.make_node("Flatten", ["mean"], ["f"]),
             helper.make_node("MatMul", ["f", "w"], ["y"]), helper.make_node("Sigmoid", ["y"], ["s"]),
             helper.make_node("Reshape", ["s", "shape"], ["output0"])]  # fmt: skip
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
    weights = {"w": np.full((3, numbers), 0.1, np.float32), "shape": np.array([0, 4 + classes, anchors])}
    graph = helper.make_graph(nodes, "net", [value("images", (3, 64, 64))], [value("output0", (4 + classes, anchors))],
                              [numpy_helper.from_array(w, name) for name, w in weights.items()])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_categories_that_a_detector_lacks_are_told_before_the_first_step(tmp_path):
    model = detector(tmp_path / "m.onnx", 2)
    loss = ["--loss", tool.ROOT / "models" / "losses" / "yolo_64.onnx"]
    fit(model, write_boxes(tmp_path / "two.json", ("circle", "square")), tmp_path / "run", *loss)
    data = write_boxes(tmp_path / "three.json", ("shapes", "circle", "square"), labels=(1, 2))
    said = fit(model, data, tmp_path / "other", *loss, status=1)
    assert "has 3 categories (shapes, circle, square), and the model tells 2 apart" in said and "step 1" not in said
    assert "no box is of shapes, which may be taken out" in said
    with pytest.raises(onnx_train.DataError, match="has 3 categories"):
        onnx_train.fit(onnx_train.Session(onnx_train.load(tmp_path / "run" / "last.onnx")), data, epochs=1)


@pytest.mark.parametrize("accumulate", [(), ("--accumulate",)])
def test_a_layer_for_more_classes_than_there_are_is_told(tmp_path, accumulate):
    model, data = classifier(tmp_path / "m.onnx", 10), in_folders(tmp_path / "data")
    tool.run("build", model, "-o", tmp_path / "train.onnx", *accumulate)
    said = " ".join(fit(tmp_path / "train.onnx", data, tmp_path / "run").split())
    assert "has 3 classes, and the model tells 10 apart; build --head OUTPUT=3 gives it a last layer for them" in said


def test_a_table_of_the_same_pictures_is_evaluated_as_their_folders_are(tmp_path):
    """Folders 1, 2 and 10 are the classes 0, 2 and 1: the numbers of a table are their names."""
    folder = tmp_path / "data"
    rows = []
    for place, (name, colour) in enumerate({"1": 10, "2": 250, "10": 120}.items()):
        for i in range(8):
            (folder / name).mkdir(parents=True, exist_ok=True)
            pixels = np.full((8, 8, 3), colour, np.uint8) + np.random.default_rng(i).integers(0, 5, (8, 8, 3), dtype=np.uint8)
            pixels[..., place] //= 2
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
            rows.append((f"data/{name}/{i}.png", name))
    tool.run("fit", classifier(tmp_path / "m.onnx", 3), "--data", folder, "--steps", 300, "--batch-size", 24, "--lr", 0.1,
             "--out", tmp_path / "run")  # fmt: skip
    best = tmp_path / "run" / "best.onnx"
    for name, of in (("numbers.csv", lambda text: text), ("places.csv", lambda text: ["1", "10", "2"].index(text))):
        with open(tmp_path / name, "w", newline="") as file:
            csv.writer(file).writerows([("path", "class"), *((path, of(text)) for path, text in rows)])
    expected = json.loads(tool.run("eval", best, "--data", folder, "--json"))
    found = json.loads(tool.run("eval", best, "--data", tmp_path / "numbers.csv", "--json").splitlines()[0])
    assert expected["accuracy"] > 0.9 and (found["accuracy"], found["loss"]) == (expected["accuracy"], expected["loss"])
    assert "its numbers are names of the model's classes" in found["notes"][0]
    refused = tool.run("eval", best, "--data", tmp_path / "places.csv", status=1)
    assert "the class 2 is the name of one that the model was trained with, 0 is none (1, 10, 2)" in refused


def test_tables_of_pictures_say_what_they_lack(tmp_path):
    in_folders(tmp_path / "data")
    files = [f"data/{name}/{i}.png" for name in CLASSES for i in range(4)]
    model = classifier(tmp_path / "m.onnx", 3)

    def table(name, header, *columns):
        with open(tmp_path / name, "w", newline="") as file:
            csv.writer(file).writerows([header, *zip(*columns)])
        return tmp_path / name

    ones = [[int(name in file) for file in files] for name in CLASSES]
    other = table("other.csv", ("image_path", *CLASSES), files, *ones)
    said = fit(model, other, tmp_path / "run", status=1)
    assert "has no column path, file or filename" in said and "it has image_path, circle, square, star" in said
    assert "classes        3: circle, square, star" in fit(model, other, tmp_path / "run", "--map", "image_path=path")
    ones[1][4] = 2
    two = table("two.csv", ("path", *CLASSES), files, *ones)
    assert "line 6, column square, holds 2, neither 0 nor 1" in fit(model, two, tmp_path / "no", status=1)
    tags = table("tags.csv", ("path", "tags"), files, [f"{file.split('/')[1]} star" for file in files])
    options = ["--label-separator", " ", "--map", "tags=labels"]
    assert "bce_with_logits" in fit(model, tags, tmp_path / "tags", *options)
    label = table("label.csv", ("path", "label"), files, [f"{file.split('/')[1]} star" for file in files])
    tool.run("eval", tmp_path / "tags" / "last.onnx", "--data", label)  # by the separator that the model keeps
    said = fit(model, label, tmp_path / "no", "--label-separator", " ", "--loss", "cross_entropy", status=1)
    assert "build with --loss bce_with_logits" in said


def test_a_folder_for_tests_that_is_not_read_is_told(tmp_path):
    model = classifier(tmp_path / "m.onnx", 3)
    in_folders(tmp_path / "data" / "train")
    in_folders(tmp_path / "data" / "val")
    said = fit(model, tmp_path / "data", tmp_path / "run", "--early-stop", 2)
    assert "data/val is there, and not read: --eval-data" in said and "--early-stop follows the training loss" in said
    said = fit(model, tmp_path / "data", tmp_path / "with", "--early-stop", 2, "--eval-data", tmp_path / "data")
    assert "not read" not in said and "follows the training loss" not in said


def test_positive_weights_may_be_a_list(tmp_path):
    """As the same numbers in an input."""
    model = classifier(tmp_path / "m.onnx", 3)
    x, labels = np.random.default_rng(0).random((5, 3, 8, 8), np.float32), np.eye(5, 3, dtype=np.float32)
    listed = onnx_train.Session(onnx_train.build(model, "bce_with_logits(pos_weight=[1, 2, 3.5])"))
    given = onnx_train.Session(onnx_train.build(model, "bce_with_logits(pos_weight=p)"))
    expected = given.run("evaluate", {"image": x, "labels": labels, "p": np.array([1, 2, 3.5], np.float32)})
    assert listed.evaluate(x, labels).loss == float(expected["loss"])
    with pytest.raises(onnx_train.Error, match="has 2 numbers"):
        onnx_train.build(model, "bce_with_logits(pos_weight=[1, 2])")


def test_options_of_build_and_steps_are_found(tmp_path):
    model, data = classifier(tmp_path / "m.onnx", 3), in_folders(tmp_path / "data")
    said = fit(model, data, tmp_path / "run", "--layer-decay", "0.5", status=2)
    assert "has no option '--layer-decay', which is one of build" in said
    assert "did you mean 'flip', 'vflip'?" in fit(model, data, tmp_path / "run", "--augment", "flipp", status=1)
    fit(model, data, tmp_path / "run")
    said = fit(tmp_path / "run" / "best.onnx", data, tmp_path / "next", "--head", "logits=2", status=2)
    assert "onnx-train build" in said and "new.onnx --head logits=2 builds it anew" in said


def test_pictures_of_a_program_are_preprocessed_as_files(tmp_path):
    """The same numbers from a folder, paths, images of Pillow and arrays of bytes."""
    data = tmp_path / "data"
    for label in CLASSES:
        for i in range(2):
            picture(data / label / f"{i}.png", i + 10 * len(label), size=12)
    fit(classifier(tmp_path / "m.onnx", 3), data, tmp_path / "run", "--preprocess", "resize(8, 8), normalize(half)")
    session = onnx_train.Session(tmp_path / "run" / "last.onnx")
    files = sorted(data.rglob("*.png"))
    expected = session.predict(data)
    images = [Image.open(file) for file in files]
    pixels = np.stack([np.asarray(image) for image in images])
    for given in (files, images, pixels, pixels.transpose(0, 3, 1, 2)):
        found = session.predict(given)
        np.testing.assert_array_equal(found.logits, expected.logits)
        assert found.files == ([str(file) for file in files] if given is files else None)
    for given in (images[1], pixels[1]):
        np.testing.assert_allclose(session.predict(given).logits, expected.logits[1:2], rtol=1e-6)
    labels = np.array([0, 0, 1, 1, 2, 2])
    for given in (files, images, pixels):
        assert session.evaluate(given, labels).loss == pytest.approx(session.evaluate(data).loss, rel=1e-6)
