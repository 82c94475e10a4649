"""Control flow: gradients are those of the same program in PyTorch, and ONNX Runtime computes the same steps."""

import json
import time

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from onnx import numpy_helper, parser
from test_dropout import keeps

import onnx_train
import onnx_train.torch

# A network with one layer, as a Scan, as a Loop with a fixed number of steps, with one that follows from the input's size.
BODY = """
    a = MatMul(xt, wx)
    c = MatMul(s, wh)
    d = Add(a, c)
    e = Add(d, b)
    sn = Tanh(e)
    yt = Mul(sn, g)
"""
STATE = """
    shape = Shape(x)
    n = Slice(shape, one, two)
    hs = Concat<axis = 0>(n, three)
    h = Expand(h0, hs)
"""
SCAN = f"""
scan (float[T, N, 4] x) => (float[T, N, 3] y, float[N, 3] last) {{
    {STATE}
    last, y = Scan<num_scan_inputs = 1, body = body (float[N, 3] s, float[N, 4] xt) => (float[N, 3] sn, float[N, 3] yt) {{
    {BODY}
    }}>(h, x)
}}"""
BACKWARDS = f"""
backwards (float[N, T, 4] x) => (float[N, T, 3] y, float[N, 3] last) {{
    shape = Shape(x)
    n = Slice(shape, zero, one)
    hs = Concat<axis = 0>(n, three)
    h = Expand(h0, hs)
    last, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [1],
                   scan_output_directions = [1],
                   body = body (float[N, 3] s, float[N, 4] xt) => (float[N, 3] sn, float[N, 3] yt) {{
    {BODY}
    }}>(h, x)
}}"""
LOOP = f"""
loop (float[T, N, 4] x) => (float[T, N, 3] y, float[N, 3] last) {{
    {STATE}
    t = Slice(shape, zero, one)
    steps = Squeeze(t)
    last, y = Loop<body = body (int64 i, bool go, float[N, 3] s) => (bool on, float[N, 3] sn, float[N, 3] yt) {{
    on = Identity(go)
    xt = Gather<axis = 0>(x, i)
    {BODY}
    }}>(steps, always, h)
}}"""
WEIGHTS = {"wx": (4, 3), "wh": (3, 3), "b": (3,), "g": (3,), "h0": (1, 3)}


def model_of(text, weights, constants=None, opset=21):
    """The model of a text, with these weights, and constants that are not trained."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>{text}')
    fixed = {"zero": [0], "one": [1], "two": [2], "three": [3], "always": np.array(True)} | (constants or {})
    used = {name for node in model.graph.node for name in [*node.input, *inner_names(node)]}
    for name, value in {**weights, **fixed}.items():
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.checker.check_model(model, full_check=True)
    return model


def inner_names(node):
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from inner.input
            yield from inner_names(inner)
        yield from (output.name for output in attribute.g.output)


def draw(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: (0.5 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def gradients(model, data, weights, folder, loss):
    """The command's gradients, in float64, of weights and inputs."""
    path, result = folder / "model.onnx", folder / "gradients.npz"
    onnx.save(model, path)
    tool.run("grad", path, "--inputs", tool.save(folder / "data.npz", data), "-o", result, "--dtype", "float64",
             "--loss", loss, "--train", ",".join(weights))  # fmt: skip
    return tool.load(result)


def compare(model, data, weights, program, folder, loss="mse(y, y_target)"):
    """`program(weights, data)` is the loss in PyTorch."""
    found = gradients(model, data, weights, folder, loss)
    tensors = {name: torch.from_numpy(value).double().requires_grad_() for name, value in weights.items()}
    inputs = {k: torch.from_numpy(v).double().requires_grad_(k == "x") for k, v in data.items()}
    value = program(tensors, inputs)
    value.backward()
    assert found["loss"] == pytest.approx(value.item(), rel=1e-12)
    for name, tensor in tensors.items():
        expected = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
        np.testing.assert_allclose(found[f"grad/{name}"], expected, rtol=1e-10, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(found["grad_input/x"], inputs["x"].grad.numpy(), rtol=1e-10, atol=1e-12)


def network(w, xs):
    """The states and outputs of the steps."""
    h, ys = w["h0"].expand(xs[0].shape[0], 3), []
    for x in xs:
        h = torch.tanh(x @ w["wx"] + h @ w["wh"] + w["b"])
        ys.append(h * w["g"])
    return h, ys


@pytest.mark.parametrize("steps", [1, 5, 300])  # 300 are not unrolled on the CPU
@pytest.mark.parametrize("text", [SCAN, LOOP, BACKWARDS], ids=["scan", "loop", "backwards"])
def test_a_recurrence_has_the_gradients_of_its_steps(text, steps, tmp_path):
    weights = draw(WEIGHTS)
    axis = 1 if text == BACKWARDS else 0
    rng = np.random.default_rng(1)
    shape = (2, steps) if axis else (steps, 2)
    data = {"x": rng.normal(size=(*shape, 4)).astype("f"), "y_target": rng.normal(size=(*shape, 3)).astype("f"),
            "last_target": rng.normal(size=(2, 3)).astype("f")}  # fmt: skip

    def program(w, d):
        xs = d["x"].unbind(axis)
        last, ys = network(w, xs[::-1] if axis else xs)
        y = torch.stack(ys[::-1] if axis else ys, axis)
        return ((y - d["y_target"]) ** 2).mean() + ((last - d["last_target"]) ** 2).mean()

    loss = "mse(y, y_target) + mse(last, last_target)"
    compare(model_of(text, weights), data, weights, program, tmp_path, loss)


# The number of steps is an input.
GIVEN = LOOP.replace("[T, N, 4] x)", "[T, N, 4] x, int64 k)").replace("(steps, always, h)", "(k, always, h)")
GIVEN = GIVEN.replace("=> (float[T, N, 3] y, float[N, 3] last)", "=> (float loss)")
GIVEN = GIVEN.rstrip()[:-1] + "z = Mul(y, y) a = ReduceMean<keepdims = 0>(z) b_ = ReduceSum<keepdims = 0>(last) loss = Add(a, b_) }"


@pytest.mark.parametrize("given", [1, 4, 300])
def test_a_number_of_steps_that_is_an_input(given, tmp_path):
    weights = draw(WEIGHTS)
    data = {"x": np.random.default_rng(1).normal(size=(310, 2, 4)).astype("f"), "k": np.array(given)}

    def program(w, d):
        last, ys = network(w, d["x"].unbind(0)[:given])
        return (torch.stack(ys) ** 2).mean() + last.sum()

    compare(model_of(GIVEN, weights), data, weights, program, tmp_path, "loss")


def test_a_long_loop_of_unknown_length_has_the_memory_of_its_states(tmp_path):
    weights = {name: 0.1 * value for name, value in draw({"wh": (64, 64), "h0": (64, 64)}).items()}
    text = """
    given (int64[N] k) => (float loss) {
        count = ReduceMax<keepdims = 0>(k)
        last, y = Loop<body = body (int64 i, bool go, float[64, 64] s) => (bool on, float[64, 64] sn, float yt) {
            on = Identity(go)
            p = MatMul(s, wh)
            sn = Tanh(p)
            yt = ReduceMean<keepdims = 0>(sn)
        }>(count, always, h0)
        z = Mul(y, y)
        loss = ReduceMean<keepdims = 0>(z)
    }"""
    path, train = tmp_path / "model.onnx", tmp_path / "train.onnx"
    onnx.save(model_of(text, weights), path)
    tool.run("build", path, "-o", train, "--loss", "loss", "--optimizer", "sgd")
    memory = {}
    for steps in (1_000, 2_000, 4_000):
        data = tool.save(tmp_path / "data.npz", {"k": np.array([steps])})
        memory[steps], _ = tool.peak_of(
            "fit", train, "--data", data, "--batch-size", 1, "--steps", 2, "--out", tmp_path / str(steps)
        )
    thousand = 64 * 64 * 4 * 1_000  # bytes of the states before each of a thousand steps
    growth = memory[2_000] - memory[1_000]
    assert 0.9 * thousand < growth < 3 * thousand
    assert memory[4_000] - memory[2_000] == pytest.approx(2 * growth, abs=0.3 * thousand)


def test_a_long_loop_is_planned_at_once_and_has_the_memory_of_its_states(tmp_path):
    weights = draw(WEIGHTS)
    path, train = tmp_path / "model.onnx", tmp_path / "train.onnx"
    onnx.save(model_of(LOOP, weights), path)
    tool.run("build", path, "-o", train, "--loss", "mse(y, target)", "--optimizer", "sgd")
    memory, nodes = {}, {}
    for steps in (2_000, 10_000):
        rng = np.random.default_rng(1)
        data = {"x": rng.normal(size=(steps, 2, 4)).astype("f"), "target": rng.normal(size=(steps, 2, 3)).astype("f")}
        report = json.loads(tool.run("bench", train, "--data", tool.save(tmp_path / "data.npz", data), "--batch-size", steps,
                                     "--seconds", 0.01, "--json"))  # fmt: skip
        memory[steps] = report["arena_bytes"]
        nodes[steps] = len(json.loads(tool.run("show", train, "--plan", "--batch", steps, "--dim", "N=2", "--json")))
    assert memory[10_000] < 5.1 * memory[2_000]
    assert nodes[10_000] == nodes[2_000] < 100


# Newton's method for the square root: it ends when it is near enough, after 8 steps at the latest.
UNTIL = """
until (float[N, 3] x) => (float[N, 3] y) {
    a = Mul(x, x)
    m = Add(a, b)
    y = Loop<body = body (int64 i, bool go, float[N, 3] s) => (bool on, float[N, 3] sn) {
        q = Div(m, s)
        p = Add(s, q)
        sn = Mul(p, half)
        d = Sub(sn, s)
        far = Abs(d)
        farthest = ReduceMax<keepdims = 0>(far)
        on = Greater(farthest, near)
    }>(most, always, m)
}"""


@pytest.mark.parametrize("near, steps", [(1e-2, {4, 5}), (-1.0, {8})])
def test_a_loop_that_its_condition_ends(near, steps, tmp_path):
    weights = {"b": np.float32([0.5, 1.5, 9])}
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(2, 3)).astype("f"), "y_target": rng.normal(size=(2, 3)).astype("f")}
    taken = []

    def program(w, d):
        m = d["x"] * d["x"] + w["b"]
        s, count, far = m, 0, np.inf
        while count < 8 and far > near:
            before, s, count = s, 0.5 * (s + m / s), count + 1
            far = (s - before).abs().max()
        taken.append(count)
        return ((s - d["y_target"]) ** 2).mean()

    constants = {"half": np.float32(0.5), "near": np.float32(near), "most": np.int64(8)}
    compare(model_of(UNTIL, weights, constants), data, weights, program, tmp_path)
    assert taken[0] in steps


# The same without a bound, or with a large one, and with results of each step.
ENDED = UNTIL.replace("until (float[N, 3] x) => (float[N, 3] y)", "ended (float[N, 3] x) => (float[N, 3] y, float[T, N, 3] each)")
ENDED = ENDED.replace("y = Loop", "y, each = Loop").replace("float[N, 3] sn) {", "float[N, 3] sn, float[N, 3] change) {")
ENDED = ENDED.replace("far = Abs(d)", "far = Abs(d) change = Mul(d, b)")


@pytest.mark.parametrize("bound", ["", "most"])
@pytest.mark.parametrize("near, steps", [(1e-2, {4, 5}), (1e-4, {6, 7})])
def test_a_loop_of_unknown_length_with_results_of_each_step(bound, near, steps, tmp_path):
    weights = {"b": np.float32([0.5, 1.5, 9])}
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(2, 3)).astype("f"), "y_target": rng.normal(size=(2, 3)).astype("f")}
    taken = []

    def program(w, d):
        m = d["x"] * d["x"] + w["b"]
        s, changes, far = m, [], np.inf
        while far > near:
            before, s = s, 0.5 * (s + m / s)
            far = (s - before).abs().max()
            changes.append((s - before) * w["b"])
        taken.append(len(changes))
        return ((s - d["y_target"]) ** 2).mean() + torch.stack(changes).mean()

    text = ENDED.replace("most", bound).replace("=> (float[N, 3] y, float[T, N, 3] each)", "=> (float[N, 3] y, float mean)")
    text = text.rstrip()[:-1] + "mean = ReduceMean<keepdims = 0>(each) }"
    constants = {"half": np.float32(0.5), "near": np.float32(near), "most": np.int64(2**40)}
    compare(model_of(text, weights, constants), data, weights, program, tmp_path, "mse(y, y_target) + mean")
    assert taken[0] in steps


BRANCH = """
branch (float[N, 4] x) => (float[N, 3] y) {
    h = MatMul(x, wx)
    total = ReduceSum<keepdims = 0>(x)
    c = Greater(total, nothing)
    y = If(c) <
        then_branch = then_graph () => (float[N, 3] a) { p = Add(h, b) a = Tanh(p) },
        else_branch = else_graph () => (float[N, 3] q) { q = Mul(h, g) }>
}"""


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_that_data_choose_has_the_gradients_of_what_it_takes(sign, tmp_path):
    weights = draw({"wx": (4, 3), "b": (3,), "g": (3,)})
    rng = np.random.default_rng(1)
    data = {"x": sign * np.abs(rng.normal(size=(2, 4))).astype("f"), "y_target": rng.normal(size=(2, 3)).astype("f")}

    def program(w, d):
        h = d["x"] @ w["wx"]
        y = torch.tanh(h + w["b"]) if sign > 0 else h * w["g"]
        return ((y - d["y_target"]) ** 2).mean()

    model = model_of(BRANCH, weights, {"nothing": np.float32(0)})
    compare(model, data, weights, program, tmp_path)


# A branch in a step of a loop, whose condition is the number of the step or comes from the data; the branch reads values
# of the step, of the loop and from outside.
NESTED = """
nested (float[N, 3] x) => (float[N, 3] y) {
    y = Loop<body = body (int64 i, bool go, float[N, 3] s) => (bool on, float[N, 3] sn) {
        on = Identity(go)
        p = MatMul(s, wh)
        CONDITION
        r = If(c) <
            then_branch = t () => (float[N, 3] ta) { tb = Add(p, b) ta = Tanh(tb) },
            else_branch = e () => (float[N, 3] ea) { eb = Mul(s, g) ea = Sub(eb, p) }>
        sn = Add(r, x)
    }>(four, always, x)
}"""
CONDITIONS = {
    "number": ("two_ = Mod(i, k2) c = Equal(two_, k0)", lambda i, s, p: i % 2 == 0),
    "data": ("sum = ReduceSum<keepdims = 0>(p) c = Greater(sum, nothing)", lambda i, s, p: bool(p.sum() > 0)),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_branch_in_a_loop(condition, tmp_path):
    weights = draw({"wh": (3, 3), "b": (3,), "g": (3,)})
    rng = np.random.default_rng(2)
    data = {"x": rng.normal(size=(2, 3)).astype("f"), "y_target": rng.normal(size=(2, 3)).astype("f")}
    text, takes = CONDITIONS[condition]
    taken = []

    def program(w, d):
        s = d["x"]
        for i in range(4):
            p = s @ w["wh"]
            taken.append(takes(i, s, p))
            s = (torch.tanh(p + w["b"]) if taken[-1] else s * w["g"] - p) + d["x"]
        return ((s - d["y_target"]) ** 2).mean()

    constants = {"four": np.int64(4), "k2": np.int64(2), "k0": np.int64(0), "nothing": np.float32(0)}
    compare(model_of(NESTED.replace("CONDITION", text), weights, constants), data, weights, program, tmp_path)
    assert set(taken) == {True, False}


# Sums of slices, of which the last one ends where x does, and some are empty: PyTorch's EmbeddingBag has this form. What
# a branch slices has a size that the offsets decide; what the branches give has one shape.
SLICES = """
slices (float[N, 3] x OFFSETS) => (float[T, 3] y) {
    r = MatMul(x, wh)
    size = Shape<start = 0, end = 1>(x)
    joined = Concat<axis = 0>(offsets, size)
    count = Size(offsets)
    last = Sub(count, k1)
    n, rows = Loop<body = body (int64 i, bool go, int64 n_in) => (bool on, int64 n_out, float[M, 3] row) {
        on = Identity(go)
        n_out = Identity(n_in)
        at = Unsqueeze(i, zero)
        next = Add(at, one)
        after = Add(at, two)
        start = Slice(joined, at, next)
        end = Slice(joined, next, after)
        empty = Equal(start, end)
        BRANCHES
    }>(count, always, k1)
    y = Squeeze(rows, one)
}"""


PART = """part = If(is_last) <
    then_branch = a () => (float[G, 3] all) { all = Slice(r, start, size) },
    else_branch = o () => (float[H, 3] some) { some = Slice(r, start, end) }>"""
SUMMED = {
    "inside": f"""row = If(empty) <
        then_branch = t () => (float[E, 3] nothing) {{ nothing = Expand(b, row_shape) }},
        else_branch = e () => (float[F, 3] sum) {{
            is_last = Equal(i, last)
            {PART}
            weighted = Mul(part, g)
            sum = ReduceSum(weighted, zero)
        }}>""",
    "outside": f"""rows_ = If(empty) <
        then_branch = t () => (float[E, 3] nothing) {{ nothing = Expand(b, row_shape) }},
        else_branch = e () => (float[F, 3] weighted) {{ is_last = Equal(i, last) {PART} weighted = Mul(part, g) }}>
    row = ReduceSum(rows_, zero)""",
}


@pytest.mark.parametrize("summed", SUMMED)
@pytest.mark.parametrize("given", [False, True], ids=["constant", "given"])
@pytest.mark.parametrize("steps", [5, 300])
def test_branches_whose_sizes_data_decide_in_a_loop(steps, given, summed, tmp_path):
    weights = draw({"wh": (3, 3), "b": (3,), "g": (3,)})
    rng = np.random.default_rng(2)
    offsets = np.sort(rng.integers(0, 2 * steps, steps))
    offsets[0], offsets[3] = 0, offsets[2]
    assert len(set(offsets)) < steps
    data = {"x": rng.normal(size=(2 * steps + 1, 3)).astype("f"), "y_target": rng.normal(size=(steps, 3)).astype("f")}
    data |= {"offsets": offsets} if given else {}

    def program(w, d):
        r, ends = d["x"] @ w["wh"], [*offsets[1:], len(d["x"])]
        parts = [r[s:e] for s, e in zip(offsets, ends)]
        y = torch.stack([(part * w["g"]).sum(0) if len(part) else w["b"] for part in parts])
        return ((y - d["y_target"]) ** 2).mean()

    constants = {"k1": np.int64(1), "row_shape": [1, 3]} | ({} if given else {"offsets": offsets})
    text = SLICES.replace("OFFSETS", f", int64[{steps}] offsets" if given else "").replace("BRANCHES", SUMMED[summed])
    compare(model_of(text, weights, constants), data, weights, program, tmp_path)


# Dropout in a branch in a loop: each step draws a mask of its own, and the branch reads weights from outside.
DROPPING = """
dropping (float[N, 3] x) => (float[N, 3] y) {
    y = Loop<body = body (int64 i, bool go, float[N, 3] s) => (bool on, float[N, 3] sn) {
        on = Identity(go)
        p = MatMul(s, wh)
        sum = ReduceSum<keepdims = 0>(p)
        c = Greater(sum, nothing)
        r = If(c) <
            then_branch = t () => (float[N, 3] ta) { tb = Add(p, b) tc = Dropout(tb, ratio) ta = Tanh(tc) },
            else_branch = e () => (float[N, 3] ea) { eb = Mul(s, g) ec = Dropout(eb, ratio) ea = Sub(ec, p) }>
        sn = Add(r, x)
    }>(steps, always, x)
}"""
GOLDEN = 0x9E3779B97F4A7C15  # what a step adds to the seed


@pytest.mark.parametrize("steps", [5, 300])
def test_dropout_in_a_branch_in_a_loop(steps, tmp_path):
    weights = {k: 0.5 * v for k, v in draw({"wh": (3, 3), "b": (3,), "g": (3,)}).items()}
    constants = {"steps": np.int64(steps), "nothing": np.float32(0), "ratio": np.float32(0.25)}
    rng = np.random.default_rng(2)
    data = {"x": rng.normal(size=(2, 3)).astype("f"), "target": rng.normal(size=(2, 3)).astype("f")}
    path, train = tmp_path / "model.onnx", tmp_path / "train.onnx"
    onnx.save(model_of(DROPPING, weights, constants), path)
    tool.run("build", path, "-o", train, "--loss", "mse(y, target)", "--optimizer", "sgd", "--seed", 7)
    tool.run("fit", train, "--data", tool.save(tmp_path / "data.npz", data), "--steps", 1, "--lr", 1, "--batch-size", 2,
             "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    trained = {v.name: numpy_helper.to_array(v) for v in onnx.load(tmp_path / "run" / "last.onnx").graph.initializer}

    w = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    x, s, taken = torch.tensor(data["x"]), torch.tensor(data["x"]), []
    for i in range(steps):
        p = s @ w["wh"]
        taken.append(bool(p.sum() > 0))
        kept = [torch.tensor(keeps((7 + i * GOLDEN) % 2**64, 0, stream, (2, 3), 0.25)) / 0.75 for stream in (0, 1)]
        s = (torch.tanh((p + w["b"]) * kept[0]) if taken[-1] else s * w["g"] * kept[1] - p) + x
    ((s - torch.tensor(data["target"])) ** 2).mean().backward()
    assert set(taken) == {True, False}
    for name, tensor in w.items():
        np.testing.assert_allclose(weights[name] - trained[name], tensor.grad, rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("text", [SCAN, LOOP, BRANCH], ids=["scan", "loop", "branch"])
def test_onnx_runtime_trains_the_same(text, tmp_path):
    weights = draw(WEIGHTS)
    path, train, step = tmp_path / "model.onnx", tmp_path / "train.onnx", tmp_path / "step.onnx"
    onnx.save(model_of(text, weights, {"nothing": np.float32(0)}), path)
    tool.run("build", path, "-o", train, "--loss", "mse(y, target)", "--optimizer", "sgd")
    onnx.checker.check_model(onnx.load(train), full_check=True)
    rng = np.random.default_rng(1)
    shape = (4,) if text == BRANCH else (5, 2)
    data = {"x": rng.normal(size=(*shape, 4)).astype("f"), "target": rng.normal(size=(*shape, 3)).astype("f")}
    tool.run("flatten", train, "--entry", "step", "-o", step)
    session = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    initial = weights | {"state/step": np.zeros((), np.int64)}
    states = {i.name: initial[i.name] for i in session.get_inputs() if i.name in initial}
    names, losses = [o.name for o in session.get_outputs()], []
    for _ in range(3):
        feeds = {i.name: data[i.name] for i in session.get_inputs() if i.name in data}
        results = dict(zip(names, session.run(None, {**feeds, **states, "learning_rate": np.array(0.5, np.float32)})))
        states = {name: results[f"next/{name}"] for name in states}
        losses.append(results["loss"])
    assert losses[-1] < losses[0]
    tool.run("fit", train, "--data", tool.save(tmp_path / "data.npz", data), "--steps", 3, "--lr", 0.5, "--no-shuffle",
             "--batch-size", len(data["x"]), "--out", tmp_path / "run")  # fmt: skip
    ours = [line["loss"] for line in tool.metrics(tmp_path / "run")]
    np.testing.assert_allclose(ours, losses, rtol=1e-5)


WHILE = """<ir_version: 10, opset_import: ["" : 21]>
while (float[N, 4] x) => (float[N, 4] y) {
    go = Constant<value = bool {1}>()
    y = Loop<body = body (int64 i, bool c, float[N, 4] h) => (bool more, float[N, 4] hn) {
        a = MatMul(h, w)
        hn = Add(a, h)
        square = Mul(hn, hn)
        s = ReduceSum<keepdims = 0>(square)
        limit = Constant<value = float {50}>()
        more = Less(s, limit)
    }>("", go, x)
}"""
STEPS = """<ir_version: 10, opset_import: ["" : 21]>
steps (float[N, 4] x, int64 n) => (float[N, 4] y, float[T, N, 4] ys) {
    go = Constant<value = bool {1}>()
    y, ys = Loop<body = body (int64 i, bool c, float[N, 4] h) => (bool co, float[N, 4] hn, float[N, 4] ho) {
        a = MatMul(h, w)
        hn = Tanh(a)
        ho = Mul(hn, hn)
        co = Identity(c)
    }>(n, go, x)
}"""


def loop(text):
    model = parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32) * 0.3
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    x, target = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    batch = {"x": x, "target": target} | ({"n": np.array(3)} if "int64 n" in text else {})
    return model, batch


@pytest.mark.parametrize("entry", ["predict", "evaluate", "step"])
def test_a_loop_that_stays_runs_on_onnx_runtime(entry):
    model, batch = loop(WHILE)
    training = onnx_train.build(model, "mse(y, target)", "sgd(lr=0.1)")
    session, flat = onnx_train.Session(training, threads=1), training.flatten(entry)
    assert any(node.op_type == "Loop" for node in onnx.load_from_string(flat.to_bytes()).graph.node)
    runtime = onnxruntime.InferenceSession(flat.to_bytes(), providers=["CPUExecutionProvider"])
    feed = {i.name: batch[i.name] if i.name in batch else np.array(session.state[i.name]) for i in runtime.get_inputs()}
    results = dict(zip([o.name for o in runtime.get_outputs()], runtime.run(None, feed)))
    if entry == "predict":
        np.testing.assert_allclose(results["y"], session.predict(batch["x"]).y, rtol=1e-5)
        return
    ours = session.step(batch) if entry == "step" else session.evaluate(batch)
    assert results["loss"] == pytest.approx(float(ours.loss), rel=1e-5)
    if entry == "step":
        np.testing.assert_allclose(results["next/w"], session.state["w"], rtol=1e-5)


@pytest.mark.parametrize("text", [WHILE, STEPS])
def test_the_gradient_of_a_loop_whose_steps_only_a_run_knows(text):
    model, batch = loop(text)
    value, gradients = onnx_train.value_and_grad(model, "mse(y, target)", threads=1)(batch)
    session = onnx_train.Session(onnx_train.load(model).derivative("gradient", "mse(y, target)"), threads=1)
    results = session.run("predict", batch)
    assert "output/ys" not in results  # a run decides its shape
    assert value == pytest.approx(float(results["loss"]))
    np.testing.assert_allclose(gradients["w"], results["grad/w"], rtol=1e-5, atol=1e-7)
    w, x, target = (torch.tensor(a, dtype=torch.float64) for a in
                    (numpy_helper.to_array(model.graph.initializer[0]), batch["x"], batch["target"]))  # fmt: skip
    w.requires_grad_()
    h, step = x, 0
    while step < 3 if text is STEPS else True:
        h, step = (torch.tanh(h @ w) if text is STEPS else h @ w + h), step + 1
        if text is WHILE and float((h * h).sum()) >= 50:
            break
    torch.nn.functional.mse_loss(h, target).backward()
    np.testing.assert_allclose(gradients["w"], w.grad, rtol=1e-4, atol=1e-5)
    assert onnx_train.verify(model, "mse(y, target)", batch, threads=1)
    products = onnx_train.hvp(model, "mse(y, target)", threads=1)(batch, {"w": np.ones((4, 4))})
    assert np.isfinite(products["w"]).all()


def test_passes_give_each_other_tensors_whose_shapes_a_run_decides():
    model, batch = loop(STEPS.replace(", float[T, N, 4] ys) {", ") {"))
    module = onnx_train.torch.Module(model, threads=1)
    for count in (3, 2):
        x = torch.tensor(batch["x"], requires_grad=True)
        module.zero_grad()
        torch.nn.functional.mse_loss(module(x, torch.tensor(count)), torch.tensor(batch["target"])).backward()
        w, h = torch.tensor(numpy_helper.to_array(model.graph.initializer[0])).double().requires_grad_(), x.detach().double()
        start = h.requires_grad_()
        for _ in range(count):
            h = torch.tanh(h @ w)
        torch.nn.functional.mse_loss(h, torch.tensor(batch["target"]).double()).backward()
        (found,) = module.parameters()
        np.testing.assert_allclose(found.grad, w.grad, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(x.grad, start.grad, rtol=1e-4, atol=1e-6)
