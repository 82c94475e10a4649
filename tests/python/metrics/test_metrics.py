"""Metrics against their formulas in numpy, whatever the batches; their statistics on ONNX Runtime; what the command does
with them."""

import json
import re

import numpy as np
import onnx
import pytest
import tool
from onnx import TensorProto, helper

import onnx_train

C = 5
RNG = np.random.default_rng(0)
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
DIGITS = tool.ROOT / "models" / "digits_cnn.onnx"


def identity(*shape):
    """y = x + w, for a w of zeros, so that the inputs are the predictions."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", *shape)) for name in "xy"]
    weight = onnx.numpy_helper.from_array(np.zeros(shape[-1:] or 1, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def session(shape, loss, metric):
    return onnx_train.Session(onnx_train.build(identity(*shape), loss, "sgd", metric=metric, train="w"), threads=1)


def evaluated(model, data, path, batch_size):
    return model.evaluate(tool.save(path, data), batch_size=batch_size)


def in_any_batches(model, data, folder):
    """The metrics of all data; the same, to the last digit where they are counts, for all ways to cut them."""
    whole = model.evaluate(data)
    for size in (1, 7):
        cut = evaluated(model, data, folder / "data.npz", size)
        for name in whole:
            if name != "loss_count" and name != "accuracy_count":
                np.testing.assert_allclose(cut[name], whole[name], rtol=1e-6, atol=1e-12, err_msg=name)
    return whole


# ---- The formulas, of labels y, predictions p, scores s, weights w


def counts(y, p, w, classes=C):
    matrix = np.zeros((classes, classes))
    np.add.at(matrix, (y, p), w)
    return matrix


def f1_of(matrix):
    """scikit-learn's f1_score(average=None), and NaN for classes that neither labels nor predictions have."""
    hits, both = np.diag(matrix), matrix.sum(0) + matrix.sum(1)
    return np.where(both > 0, 2 * hits / np.maximum(both, 1e-300), np.nan)


def auc_of(positive, score, w):
    """The weighted part of pairs in which the positive one scores higher; ties count one half."""
    a, b = score[positive], score[~positive]
    pairs = w[positive][:, None] * w[~positive][None]
    return ((a[:, None] > b) * pairs + (a[:, None] == b) * pairs / 2).sum() / pairs.sum()


def average_precision_of(positive, score, w):
    order = np.argsort(-score)
    positive, w = positive[order], w[order]
    hits, all_ = np.cumsum(w * positive), np.cumsum(w)
    return (w * positive * hits / all_).sum() / hits[-1]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


OF_CLASSES = ["accuracy", "top_k(k=2)", "precision", "recall", "f1", "micro=f1(average=micro)", "weighted=f1(average=weighted)",
              "iou", "dice", "support", "confusion_matrix", "auc", "average_precision", "perplexity"]  # fmt: skip


def of_classes(n=60):
    """Labels of classes 0 to 3, some ignored; class 4 is predicted, or nothing of it is."""
    x = RNG.normal(size=(n, C)).astype(np.float32)
    x[:, 4] = -9
    y = RNG.integers(0, 3, n)  # class 3 is predicted only
    y[::7] = -100
    return x, y


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_classes_are_those_of_scikit_learn(weighted, tmp_path):
    x, y = of_classes()
    w = RNG.uniform(0.5, 2, len(x)).astype(np.float32) if weighted else np.ones(len(x), np.float32)
    names = OF_CLASSES
    if weighted:
        given = [re.sub(r"\)$", ", sample_weight=s)", m) if "(" in m else m + "(sample_weight=s)" for m in names]
        names = [m.replace("(,", "(") for m in given]
        names[0] = "right=" + names[0]  # `accuracy` is the loss's, of labels without weights
    model = session((C,), "cross_entropy", names)
    found = in_any_batches(model, {"x": x, "labels": y} | ({"s": w} if weighted else {}), tmp_path)
    kept = y != -100
    x, y, w = x[kept].astype(float), y[kept], w[kept].astype(float)
    matrix, p = counts(y, x.argmax(1), w), softmax(x)
    hits, labels, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    f1 = f1_of(matrix)
    with np.errstate(invalid="ignore"):
        precision = np.where(predicted > 0, hits / predicted, np.where(labels > 0, 0, np.nan))
        recall = np.where(labels > 0, hits / labels, np.where(predicted > 0, 0, np.nan))
        iou = hits / (labels + predicted - hits)
    of_class = [y == c for c in range(C)]
    auc = [auc_of(of, p[:, c], w) if of.any() else np.nan for c, of in enumerate(of_class)]
    areas = [average_precision_of(of, p[:, c], w) if of.any() else np.nan for c, of in enumerate(of_class)]
    own = p[np.arange(len(y)), y]
    expected = {
        "right" if weighted else "accuracy": hits.sum() / w.sum(),
        "top_k": (w * ((x > x[np.arange(len(y)), y][:, None]).sum(1) < 2)).sum() / w.sum(),
        "precision_per_class": precision, "precision": np.nanmean(precision),
        "recall_per_class": recall, "recall": np.nanmean(recall),
        "f1_per_class": f1, "f1": np.nanmean(f1), "micro": hits.sum() / w.sum(),
        "weighted": np.nansum(f1 * labels) / labels.sum(),
        "iou_per_class": iou, "iou": np.nanmean(iou), "dice": np.nanmean(f1), "support": labels, "confusion_matrix": matrix,
        "perplexity": np.exp(-(w * np.log(own)).sum() / w.sum()),
    }  # fmt: skip
    assert np.isnan(f1[4]) and f1[3] == 0  # nothing of class 4; no label of class 3
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    # Exact but for the order within a bin.
    for name, values in {"auc": auc, "average_precision": areas}.items():
        np.testing.assert_allclose(found[f"{name}_per_class"], values, atol=2e-3, err_msg=name)
        np.testing.assert_allclose(found[name], np.nanmean(values), atol=2e-3, err_msg=name)


@pytest.mark.parametrize("shape", [(3,), (1,), ()])
def test_classes_that_are_yes_or_no_are_counted_each_for_itself(shape, tmp_path):
    x = RNG.normal(size=(40, *shape)).astype(np.float32)
    t = (RNG.uniform(size=x.shape) < 0.4).astype(np.float32)
    names = ["accuracy", "f1", "precision(threshold=0.7)", "iou(average=micro)", "confusion_matrix", "auc", "average_precision"]
    found = in_any_batches(session(shape, "bce_with_logits", names), {"x": x, "labels": t}, tmp_path)
    x, t = x.reshape(len(x), -1), t.reshape(len(t), -1) > 0
    p = x > 0
    np.testing.assert_allclose(found.accuracy, (p == t).mean(), rtol=1e-6)
    f1 = 2 * (p & t).sum(0) / (p.sum(0) + t.sum(0))
    np.testing.assert_allclose(found.f1_per_class, f1)
    np.testing.assert_allclose(found.f1, f1.mean())
    sure = x > np.log(0.7 / 0.3)
    np.testing.assert_allclose(found.precision_per_class, (sure & t).sum(0) / sure.sum(0))
    np.testing.assert_allclose(found.iou, (p & t).sum() / (p | t).sum())
    cells = [[(~p & ~t).sum(0), (p & ~t).sum(0)], [(~p & t).sum(0), (p & t).sum(0)]]
    np.testing.assert_allclose(found.confusion_matrix, np.moveaxis(cells, -1, 0).squeeze())
    ones = np.ones(len(x))
    classes = range(x.shape[1])
    np.testing.assert_allclose(found.auc_per_class, [auc_of(t[:, c], x[:, c], ones) for c in classes], atol=2e-3)
    expected = [average_precision_of(t[:, c], x[:, c], ones) for c in classes]
    np.testing.assert_allclose(found.average_precision_per_class, expected, atol=2e-3)


def test_pixels_that_the_loss_ignores_do_not_count(tmp_path):
    x = RNG.normal(size=(9, 3, 4, 5)).astype(np.float32)
    y = RNG.integers(0, 3, (9, 4, 5))
    y[:, 0] = 255
    model = session((3, 4, 5), "cross_entropy(y, masks, axis=1, ignore_index=255)", ["iou", "dice(y, masks)", "top_k(k=1)"])
    found = in_any_batches(model, {"x": x, "masks": y}, tmp_path)
    matrix = counts(y[y != 255], x.argmax(1)[y != 255], 1, 3)
    hits, both = np.diag(matrix), matrix.sum(0) + matrix.sum(1)
    np.testing.assert_allclose(found.iou_per_class, hits / (both - hits))
    np.testing.assert_allclose(found.dice, (2 * hits / both).mean())
    assert found.top_k == pytest.approx(found.accuracy, rel=1e-6)


OF_VALUES = ["mae", "mse", "rmse", "mape", "r2", "pearson", "cosine"]


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_values_are_those_of_scikit_learn(weighted, tmp_path):
    t = RNG.normal(2, 1, (30, 3)).astype(np.float32)
    x = (t + RNG.normal(0, 0.5, t.shape)).astype(np.float32)
    w = RNG.uniform(0.5, 2, len(x)).astype(np.float32) if weighted else np.ones(len(x), np.float32)
    names = [name + "(sample_weight=s)" * weighted for name in OF_VALUES]
    found = in_any_batches(session((3,), "mse", names), {"x": x, "labels": t} | ({"s": w} if weighted else {}), tmp_path)
    x, t, w = x.astype(float), t.astype(float), w.astype(float)[:, None]
    mean = lambda values: (w * values).sum(0) / w.sum()  # noqa: E731
    dx, dt = x - mean(x), t - mean(t)
    expected = {
        "mae": mean(abs(x - t)).mean(), "mse": mean((x - t) ** 2).mean(), "rmse": mean((x - t) ** 2).mean() ** 0.5,
        "mape": mean(abs((x - t) / t)).mean(), "r2": (1 - mean((x - t) ** 2) / mean(dt**2)).mean(),
        "pearson": (mean(dx * dt) / np.sqrt(mean(dx**2) * mean(dt**2))).mean(),
        "cosine": mean(((x * t).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(t, axis=1))[:, None])[0],
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_edges_of_values_are_those_of_scikit_learn():
    model = session((1,), "mse", ["r2", "pearson", "mae"])
    column = lambda *values: np.array(values, np.float32)[:, None]  # noqa: E731
    constant = {"labels": column(3.1, 3.1, 3.1)}
    assert model.evaluate(constant | {"x": column(3.1, 3.1, 3.1)}).r2 == 1
    found = model.evaluate(constant | {"x": column(3.1, 2, 4)})
    assert found.r2 == 0 and np.isnan(found.pearson)
    one = model.evaluate({"x": column(1), "labels": column(2)})
    assert np.isnan(one.r2) and one.mae == 1


def test_a_prediction_that_is_not_a_number_makes_metrics_such():
    x, y = of_classes(20)
    ignored, counted = x.copy(), x.copy()
    ignored[0], counted[1, 2] = np.nan, np.nan  # label 0 is ignored
    model = session((C,), "cross_entropy", ["f1", "top_k(k=2)", "auc", "perplexity", "confusion_matrix"])
    whole, without, with_nan = (model.evaluate({"x": a, "labels": y}) for a in (x, ignored, counted))
    for name in ("f1", "top_k", "auc", "perplexity"):
        assert without[name] == whole[name] and np.isnan(with_nan[name]), name
    values = session((2,), "mse", OF_VALUES)
    x = np.ones((3, 2), np.float32)
    x[1, 1] = np.nan
    found = values.evaluate({"x": x, "labels": np.eye(3, 2, dtype=np.float32)})
    assert all(np.isnan(found[name]) for name in OF_VALUES)


def test_nothing_that_counts_is_not_a_number():
    model = session((C,), "cross_entropy", ["f1", "top_k(k=2)", "auc", "perplexity"])
    found = model.evaluate({"x": np.ones((3, C), np.float32), "labels": np.full(3, -100)})
    assert all(np.isnan(found[name]) for name in ("f1", "top_k", "auc", "perplexity"))


def test_probabilities_are_taken_as_they_are():
    """A model that ends in a Softmax: its area is that of its outputs, not of a second softmax."""
    model = identity(C)
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["p"], axis=-1))
    model.graph.output[0].name = "p"
    trained = onnx_train.build(model, "nll(p)", "sgd", metric=["auc", "own=auc(bins=65536)"])
    assert json.loads(trained.metadata["onnx_train.metrics"])[0].endswith("ignore_index=-100, probabilities=1)")
    x, y = of_classes()
    found = onnx_train.Session(trained).evaluate({"x": x, "labels": y})
    p, kept = softmax(x.astype(float)), y != -100
    expected = [auc_of(y[kept] == c, p[kept, c], np.ones(kept.sum())) for c in range(3)]
    np.testing.assert_allclose(found.auc, np.mean(expected), atol=1e-3)
    np.testing.assert_allclose(found.own, np.mean(expected), atol=1e-4)


@pytest.mark.parametrize("shape, loss, names", [
    ((C,), "cross_entropy", OF_CLASSES), ((3,), "bce_with_logits", ["f1", "auc", "accuracy"]), ((3,), "mse", OF_VALUES)
])  # fmt: skip
def test_statistics_are_the_same_on_onnx_runtime(shape, loss, names):
    import onnxruntime

    model = onnx_train.build(identity(*shape), loss, "sgd", metric=names)
    runtime = onnxruntime.InferenceSession(model.flatten("evaluate").to_bytes(), providers=["CPUExecutionProvider"])
    x, y = of_classes(20)
    x = x[:, : shape[0]]
    data = {"x": x, "labels": y if loss == "cross_entropy" else (RNG.uniform(size=x.shape) < 0.5).astype(np.float32)}
    feeds = data | {"w": np.zeros(shape, np.float32)}
    outputs = [output.name for output in runtime.get_outputs()]
    theirs = dict(zip(outputs, runtime.run(outputs, {i.name: feeds[i.name] for i in runtime.get_inputs()})))
    ours = onnx_train.Session(model, threads=1)
    run = ours.run("evaluate", data)
    statistics = [port.name for port in ours.outputs("evaluate") if port.role == "statistic"]
    assert len(statistics) >= 2
    for name in statistics:
        np.testing.assert_allclose(run[name], theirs[name], rtol=1e-6, err_msg=name)
    whole = ours.evaluate(data)
    for name, value in ours.metrics(theirs).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-6, err_msg=name)


def test_cuda_on_the_host_computes_the_same(tmp_path):
    onnx_train.build(MLP, "cross_entropy", "sgd", metric=["f1", "auc(bins=64)", "top_k(k=2)"]).save(tmp_path / "train.onnx")
    data = {"x": RNG.normal(size=(9, 4)).astype(np.float32), "labels": RNG.integers(0, 3, 9)}
    path = tool.save(tmp_path / "data.npz", data)
    line = ["eval", tmp_path / "train.onnx", "--data", path, "--json"]
    cuda = json.loads(tool.run(*line, "--device", "cuda", command=tool.CUDA_ON_HOST))
    for name, value in json.loads(tool.run(*line)).items():
        np.testing.assert_allclose(np.array(cuda[name], float), np.array(value, float), rtol=1e-5, err_msg=name)


def test_functions_of_arrays_are_metrics_of_evaluate(tmp_path):
    model = onnx_train.Session(onnx_train.build(MLP, "cross_entropy", "sgd"))
    data = {"x": RNG.normal(size=(9, 4)).astype(np.float32), "labels": RNG.integers(0, 3, 9)}
    right = lambda outputs, given: float((outputs["logits"].argmax(1) == given["labels"]).mean())  # noqa: E731
    for given in (data, tool.save(tmp_path / "data.npz", data)):
        found = model.evaluate(given, metrics={"right": right})
        assert found.right == pytest.approx(found.accuracy)
    with pytest.raises(onnx_train.UsageError, match="part of the graph: a Python function has none"):
        onnx_train.build(MLP, metric=right)
    with pytest.raises(onnx_train.UsageError, match="'f1' is no function"):
        model.evaluate(data, metrics={"f1": "f1"})


# ---- The command


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that keeps the best F1, of a table whose classes have names."""
    folder = tmp_path_factory.mktemp("metrics")
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(60, 4))
    names = np.array(["ant", "bee", "cat <b>"])[rows[:, :3].argmax(1)]
    lines = ["a,b,c,d,labels"] + [",".join(f"{v:.4f}" for v in row) + "," + name for row, name in zip(rows, names)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    built = tool.run("build", MLP, "-o", folder / "train.onnx", "--metric", "f1", "--metric", "confusion_matrix",
                     "--metric", "top2=top_k(k=2)", "--metric", "perplexity", "--optimizer", "adamw(lr=0.02)")  # fmt: skip
    assert "f1(logits, labels, axis=1, ignore_index=-100)" in built
    output = tool.run("fit", folder / "train.onnx", "--data", folder / "data.csv", "--eval-data", folder / "data.csv",
                      "--epochs", 4, "--batch-size", 16, "--best", "f1", "--tensorboard", "--out", folder / "run")  # fmt: skip
    return folder, output


def test_a_run_follows_a_metric_and_keeps_what_it_says_of_classes(trained):
    folder, output = trained
    assert "eval f1 0." in output and "highest evaluation f1" in output and "eval top2" in output
    epochs = [json.loads(line) for line in (folder / "run/epochs.jsonl").read_text().splitlines()]
    assert [line["best"] for line in epochs] == [
        line["eval_f1"] > max([other["eval_f1"] for other in epochs[:i]], default=0) for i, line in enumerate(epochs)
    ]
    best = json.loads((folder / "run/evaluation.json").read_text())
    assert best["metrics"]["f1"] == max(line["eval_f1"] for line in epochs)
    assert best["classes"] == ["ant", "bee", "cat <b>"] and np.sum(best["tables"]["confusion_matrix"]) == 60
    page = (folder / "run/report.html").read_text()
    assert "Confusion matrix (the best evaluation" in page and "cat &lt;b&gt;" in page and "<th>bee</th>" in page
    assert b"eval/f1" in next((folder / "run/tensorboard").iterdir()).read_bytes()


def test_best_follows_the_direction_of_the_metric(trained):
    folder, _ = trained
    fit = ["fit", folder / "train.onnx", "--data", folder / "data.csv", "--eval-data", folder / "data.csv", "--epochs", 1]
    assert "lowest evaluation perplexity" in tool.run(*fit, "--best", "perplexity", "--out", folder / "low")
    error = tool.run(*fit, "--best", "f2", "--out", folder / "none", status=1)
    assert "the evaluation gives no 'f2'; it gives loss, accuracy, f1, top2, perplexity" in error


def test_eval_prints_and_gives_all_of_it(trained):
    folder, _ = trained
    line = ["eval", folder / "run/best.onnx", "--data", folder / "data.csv"]
    best = json.loads((folder / "run/evaluation.json").read_text())
    found = json.loads(tool.run(*line, "--json").splitlines()[0])
    assert found["f1"] == best["metrics"]["f1"] and found["confusion_matrix"] == best["tables"]["confusion_matrix"]
    assert len(found["f1_per_class"]) == 3
    text = tool.run(*line)
    assert re.search(r"label \\ predicted +ant +bee +cat <b>", text) and re.search(r"^class +f1$", text, re.MULTILINE)


def test_predict_writes_classes_by_name_and_probability(trained):
    folder, _ = trained
    tool.run("export", folder / "run/best.onnx", "-o", folder / "plain.onnx")
    x = np.loadtxt(folder / "data.csv", np.float32, delimiter=",", skiprows=1, usecols=range(4))
    inputs = tool.save(folder / "x.npz", {"x": x})
    for model in ("run/best.onnx", "plain.onnx"):
        tool.run("predict", folder / model, "--inputs", inputs, "-o", folder / "logits.npz")
        tool.run("predict", folder / model, "--inputs", inputs, "-o", folder / "c.npz", "--classes")
        output = tool.run("predict", folder / model, "--inputs", inputs, "-o", folder / "c.csv")
        assert "the model does not say" not in output
        p, found = softmax(tool.load(folder / "logits.npz")["logits"].astype(float)), tool.load(folder / "c.npz")
        assert set(found) == {"class", "probability"} and np.array_equal(found["class"], p.argmax(1))
        np.testing.assert_allclose(found["probability"], p.max(1), rtol=1e-5)
        lines = (folder / "c.csv").read_text().splitlines()
        assert lines[0] == "file,class,probability,index" and len(lines) == 61
        name, probability, index = lines[1].split(",")[1:]
        assert name == ["ant", "bee", "cat <b>"][int(index)] == ["ant", "bee", "cat <b>"][p[0].argmax()]
        assert float(probability) == pytest.approx(p[0].max(), rel=1e-5)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("loss", ["mse", "huber", "its own"])
def test_a_table_of_predicted_numbers_has_the_outputs(loss, columns, tmp_path):
    model = identity(columns)
    if loss == "its own":  # nothing says what the outputs are
        onnx.save(model, tmp_path / "model.onnx")
    else:
        onnx_train.build(model, loss, "sgd", train="w").export().save(tmp_path / "model.onnx")
    x = RNG.normal(size=(12, columns)).astype(np.float32) * 1e3
    line = ["predict", tmp_path / "model.onnx", "--inputs", tool.save(tmp_path / "x.npz", {"x": x}), "-o"]
    said = tool.run(*line, tmp_path / "y.csv")
    lines = [text.split(",") for text in (tmp_path / "y.csv").read_text().splitlines()]
    if loss == "its own" and columns == 3:
        assert "does not say which output holds scores" in said and lines[0] == ["file", "class", "probability", "index"]
        return
    tool.run(*line, tmp_path / "y.npz")
    ((name, y),) = tool.load(tmp_path / "y.npz").items()
    assert lines[0] == ["file", *([name] if columns == 1 else [f"{name}[{i}]" for i in range(3)])]
    assert np.array_equal(np.array([row[1:] for row in lines[1:]]).astype(np.float32), y.reshape(12, columns))
    assert lines[1][0] == "sample 0"
    tool.run(*line, tmp_path / "c.csv", "--classes")  # who asks for them gets a guess
    assert (tmp_path / "c.csv").read_text().startswith("file,class,probability,index")


@pytest.mark.parametrize("columns", [1, 3])
def test_predict_of_yes_and_no_takes_the_sigmoid(columns, tmp_path):
    onnx_train.build(identity(columns), "bce_with_logits", "sgd", train="w").export().save(tmp_path / "model.onnx")
    x = RNG.normal(size=(12, columns)).astype(np.float32)
    line = ["predict", tmp_path / "model.onnx", "--inputs", tool.save(tmp_path / "x.npz", {"x": x}), "-o"]
    tool.run(*line, tmp_path / "c.npz", "--classes")
    tool.run(*line, tmp_path / "c.csv")
    found, p = tool.load(tmp_path / "c.npz"), 1 / (1 + np.exp(-x.astype(float)))
    lines = (tmp_path / "c.csv").read_text().splitlines()
    if columns == 1:
        assert np.array_equal(found["class"], (p > 0.5)[:, 0])
        np.testing.assert_allclose(found["probability"], np.maximum(p, 1 - p)[:, 0], rtol=1e-5)
        assert lines[0] == "file,class,probability,index"
    else:
        assert np.array_equal(found["class"], p > 0.5)
        np.testing.assert_allclose(found["probability"], p, rtol=1e-5)
        np.testing.assert_allclose([float(v) for v in lines[1].split(",")[1:]], p[0], rtol=1e-5)
        assert lines[0] == "file,0,1,2"


def test_predict_says_what_it_guesses(tmp_path):
    x = tool.save(tmp_path / "x.npz", {"x": RNG.normal(size=(5, 4)).astype(np.float32)})
    output = tool.run("predict", MLP, "--inputs", x, "-o", tmp_path / "c.npz", "--classes")
    assert "taken is 'logits' [5,3], probabilities by softmax" in output


def test_a_forward_model_is_evaluated_as_the_training_model_that_it_comes_from(tmp_path):
    data = ["--data", tool.ROOT / "models" / "data" / "digits_test.npz", "--json", "--threads", 1]
    build = ["--loss", "cross_entropy", "--metric", "f1"]
    tool.run("build", DIGITS, *build, "-o", tmp_path / "train.onnx")
    tool.run("fit", tmp_path / "train.onnx", "--data", tool.ROOT / "models" / "data" / "digits_train.npz", "--epochs", 1,
             "--batch-size", 32, "--out", tmp_path / "run", "--threads", 1)  # fmt: skip
    trained = tmp_path / "run" / "last.onnx"
    expected = json.loads(tool.run("eval", trained, *data))
    for dtype, tolerance in (("float32", 1e-5), ("int8", 0.02)):
        tool.run("export", trained, "-o", tmp_path / "model.onnx", *(["--dtype", "int8"] if dtype == "int8" else []))
        found = json.loads(tool.run("eval", tmp_path / "model.onnx", *data, *build))
        assert set(found) == set(expected)
        assert found["loss"] == pytest.approx(expected["loss"], abs=tolerance)
        assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=tolerance)
    guessed = tool.run("eval", tmp_path / "model.onnx", *data[:2], "--limit", 10)
    assert "is a forward model: loss cross_entropy" in guessed and "samples  " in guessed
    message = tool.run("eval", trained, *data, "--loss", "mse", status=2)
    assert "which has its loss and metrics: leave out --loss and --metric" in message
