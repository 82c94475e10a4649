"""Control flow: gradients are those of the same program in PyTorch, and ONNX Runtime computes the same steps."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from onnx import numpy_helper, parser

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
