"""Samples along another axis than the first: [steps, batch, features] trains as its twin of [batch, steps, features]."""

import json

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import numpy_helper, parser

import onnx_train

STEPS, SAMPLES = 7, 12
TEXT = """<ir_version: 10, opset_import: ["" : 21]>
recurrent (float[X] x) => (float[N, 2] y, float[YS] ys) {
    TIME
    h, last = RNN<hidden_size = 4>(t, w, r)
    rows = Squeeze(h, one)
    ends = Squeeze(last, zero)
    y = MatMul(ends, v)
    BACK
}"""


def model_of(time_major, steps="T"):
    text = TEXT.replace("[X]", f"[{steps}, N, 3]" if time_major else f"[N, {steps}, 3]")
    text = text.replace("[YS]", f"[{steps}, N, 4]" if time_major else f"[N, {steps}, 4]")
    moved = "Identity" if time_major else "Transpose<perm = [1, 0, 2]>"
    model = parser.parse_model(text.replace("TIME", f"t = {moved}(x)").replace("BACK", f"ys = {moved}(rows)"))
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype("f") for name, shape in {"w": (1, 4, 3), "r": (1, 4, 4), "v": (4, 2)}.items()}
    arrays |= {"zero": np.array([0]), "one": np.array([1])}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def data_of(time_major, samples=SAMPLES, seed=1):
    rng = np.random.default_rng(seed)
    x, labels = rng.normal(size=(samples, STEPS, 3)).astype("f"), rng.integers(0, 2, samples)
    return {"x": np.ascontiguousarray(x.transpose(1, 0, 2)) if time_major else x, "labels": labels}


@pytest.mark.parametrize("steps", ["T", STEPS])
@pytest.mark.parametrize("accumulate", [None, 2])
def test_arrays_are_cut_along_the_axis_of_the_batch(steps, accumulate):
    """Shuffled, with a short last batch, an evaluation of a part, and batches that are accumulated."""
    found = {}
    for time_major in (True, False):
        training = onnx_train.build(model_of(time_major, steps), "cross_entropy(y, labels)", "sgd",
                                    accumulate=bool(accumulate))  # fmt: skip
        history = onnx_train.fit(training, data_of(time_major), epochs=3, batch_size=4, accumulate=accumulate, lr=0.1, seed=3,
                                 val_split=0.2, progress=False)  # fmt: skip
        evaluation = history.session.evaluate(data_of(time_major, 5, seed=2))
        found[time_major] = [*history.losses, *(e.loss for e in history.evaluations), evaluation.loss]
    np.testing.assert_allclose(found[True], found[False], rtol=1e-5)


def test_files_are_cut_along_the_axis_of_the_batch(tmp_path):
    results = {}
    for time_major in (True, False):
        folder = tmp_path / str(time_major)
        folder.mkdir()
        onnx.save(model_of(time_major), folder / "model.onnx")
        data = tool.save(folder / "data.npz", data_of(time_major))
        tool.run("build", folder / "model.onnx", "-o", folder / "t.onnx", "--loss", "cross_entropy(y, labels)")
        text = tool.run("fit", folder / "t.onnx", "--data", data, "--epochs", 2, "--batch-size", 5, "--out", folder / "run")
        assert ("samples of 'x' are along its axis 1" in text) == time_major
        losses = [json.loads(line)["loss"] for line in open(folder / "run" / "metrics.jsonl")]
        printed = tool.run("eval", folder / "run" / "last.onnx", "--data", data, "--batch-size", 5, "--json")
        value = json.loads(printed.splitlines()[0])["loss"]
        tool.run("predict", folder / "run" / "last.onnx", "--inputs", data, "-o", folder / "p.npz", "--batch-size", 5)
        results[time_major] = losses, value, tool.load(folder / "p.npz")
    (ours, value, outputs), (losses, other, expected) = results[True], results[False]
    np.testing.assert_allclose(ours, losses, rtol=1e-5)
    assert value == pytest.approx(other, rel=1e-5)
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(outputs["ys"], expected["ys"].transpose(1, 0, 2), rtol=1e-4, atol=1e-6)


def test_a_forward_model_is_cut_along_the_batch_of_its_recurrent_layer(tmp_path):
    onnx.save(model_of(True), tmp_path / "model.onnx")
    data = data_of(True)
    tool.run("predict", tmp_path / "model.onnx", "--inputs", tool.save(tmp_path / "d.npz", {"x": data["x"]}),
             "-o", tmp_path / "p.npz", "--batch-size", 5)  # fmt: skip
    whole = onnx_train.Session(model_of(True), threads=1).predict(data["x"])
    found = tool.load(tmp_path / "p.npz")
    np.testing.assert_allclose(found["ys"], whole.ys, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["y"], whole.y, rtol=1e-5, atol=1e-6)


def test_gradients_of_each_sample_are_cut_likewise():
    data = data_of(True, 3)
    losses, gradients = onnx_train.per_sample_grad(model_of(True), "cross_entropy(y, labels)", dtype="float64", threads=1)(
        {"x": data["x"].astype("d"), "labels": data["labels"]}
    )
    f = onnx_train.value_and_grad(model_of(True), "cross_entropy(y, labels)", dtype="float64", threads=1)
    for i in range(3):
        loss, expected = f({"x": data["x"][:, i : i + 1].astype("d"), "labels": data["labels"][i : i + 1]})
        assert losses[i] == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(gradients["x"][i], expected["x"][:, 0], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(gradients["w"][i], expected["w"], rtol=1e-10, atol=1e-14)


def test_a_time_major_recognizer_trains_with_ctc_as_in_pytorch(tmp_path):
    torch.manual_seed(0)

    class Recognizer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = torch.nn.LSTM(3, 5, bidirectional=True), torch.nn.Linear(10, 4)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    net, rng = Recognizer(), np.random.default_rng(0)
    x, labels, lengths = data_of(True, 10)["x"], rng.integers(1, 4, (10, 3)), rng.integers(1, 4, 10)
    given = np.full(10, STEPS)
    torch.onnx.export(net, (torch.tensor(x),), str(tmp_path / "m.onnx"), input_names=["x"], output_names=["y"], dynamo=False,
                      opset_version=17, dynamic_axes={"x": {1: "n"}, "y": {1: "n"}})  # fmt: skip
    training = onnx_train.build(str(tmp_path / "m.onnx"), "ctc(y, labels, input_lengths, target_lengths)", "sgd")
    data = {"x": x, "labels": labels, "input_lengths": given, "target_lengths": lengths}
    history = onnx_train.fit(training, data, epochs=2, batch_size=4, lr=0.1, shuffle=False, progress=False)
    net = net.double()
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
    for begin in (0, 4, 8) * 2:
        s = slice(begin, begin + 4)
        y = net(torch.tensor(x[:, s]).double()).log_softmax(2)
        loss = torch.nn.functional.ctc_loss(y, *(torch.tensor(a[s]) for a in (labels, given, lengths)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(history.losses, losses, rtol=1e-4)
