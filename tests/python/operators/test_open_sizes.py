"""Sizes that are open until a run: slices of open axes before an If and a Loop, outputs whose sizes depend on data, and
sizes that a rule takes from the data."""

import gc
import json
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from onnx import parser
from test_control_flow import compare, draw, model_of

import onnx_train

# ---- Slices of an open axis

ENDS = {  # up to which step
    "of_the_size": "n = Shape<start = 1, end = 2>(x) e = Div(n, two)",
    "from_the_end": "e = Neg(one)",
    "of_data": "m = ReduceMax<keepdims = 1>(lens) e = Reshape(m, one)",
}
LOOP = """
    ts = Shape<start = 1, end = 2>(z)
    count = Squeeze(ts)
    bs = Shape<start = 0, end = 1>(x)
    hs = Concat<axis = 0>(bs, four)
    h0 = ConstantOfShape(hs)
    f = Loop<body = body (int64 i, bool go, float[B, 4] h) => (bool on, float[B, 4] hn) {
        on = Identity(go)
        xi = Gather<axis = 1>(z, i)
        u = MatMul(xi, w)
        s = Add(h, u)
        hn = Tanh(s)
    }>(count, , h0)"""
IF = """
    f = If(c) <then_branch = a () => (float[B, 4] p) { m1 = ReduceMean<keepdims = 0>(z, one) p = MatMul(m1, w) },
               else_branch = b () => (float[B, 4] q) { m2 = ReduceSum<keepdims = 0>(z, one) q = MatMul(m2, w) }>"""
KEEP = """
    z = If(c) <then_branch = a () => (float[B, S, 3] p) { p = Mul(xs, xs) },
               else_branch = b () => (float[B, S, 3] q) { q = Identity(xs) }>"""
CONDITIONS = {
    "data": "sum = ReduceSum<keepdims = 0>(x) c = Greater(sum, nothing)",
    "size": "k = Shape<start = 1, end = 2>(xs) g = Greater(k, two) c = Squeeze(g)",
}


def sliced(end, before, after):
    lens = ", int64[B] lens" if end == "of_data" else ""
    text = f"""sliced (float[B, T, 3] x{lens}) => (float[B, 2] y) {{
        {ENDS[end]}
        xs = Slice(x, zero, e, one)
        {before}
        {after}
        y = MatMul(f, v)
    }}"""
    weights = draw({"w": (3, 4), "v": (4, 2)})
    return model_of(text, weights, {"four": [4], "nothing": np.float32(0)}), weights


def slice_data(end):
    data = {"x": np.random.default_rng(3).normal(size=(4, 6, 3)).astype("f")}
    data["y_target"] = np.random.default_rng(4).normal(size=(4, 2)).astype("f")
    return data | ({"lens": np.array([2, 4, 3, 1])} if end == "of_data" else {})


def length_of(end, d):
    return {"of_the_size": d["x"].shape[1] // 2, "from_the_end": d["x"].shape[1] - 1}.get(end) or int(d["lens"].max())


def steps(z, w):
    h = torch.zeros(z.shape[0], 4, dtype=z.dtype)
    for i in range(z.shape[1]):
        h = torch.tanh(h + z[:, i] @ w["w"])
    return h


def trains(model, data, program, weights, folder):
    """The gradients, a prediction, and a training by files in batches are those of the program."""
    compare(model, data, weights, lambda w, d: ((program(w, d) - d["y_target"]) ** 2).mean(), folder, "mse(y, y_target)")
    path = folder / "model.onnx"
    feed = {name: value for name, value in data.items() if name != "y_target"}
    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(["y"], feed)[0]
    np.testing.assert_allclose(onnx_train.Session(str(path), threads=1).predict(feed).y, expected, rtol=1e-4, atol=1e-5)
    assert onnx_train.check(str(path), loss="mse(y, y_target)")
    training = onnx_train.build(str(path), "mse(y, y_target)", "sgd", train=list(weights))
    history = onnx_train.fit(training, data, epochs=2, batch_size=2, lr=0.1, shuffle=False, progress=False)
    w = {name: torch.tensor(value).double().requires_grad_() for name, value in weights.items()}
    optimizer, losses = torch.optim.SGD(w.values(), lr=0.1), []
    for begin in (0, 2) * 2:
        d = {name: torch.tensor(value[begin : begin + 2]) for name, value in data.items()}
        d = {name: value.double() if value.is_floating_point() else value for name, value in d.items()}
        loss = ((program(w, d) - d["y_target"]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(history.losses, losses, rtol=1e-4)


@pytest.mark.parametrize("end", ENDS)
def test_a_slice_of_an_open_axis_before_a_loop(end, tmp_path):
    model, weights = sliced(end, "z = Identity(xs)", LOOP)

    def program(w, d):
        return steps(d["x"][:, : length_of(end, d)], w) @ w["v"]

    trains(model, slice_data(end), program, weights, tmp_path)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_slice_of_an_open_axis_before_an_if(end, condition, tmp_path):
    model, weights = sliced(end, f"{CONDITIONS[condition]} z = Identity(xs)", IF)

    def program(w, d):
        z = d["x"][:, : length_of(end, d)]
        holds = d["x"].float().sum() > 0 if condition == "data" else z.shape[1] > 2
        return (z.mean(1) if holds else z.sum(1)) @ w["w"] @ w["v"]

    trains(model, slice_data(end), program, weights, tmp_path)


@pytest.mark.parametrize("end", ENDS)
def test_a_slice_of_an_open_axis_before_an_if_before_a_loop(end, tmp_path):
    model, weights = sliced(end, CONDITIONS["data"] + KEEP, LOOP)

    def program(w, d):
        z = d["x"][:, : length_of(end, d)]
        return steps(z * z if d["x"].float().sum() > 0 else z, w) @ w["v"]

    trains(model, slice_data(end), program, weights, tmp_path)


# ---- Outputs whose sizes depend on data

DETECTOR = """detector (float[N, 6, 5] features) => (float[N, 6] scores, float[P] picked_scores, int64[P, 3] picked) {
    s = MatMul(features, w)
    flat = Squeeze(s, two)
    scores = Sigmoid(flat)
    corner = Slice(features, zero, two, two)
    far = Add(corner, size)
    boxes = Concat<axis = 2>(corner, far)
    classes = Unsqueeze(scores, one)
    picked = NonMaxSuppression(boxes, classes, most, overlap, least)
    places = Gather<axis = 1>(picked, rest)
    picked_scores = GatherND(scores, places)
}"""


def test_a_detector_with_its_suppression_of_boxes_trains_and_predicts(tmp_path):
    weights = draw({"w": (5, 1)})
    model = model_of(DETECTOR, weights, {"size": np.float32(1), "most": [4], "overlap": np.array([0.3], "f"),
                                         "least": np.array([0.5], "f"), "rest": [0, 2]})  # fmt: skip
    onnx.save(model, tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    features, target = rng.normal(size=(8, 6, 5)).astype("f"), rng.uniform(size=(8, 6)).astype("f")
    report = onnx_train.check(model, loss="mse(scores, target)")
    assert report, report.failure
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "t.onnx", "--loss", "mse(scores, target)", "--train", "w")
    data = {"features": features, "target": target}
    history = onnx_train.fit(onnx_train.load(str(tmp_path / "t.onnx")), data, epochs=1, batch_size=4, lr=0.1,
                             shuffle=False, progress=False)  # fmt: skip
    assert len(history.losses) == 2
    history.session.export(str(tmp_path / "e.onnx"))
    runtime = onnxruntime.InferenceSession(str(tmp_path / "e.onnx"), providers=["CPUExecutionProvider"])
    for rows in (slice(0, 8), slice(2, 5), slice(0, 1)):
        expected = dict(zip([o.name for o in runtime.get_outputs()], runtime.run(None, {"features": features[rows]})))
        found = history.session.predict({"features": features[rows]})
        np.testing.assert_array_equal(found.picked, expected["picked"])
        np.testing.assert_allclose(found.picked_scores, expected["picked_scores"], rtol=1e-5)
        np.testing.assert_allclose(found.scores, expected["scores"], rtol=1e-5)
    inputs = tool.save(tmp_path / "d.npz", {"features": features})
    tool.run("predict", tmp_path / "e.onnx", "--inputs", inputs, "-o", tmp_path / "p.npz")
    assert tool.load(tmp_path / "p.npz")["picked"].shape[1] == 3
    error = tool.run("predict", tmp_path / "e.onnx", "--inputs", inputs, "-o", tmp_path / "q.npz", "--batch-size", 3, status=1)
    assert "depends on data" in error and "--batch-size 8" in error and not (tmp_path / "q.npz").exists()


# ---- Sizes of the data

SPEECH = """speech (float[N, 1, SAMPLES] x) => (float[N] y, int64[F] speaking) {
    a = Conv<auto_pad = "SAME_UPPER", strides = [4]>(x, k, b)
    h = Tanh(a)
    m = ReduceMean<keepdims = 0>(h, two)
    p = MatMul(m, v)
    y = Squeeze(p, one)
    yes = Greater(y, nothing)
    i = NonZero(yes)
    speaking = Squeeze(i, zero)
}"""


def speech(folder):
    weights = draw({"k": (3, 1, 8), "b": (3,), "v": (3, 1)})
    path = folder / "speech.onnx"
    onnx.save(model_of(SPEECH, weights, {"nothing": np.float32(0)}, opset=18), path)
    rng = np.random.default_rng(0)
    return path, weights, {"x": rng.normal(size=(6, 1, 510)).astype("f"), "target": rng.normal(size=6).astype("f")}


def speech_loss(w, x, target):
    samples, stride, width = x.shape[2], 4, 8
    total = max((-(-samples // stride) - 1) * stride + width - samples, 0)
    padded = torch.nn.functional.pad(x, (total // 2, total - total // 2))
    h = torch.tanh(torch.nn.functional.conv1d(padded, w["k"], w["b"], stride)).mean(2)
    y = (h @ w["v"])[:, 0]
    return y if target is None else ((y - target) ** 2).mean()


def reference(weights, data):
    w = {name: torch.tensor(value).double().requires_grad_() for name, value in weights.items()}
    loss = speech_loss(w, *(torch.tensor(data[name]).double() for name in ("x", "target")))
    loss.backward()
    return loss.item(), {name: value.grad.numpy() for name, value in w.items()}


def test_gradients_take_the_sizes_that_a_rule_needs_from_the_data(tmp_path):
    path, weights, data = speech(tmp_path)
    value, expected = reference(weights, data)
    said = tool.run("grad", path, "--inputs", tool.save(tmp_path / "d.npz", data), "--loss", "mse(y, target)", "--dtype", "float64",
                    "-o", tmp_path / "g.npz")  # fmt: skip
    assert "SAMPLES=510" in said and "sizes that are not known" in said and "--dim" in said
    found = tool.load(tmp_path / "g.npz")
    assert found["loss"] == pytest.approx(value, rel=1e-12)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[f"grad/{name}"], gradient, rtol=1e-10, atol=1e-14)
    tool.run("grad", path, "--inputs", tmp_path / "d.npz", "--loss", "mse(y, target)", "--dtype", "float64", "--per-sample",
             "-o", tmp_path / "s.npz")  # fmt: skip
    for name, gradient in expected.items():
        np.testing.assert_allclose(tool.load(tmp_path / "s.npz")[f"grad/{name}"].mean(0), gradient, rtol=1e-10, atol=1e-14)
    f = onnx_train.value_and_grad(str(path), "mse(y, target)", dtype="float64", threads=1)
    for samples in (510, 400, 510):
        part = {"x": data["x"][:, :, :samples], "target": data["target"]}
        value, expected = reference(weights, part)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss, gradients = f({name: array.astype("d") for name, array in part.items()})
        assert not caught or f"SAMPLES={samples}" in str(caught[-1].message)
        assert loss == pytest.approx(value, rel=1e-10)
        for name, gradient in expected.items():
            np.testing.assert_allclose(gradients[name], gradient, rtol=1e-10, atol=1e-14)
    with pytest.warns(UserWarning, match="SAMPLES=510"):
        assert onnx_train.verify(str(path), "mse(y, target)", data, threads=1)


def test_other_derivatives_and_modes_take_them_too(tmp_path):
    path, weights, data = speech(tmp_path)
    w = {name: torch.tensor(value).double().requires_grad_() for name, value in weights.items()}
    x, target = (torch.tensor(data[name]).double() for name in ("x", "target"))
    names = list(w)

    def outputs(*values):
        return speech_loss(dict(zip(names, values)), x, None)

    def loss(*values):
        return ((outputs(*values) - target) ** 2).mean()

    rng = np.random.default_rng(1)
    directions = {name: rng.normal(size=value.shape) for name, value in weights.items()}
    v = tuple(torch.tensor(direction) for direction in directions.values())
    u = rng.normal(size=6)
    values = tuple(value.detach() for value in w.values())
    inputs = {"x": data["x"].astype("d")}
    batch = inputs | {"target": data["target"].astype("d")}
    options = dict(dtype="float64", threads=1)

    def agree(found, expected):
        for name, value in zip(names, expected):
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-13)

    with pytest.warns(UserWarning, match="SAMPLES=510"):
        found, products = onnx_train.vjp(str(path), **options)(inputs, {"y": u})
    np.testing.assert_allclose(found["y"], outputs(*values), rtol=1e-9)
    agree(products, torch.autograd.functional.vjp(outputs, values, torch.tensor(u))[1])
    with pytest.warns(UserWarning, match="SAMPLES=510"):
        found = onnx_train.hvp(str(path), "mse(y, target)", **options)(batch, directions)
    agree(found, torch.autograd.functional.hvp(loss, values, v)[1])
    with pytest.warns(UserWarning, match="SAMPLES=510"):
        _, found = onnx_train.jvp(str(path), **options)(inputs, directions)
    np.testing.assert_allclose(found["y"], torch.autograd.functional.jvp(outputs, values, v)[1], rtol=1e-9)
    with pytest.warns(UserWarning, match="SAMPLES=510"):
        found = onnx_train.jacobian(str(path), **options)(inputs)["y"]
    agree(found, torch.autograd.functional.jacobian(outputs, values))
    loss_model = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]> l (float[N] y, float[N] target) => (float l)
        { d = Sub(y, target) s = Mul(d, d) l = ReduceMean<keepdims = 0>(s) }""")
    gradients = torch.autograd.grad(loss(*w.values()), tuple(w.values()))
    for of in ("mse(y, target)", loss_model):
        f = onnx_train.grad(str(path), of, mode="train", **options)
        with pytest.warns(UserWarning, match="SAMPLES=510"):
            agree(f(batch), gradients)
    with pytest.warns(UserWarning, match="SAMPLES=510"):
        losses, rows = onnx_train.per_sample_grad(str(path), "mse(y, target)", **options)(batch)
    assert losses.mean() == pytest.approx(loss(*values).item(), rel=1e-9)
    agree({name: row.mean(0) for name, row in rows.items()}, gradients)


def test_models_for_sizes_are_kept_up_to_a_number(tmp_path, monkeypatch):
    path, weights, data = speech(tmp_path)
    monkeypatch.setattr(onnx_train._sizes, "_KEPT", 2)
    f = onnx_train.value_and_grad(str(path), "mse(y, target)", threads=1)
    for samples in (510, 509, 508, 507, 510):
        with pytest.warns(UserWarning, match=f"SAMPLES={samples}"):
            f({"x": data["x"][:, :, :samples], "target": data["target"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the sizes of one before are still there, whatever the number of samples
        f({"x": data["x"][:4, :, :507], "target": data["target"][:4]})
    gc.collect()
    assert sum(type(thing) is onnx_train._grad.Objective for thing in gc.get_objects()) <= 2


@pytest.mark.parametrize("sizes, is_open", [("2, 2", False), ("N, 2", False), ("N, LENGTH", True)])
@pytest.mark.parametrize("derivative", ["value_and_grad", "vjp", "jvp", "hvp", "jacobian", "per_sample_grad"])
def test_what_no_size_helps_is_said_at_once_or_of_the_first_batch(derivative, sizes, is_open):
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
        m (float[{sizes}] x) => (float[N, 2] y) <float w = {{1}}, int8[2, 2] q = {{1, 2, 3, 4}}, float s = {{0.5}}>
        {{ z = Mul(x, w) y = com.microsoft.DynamicQuantizeMatMul(z, q, s) }}""")
    x, of_loss = np.ones((2, 2), "f"), derivative in ("value_and_grad", "hvp", "per_sample_grad")
    vectors = {"vjp": [{"y": x}], "jvp": [{"w": 1.0}], "hvp": [{"w": 1.0}]}.get(derivative, [])
    with pytest.raises(onnx_train.UnsupportedError, match="DynamicQuantizeMatMul"):
        f = getattr(onnx_train, derivative)(model, *["mse(y, target)"] * of_loss)
        assert is_open
        f({"x": x, **({"target": x} if of_loss else {})}, *vectors)


def test_trainings_and_evaluations_take_them_likewise(tmp_path):
    path, weights, data = speech(tmp_path)
    value, expected = reference(weights, data)
    file = tool.save(tmp_path / "d.npz", data)
    said = tool.run("fit", path, "--data", file, "--loss", "mse(y, target)", "--optimizer", "sgd", "--epochs", 1, "--batch-size", 4,
                    "--lr", 0.1, "--out", tmp_path / "run")  # fmt: skip
    assert "SAMPLES=510" in said
    assert len(open(tmp_path / "run" / "metrics.jsonl").readlines()) >= 2  # the last batch is a short one
    said = tool.run("eval", path, "--data", file, "--loss", "mse(y, target)", "--json")
    assert json.loads(said.splitlines()[0])["loss"] == pytest.approx(value, rel=1e-5)
    with pytest.warns(UserWarning, match="SAMPLES=510"):
        history = onnx_train.fit(str(path), data, loss="mse(y, target)", optimizer="sgd", epochs=1, batch_size=6, lr=0.1,
                                 progress=False)  # fmt: skip
    assert history.losses[0] == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(history.session.state["v"], weights["v"] - 0.1 * expected["v"], rtol=1e-4, atol=1e-6)
    found = history.session.predict(data["x"])
    np.testing.assert_array_equal(found.speaking, np.flatnonzero(found.y > 0))
