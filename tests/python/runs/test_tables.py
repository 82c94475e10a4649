"""Tables whose columns are not called as the model's inputs."""

import numpy as np
import onnx
import pytest
import tool

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).round(3)
SIGNS = X[:, 0] > 0


def model(outputs, path):
    net = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N, 3] sensor) => (float[N, {outputs}] scores) <float[3, {outputs}] w> {{ scores = MatMul(sensor, w) }}""")
    net.graph.initializer.append(onnx.numpy_helper.from_array(RNG.normal(size=(3, outputs)).astype(np.float32), "w"))
    onnx.save(net, path)
    return path


def table(path, label, values, separator=","):
    rows = [separator.join(["a", "b", "c", label])] + [separator.join(map(str, [*row, value])) for row, value in zip(X, values)]
    path.write_text("\n".join(rows) + "\n")
    return path


def fit(net, data, folder, *options, epochs=1, status=0):
    return tool.run("fit", net, "--data", data, "--epochs", epochs, "--out", folder / "run", "--overwrite", *options, status=status)


@pytest.mark.parametrize("name", ["class", "label", "labels"])
@pytest.mark.parametrize("kind", ["whole numbers", "words"])
def test_a_column_of_labels_is_the_target(kind, name, tmp_path):
    values = SIGNS.astype(int) if kind == "whole numbers" else np.where(SIGNS, "up", "down")
    data = table(tmp_path / "x.csv", name, values)
    said = fit(model(2, tmp_path / "net.onnx"), data, tmp_path, "--lr", 0.5)
    assert "loss       cross_entropy" in said
    assert (f"x.csv: column '{name}' is taken for 'labels'" in said) == (name != "labels")
    tool.run("predict", tmp_path / "run/last.onnx", "--inputs", data, "-o", tmp_path / "y.csv")
    found = {line.split(",")[1] for line in (tmp_path / "y.csv").read_text().splitlines()[1:]}
    assert found <= ({"0", "1"} if kind == "whole numbers" else {"down", "up"})


@pytest.mark.parametrize("loss", [(), ("--loss", "bce_with_logits"), ("--loss", "mse")])
def test_two_words_are_yes_and_no_of_a_single_output(loss, tmp_path):
    net = model(1, tmp_path / "net.onnx")
    data = table(tmp_path / "x.csv", "label", np.where(SIGNS, "yes", "no"))
    said = fit(net, data, tmp_path, "--lr", 0.1, *loss, epochs=30)
    assert "read as 2 classes in sorted order: no, yes" in said
    if "mse" not in loss:
        tool.run("predict", tmp_path / "run/last.onnx", "--inputs", data, "-o", tmp_path / "y.csv")
        rows = [line.split(",") for line in (tmp_path / "y.csv").read_text().splitlines()[1:]]
        assert np.mean([row[1] == ("yes" if sign else "no") for row, sign in zip(rows, SIGNS)]) > 0.9
    three = table(tmp_path / "three.csv", "label", np.resize(["a", "b", "c"], 40))
    assert "three.csv, line 2, column 'label': 'a' is not a number" in fit(net, three, tmp_path, *loss, status=1)


def test_columns_that_do_not_fit_are_named(tmp_path):
    net = model(2, tmp_path / "net.onnx")
    data = table(tmp_path / "x.csv", "watts", SIGNS.astype(int))
    said = fit(net, data, tmp_path, status=1)
    assert "x.csv has 4 columns for 'sensor' float[N,3], which takes 3: a, b, c, watts; --columns sensor=... says which, --map COLUMN=labels" in said
    assert "cross_entropy" in fit(net, data, tmp_path, "--map", "watts=labels")
    for separator, name in [(";", "semicolons"), ("\t", "tabs")]:
        other = table(tmp_path / "other.csv", "label", SIGNS.astype(int), separator)
        for options in [], ["--map", "label=labels"], ["--columns", "sensor=a,b,c"]:
            said = fit(net, other, tmp_path, *options, status=2 if options else 1)
            assert f"its fields are separated by {name}, and commas separate those of a .csv" in said
