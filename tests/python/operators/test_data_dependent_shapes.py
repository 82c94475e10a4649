"""Shapes that depend on data: gradients are those of the same program in PyTorch, and ONNX Runtime computes the same."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from test_control_flow import compare, draw, model_of

# The mean of squares over the rows that a mask selects, as losses of detectors are.
SELECTIONS = {
    "non_zero": """
        c = Greater(t, nothing)
        i = NonZero(c)
        j = Transpose(i)
        a = GatherND(y, j)
        b = GatherND(t, j)""",
    "compress": """
        c = Greater(t, nothing)
        a = Compress<axis = 0>(y, c)
        b = Compress(t, c)""",
    "gather": """
        c = Greater(t, nothing)
        i = NonZero(c)
        j = Squeeze(i, zero)
        a = Gather(y, j)
        b = Gather(t, j)""",
}
SELECTED = """
selected (float[N, 4] x, float[N] t) => (float loss) {
    h = MatMul(x, w)
    y = Squeeze(h, one)
    SELECTION
    d = Sub(a, b)
    e = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(e)
}"""


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_loss_over_what_a_mask_selects(selection, tmp_path):
    weights = draw({"w": (4, 1)})
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(6, 4)).astype("f"), "t": rng.normal(size=(6,)).astype("f")}

    def program(w, d):
        mask = d["t"] > 0
        return (((d["x"] @ w["w"])[:, 0][mask] - d["t"][mask]) ** 2).mean()

    model = model_of(SELECTED.replace("SELECTION", SELECTIONS[selection]), weights, {"nothing": np.float32(0)})
    compare(model, data, weights, program, tmp_path, "loss")


ARGUMENTS = """
arguments (float[N, 4] x, int64[1] k, int64 n) => (float loss) {
    h = MatMul(x, w)
    s = Slice(h, zero, k, zero)
    p = Tanh(s)
    v, i = TopK<axis = 0>(p, k)
    wide = Concat<axis = 0>(k, three)
    r = Reshape(v, wide)
    steps = Range(first, n, second)
    scale = Cast<to = 1>(steps)
    column = Unsqueeze(scale, one)
    m = ReduceMean<keepdims = 1>(r, zero)
    u = Mul(column, m)
    n1 = Unsqueeze(n, zero)
    tall = Concat<axis = 0>(n1, three)
    e = Expand(g, tall)
    q = Mul(u, e)
    z = Mul(q, q)
    a = ReduceMean<keepdims = 0>(z)
    rr = Mul(r, r)
    b = ReduceMean<keepdims = 0>(rr)
    loss = Add(a, b)
}"""


@pytest.mark.parametrize("k, n", [(4, 5), (1, 2), (6, 1)])
def test_computed_arguments(k, n, tmp_path):
    weights = draw({"w": (4, 3), "g": (3,)})
    data = {"x": np.random.default_rng(1).normal(size=(6, 4)).astype("f"), "k": np.array([k]), "n": np.array(n)}

    def program(w, d):
        r = torch.tanh((d["x"] @ w["w"])[:k]).sort(0, descending=True).values
        q = torch.arange(n).double()[:, None] * r.mean(0, keepdim=True) * w["g"].expand(n, 3)
        return (q**2).mean() + (r**2).mean()

    constants = {"first": np.int64(0), "second": np.int64(1)}
    compare(model_of(ARGUMENTS, weights, constants), data, weights, program, tmp_path, "loss")


DISTINCT = """
distinct (int64[N] ids, float[N] x) => (float loss) {
    u, first, inverse, counts = Unique<sorted = SORTED>(ids)
    e = Gather(table, u)
    f = Gather(e, inverse)
    g = Squeeze(f, one)
    d = Mul(g, x)
    c = Cast<to = 1>(counts)
    column = Squeeze(e, one)
    h = Mul(column, c)
    hh = Mul(h, column)
    a = ReduceMean<keepdims = 0>(hh)
    b = ReduceMean<keepdims = 0>(d)
    loss = Add(a, b)
}"""


@pytest.mark.parametrize("in_order", [0, 1])
def test_distinct_rows_of_a_table(in_order, tmp_path):
    weights = draw({"table": (7, 1)})
    data = {"ids": np.array([3, 1, 3, 6, 1, 3]), "x": np.random.default_rng(1).normal(size=6).astype("f")}

    def program(w, d):
        ids = torch.tensor([3, 1, 3, 6, 1, 3])
        u, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
        e = w["table"][u][:, 0]
        return (e * counts * e).mean() + (e[inverse] * d["x"]).mean()

    compare(model_of(DISTINCT.replace("SORTED", str(in_order)), weights), data, weights, program, tmp_path, "loss")


# Each step of a loop reads as much as the data say, of a size of its own.
BAGS = """
bags (float[N] x, int64[K] ends) => (float[K, 3] y) {
    shape = Shape(ends)
    k = Squeeze(shape)
    y = Loop<body = body (int64 i, bool go) => (bool on, float[3] yt) {
        on = Identity(go)
        e = Gather<axis = 0>(ends, i)
        e1 = Reshape(e, one)
        s = Slice(x, zero, e1)
        s2 = Unsqueeze(s, one)
        p = Mul(s2, g)
        t = Tanh(p)
        yt = ReduceMean<keepdims = 0>(t, zero)
    }>(k, always)
}"""


@pytest.mark.parametrize("count", [4, 400])
def test_steps_with_shapes_of_their_own(count, tmp_path):
    weights = draw({"g": (3,)})
    rng = np.random.default_rng(1)
    ends = [2, 5, 1, 2] * (count // 4)
    data = {"x": rng.normal(size=6).astype("f"), "ends": np.array(ends), "y_target": rng.normal(size=(count, 3)).astype("f")}

    def program(w, d):
        y = torch.stack([torch.tanh(d["x"][:e][:, None] * w["g"]).mean(0) for e in ends])
        return ((y - d["y_target"]) ** 2).mean()

    compare(model_of(BAGS, weights), data, weights, program, tmp_path)


def test_a_training_run_plans_for_the_sizes_of_each_batch(tmp_path):
    weights = draw({"w": (4, 1)})
    path, train, step = tmp_path / "model.onnx", tmp_path / "train.onnx", tmp_path / "step.onnx"
    onnx.save(model_of(SELECTED.replace("SELECTION", SELECTIONS["compress"]), weights, {"nothing": np.float32(0)}), path)
    tool.run("build", path, "-o", train, "--loss", "loss", "--optimizer", "sgd")
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(40, 4)).astype("f"), "t": rng.normal(size=(40,)).astype("f")}
    tool.run("fit", train, "--data", tool.save(tmp_path / "data.npz", data), "--steps", 5, "--lr", 0.1, "--no-shuffle",
             "--batch-size", 8, "--out", tmp_path / "run")  # fmt: skip
    tool.run("flatten", train, "--entry", "step", "-o", step)
    session = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    states, losses = weights | {"state/step": np.zeros((), np.int64)}, []
    names = [o.name for o in session.get_outputs()]
    loss = next(name for name in names if name.startswith("loss") and name != "loss_count")
    for batch in range(5):
        feeds = {name: value[8 * batch : 8 * batch + 8] for name, value in data.items()}
        found = dict(zip(names, session.run(None, {**feeds, **states, "learning_rate": np.array(0.1, np.float32)})))
        states = {name: found[f"next/{name}"] for name in states}
        losses.append(found[loss])
    np.testing.assert_allclose([line["loss"] for line in tool.metrics(tmp_path / "run")], losses, rtol=1e-5)
    assert "the plan is cut" in tool.run("show", train, "--plan", "--batch", 8)


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(11, 3, mode="mean")

    def forward(self, ids, offsets):
        return self.bag(ids, offsets)


def test_pytorch_bags_of_embeddings(tmp_path):
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    bags, path = Bags(), tmp_path / "bags.onnx"
    ids, offsets = torch.tensor([1, 5, 2, 2, 10, 0, 3]), torch.tensor([0, 2, 3, 6])
    names = {"input_names": ["ids", "offsets"], "output_names": ["y"]}
    torch.onnx.export(bags, (ids, offsets), path, dynamo=False, **names)
    target = torch.randn(4, 3)
    ((bags(ids, offsets) - target) ** 2).mean().backward()
    result = tmp_path / "gradients.npz"
    data = {"ids": ids.numpy(), "offsets": offsets.numpy(), "y_target": target.numpy()}
    tool.run("grad", path, "--inputs", tool.save(tmp_path / "data.npz", data), "-o", result, "--loss", "mse(y, y_target)")
    found = [value for name, value in tool.load(result).items() if name.startswith("grad/")]
    assert len(found) == 1
    np.testing.assert_allclose(found[0], bags.bag.weight.grad.numpy(), rtol=1e-5, atol=1e-7)
