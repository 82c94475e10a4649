"""ONNX's random operators: training draws from the state as dropout does, on any runtime; inference from a seed. Networks
that draw train to the expectations of PyTorch in float64: mean losses and gradients lie within five standard errors."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
from export import export
from onnx import TensorProto, helper, numpy_helper, parser
from test_dropout import philox

import onnx_train

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
DRAWS = {
    "normal like": "r = RandomNormalLike<mean = 0.5, scale = 2.0>(z)",
    "normal": "r = RandomNormal<shape = [3, 4]>()",
    "uniform like": "r = RandomUniformLike<low = -1.0>(z)",
    "uniform": "r = RandomUniform<shape = [1, 4], high = 3.0>()",
    "seed": "r = RandomUniformLike<seed = 2.5>(z)",
    "bernoulli": "p = Sigmoid(z) r = Bernoulli(p)",
    "multinomial": "i = Multinomial<sample_size = 4, dtype = 7>(z) r = Cast<to = 1>(i)",
    "if": """u = RandomUniform<shape = [1]>() v = Squeeze(u) c = Less(v, half) r = If(c)<
        then_branch = t () => (float[n, 4] a) { a = RandomNormalLike(z) },
        else_branch = e () => (float[n, 4] b) { b = Identity(z) }>""",
    "scan": """last, r = Scan<num_scan_inputs = 1, body = b (float[4] s, float[4] q) => (float[4] t, float[4] o) {
        g = RandomNormalLike(q) u = RandomUniformLike<seed = 3.0>(q) o = Add(g, u) t = Add(s, o) }>(zeros, z)""",
    "loop": """r = Loop(three, true, z)<body = b (int64 i, bool go, float[n, 4] a) => (bool on, float[n, 4] c) {
        g = RandomNormalLike(a) c = Mul(a, g) on = Identity(go) }>""",
}  # fmt: skip


def network(draws, folder, outputs="float[n, 4] y"):
    """y = x w r, where `draws` computes r and may read z = x w."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 4] x) => ({outputs})
        <float[4] w = {{1, 0.5, 2, -1}}, float half = {{0.5}}, float[4] zeros = {{0, 0, 0, 0}}, int64 three = {{3}}, bool true = {{1}}>
        {{ z = Mul(x, w) {draws} y = Mul(z, r) }}""")
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def build(draws, folder, loss="mse(y, target)", **options):
    return onnx_train.build(network(draws, folder), loss, "sgd(lr=0.01)", train=["w"], **options)


BATCH = {"x": X, "target": X}


# ---- What is drawn


@pytest.mark.parametrize("name", DRAWS)
def test_a_step_draws_the_same_numbers_on_another_runtime(tmp_path, name):
    training = build(DRAWS[name], tmp_path, mode="frozen" if name == "normal" else "train")
    session = onnx_train.Session(training, threads=1)
    state = {key: np.array(value) for key, value in session.state.items()}
    training.save(tmp_path / "train.onnx")
    tool.run("flatten", tmp_path / "train.onnx", "--entry", "step", "-o", tmp_path / "step.onnx")
    assert not {node.op_type for node in onnx.load(tmp_path / "step.onnx").graph.node if not node.domain} & {
        "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}  # fmt: skip
    runtime = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    inputs = {value.name for value in runtime.get_inputs()}
    losses = []
    for _ in range(3):
        feeds = {key: value for key, value in (BATCH | state).items() if key in inputs}
        outputs = dict(zip([value.name for value in runtime.get_outputs()], runtime.run(None, feeds)))
        state = {key: outputs.get(f"next/{key}", value) for key, value in state.items()}
        losses.append(outputs["loss"])
    ours = [session.step(BATCH).loss for _ in range(3)]
    np.testing.assert_allclose(ours, losses, rtol=2e-5)
    assert len(set(ours)) == 3
    assert np.array(session.state["state/random_key"])[1] == 3


def test_uniform_numbers_are_those_of_philox(tmp_path):
    """The first step's numbers, from an implementation of their own: loss = mean (x w u - target)²."""
    session = onnx_train.Session(build(DRAWS["uniform like"], tmp_path, seed=7), threads=1)
    uniform = (philox(7, 0, 0, 12) >> np.uint64(8)).astype(np.float64).reshape(3, 4) * 2**-24
    z = X.astype(np.float64) * [1, 0.5, 2, -1]
    assert session.step(BATCH).loss == pytest.approx(((z * (2 * uniform - 1) - X) ** 2).mean(), rel=1e-6)


def test_nodes_and_seeds_differ(tmp_path):
    def losses(draws, seed=0):
        session = onnx_train.Session(build(draws, tmp_path, seed=seed), threads=1)
        return [session.step(BATCH, lr=0.0).loss for _ in range(2)]

    assert losses(DRAWS["uniform like"]) == losses(DRAWS["uniform like"])
    assert losses(DRAWS["uniform like"]) != losses(DRAWS["uniform like"], seed=1)
    assert losses(DRAWS["seed"]) == losses(DRAWS["seed"], seed=1)  # the attribute takes its place
    twins = "a = RandomUniformLike<seed = 1.0>(z) b = RandomUniformLike<seed = 1.0>(z) r = Sub(a, b)"
    assert losses(twins) != [pytest.approx((X**2).mean())] * 2


def test_batches_of_a_step_and_a_resumed_run_do_not_repeat(tmp_path):
    training = build(DRAWS["normal like"], tmp_path, accumulate=True)
    session = onnx_train.Session(training, threads=1)
    losses = []
    for _ in range(3):
        losses += [session.accumulate(BATCH).loss for _ in range(2)]
        session.apply(lr=0.0)
    assert len(set(losses)) == 6
    session = onnx_train.Session(training, threads=1)
    for _ in range(2):
        session.accumulate(BATCH)
    session.apply(lr=0.0)
    session.save(tmp_path / "after.onnx")
    resumed = onnx_train.Session(onnx_train.load(tmp_path / "after.onnx"), threads=1)
    assert [resumed.accumulate(BATCH).loss for _ in range(2)] == losses[2:4]


def test_a_loss_draws_from_the_state_too(tmp_path):
    loss = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 4] y) => (float loss) { r = RandomNormalLike(y) p = Mul(y, r) s = Mul(p, p) loss = ReduceMean<keepdims = 0>(s) }""")
    onnx.save(loss, tmp_path / "loss.onnx")
    session = onnx_train.Session(build("r = Identity(x)", tmp_path, str(tmp_path / "loss.onnx")), threads=1)
    losses = [session.step({"x": X}, lr=0.0).loss for _ in range(3)]
    assert len(set(losses)) == 3 and np.array(session.state["state/random_key"])[1] == 3


@pytest.mark.parametrize("mode", ["train", "frozen"])
def test_the_command_checks_and_builds_what_draws(tmp_path, mode):
    path = network(DRAWS["scan"], tmp_path)
    assert "In the way" not in tool.run("check", path, "--loss", "mse", "--train", "w", "--mode", mode)
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "mse", "--train", "w", "--mode", mode)


# ---- Inference


@pytest.mark.parametrize("name", ["normal like", "bernoulli", "multinomial", "scan"])
def test_predictions_draw_new_numbers_and_sessions_the_same(tmp_path, name):
    path = network(DRAWS[name], tmp_path, "float[n, 4] y, float[n, 4] r")
    one, other = (onnx_train.Session(path, threads=1) for _ in range(2))
    drawn = [np.array(one.run("predict", {"x": X})["r"]) for _ in range(3)]
    assert not np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[1], drawn[2])
    for numbers in drawn:
        np.testing.assert_array_equal(other.run("predict", {"x": X})["r"], numbers)


@pytest.mark.parametrize("name", ["normal like", "bernoulli"])
def test_outputs_of_a_size_that_draws_decide_are_of_one_draw(tmp_path, name):
    """What decides the sizes is computed first, so that it draws twice."""
    plain = onnx_train.Session(network(DRAWS[name], tmp_path, "float[n, 4] y, float[n, 4] r"), threads=1)
    picks = DRAWS[name] + " above = Greater(r, half) picked = NonZero(above)"
    session = onnx_train.Session(network(picks, tmp_path, "float[n, 4] r, int64[2, k] picked"), threads=1)
    for _ in range(3):
        found = session.run("predict", {"x": X})
        np.testing.assert_array_equal(found["r"], plain.run("predict", {"x": X})["r"])
        np.testing.assert_array_equal(found["picked"], np.nonzero(np.array(found["r"]) > 0.5))


@pytest.mark.parametrize("name", DRAWS)
def test_training_models_predict_and_evaluate_from_their_file(tmp_path, name):
    build(DRAWS[name], tmp_path).save(tmp_path / "train.onnx")
    session = onnx_train.Session(onnx_train.load(tmp_path / "train.onnx"), threads=1)
    y = [np.array(session.run("predict", {"x": X})["y"]) for _ in range(2)]
    assert y[0].shape == X.shape and not np.array_equal(*y)
    assert session.run("evaluate", BATCH)["loss"] != session.run("evaluate", BATCH)["loss"]


def test_inference_keeps_the_operators_of_the_file(tmp_path):
    training = build(DRAWS["normal like"], tmp_path)
    onnx_train.Session(training, threads=1).export(tmp_path / "out.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Mul", "RandomNormalLike", "Mul"]


def test_a_session_and_the_commands_take_a_seed(tmp_path):
    path = network(DRAWS["normal like"], tmp_path, "float[n, 4] r")
    data = tool.save(tmp_path / "data.npz", {"x": X})
    found = []
    for seed, option in ((None, []), (0, ["--seed", 0]), (2**64 - 1, ["--seed", 2**64 - 1])):
        found.append(np.array(onnx_train.Session(path, threads=1, seed=seed).run("predict", {"x": X})["r"]))
        tool.run("predict", path, "--inputs", data, "-o", tmp_path / "out.npz", *option)
        np.testing.assert_array_equal(tool.load(tmp_path / "out.npz")["r"], found[-1])
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[1], found[2])
    with pytest.raises(onnx_train.UsageError, match="seed"):
        onnx_train.Session(path, seed=-1)
    build(DRAWS["normal like"], tmp_path).save(tmp_path / "train.onnx")
    data = tool.save(tmp_path / "data.npz", BATCH)
    losses = [tool.run("eval", tmp_path / "train.onnx", "--data", data, "--json", "--seed", seed) for seed in (0, 1)]
    assert losses[0] != losses[1]


def test_every_evaluation_of_data_draws_the_same(tmp_path):
    session = onnx_train.Session(build(DRAWS["normal like"], tmp_path), threads=1)
    data = tool.save(tmp_path / "data.npz", {key: np.concatenate([value] * 2) for key, value in BATCH.items()})
    whole = [session.evaluate(data, batch_size=3).loss for _ in range(2)]
    batches = [session.run("evaluate", BATCH)["loss"] for _ in range(2)]
    assert whole[0] == whole[1] and batches[0] != batches[1]


@pytest.mark.parametrize("shape", [(0, 4), (3, 4)])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_types_and_empty_shapes(tmp_path, shape, dtype):
    graph = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["r"], shape=shape, dtype=dtype), helper.make_node("Identity", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("r", dtype, shape), helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    r = onnx_train.Session(tmp_path / "model.onnx", threads=1).run("predict", {"x": np.zeros(1, np.float32)})["r"]
    assert r.shape == shape and r.dtype == (np.float64 if dtype == TensorProto.DOUBLE else np.float32)


def test_probabilities_outside_of_their_range_are_never_and_always(tmp_path):
    path = network("r = Bernoulli(x)", tmp_path, "float[n, 4] y, float[n, 4] r")
    session = onnx_train.Session(path, threads=1)
    p = np.array([[-1, 0, np.nan, -np.inf], [1, 1.5, np.inf, 1]], np.float32)
    for _ in range(20):
        np.testing.assert_array_equal(session.run("predict", {"x": p})["r"], [[0] * 4, [1] * 4])


def test_classes_are_drawn_by_their_probabilities(tmp_path):
    """100,000 samples a row; a class without probability never, NaN gives class 0."""
    graph = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 4] x) => (int32[n, 100000] i) { i = Multinomial<sample_size = 100000>(x) }""")
    onnx.save(graph, tmp_path / "model.onnx")
    logits = np.array([[0, 1, -1, 2], [-np.inf, 3, -np.inf, 3], [5, -np.inf, -np.inf, -np.inf], [np.nan, 1, 2, 3]], np.float32)
    i = np.array(onnx_train.Session(tmp_path / "model.onnx", threads=1).run("predict", {"x": logits})["i"])
    p = np.exp(logits[:3].astype(np.float64))
    p /= p.sum(1, keepdims=True)
    for row in range(3):
        share = np.bincount(i[row], minlength=4) / i.shape[1]
        assert np.all(np.abs(share - p[row]) <= 5 * np.sqrt(p[row] * (1 - p[row]) / i.shape[1]))
    assert not i[3].any()


@pytest.mark.parametrize("draws, said", [
    ("r = RandomNormal<shape = [-1, 4]>()", "its shape is [-1,4], which no memory holds"),
    ("r = RandomUniform<shape = [1099511627776, 1099511627776]>()", "which no memory holds"),
    ("i = Multinomial<sample_size = 0>(z) r = Cast<to = 1>(i)", "it must have 1 <= sample_size"),
    ("r = Loop(, true, z)<body = b (int64 i, bool c, float[n, 4] a) => (bool d, float[n, 4] e)"
     " { u = RandomUniform<shape = [1]>() v = Squeeze(u) d = Less(v, half) e = Mul(a, v) }>",
     "its steps draw random numbers, and a condition may end it"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused_by_name(tmp_path, draws, said):
    with pytest.raises(onnx_train.Error, match=r"node '.*'") as error:
        onnx_train.Session(build(draws, tmp_path), threads=1).step(BATCH)
    assert said in str(error.value)


# ---- Networks as they are exported, against expectations in float64


class Residual(torch.nn.Module):
    """Stochastic depth, as timm writes DropPath."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        keep = 0.7 + torch.rand(x.shape[0], 1)
        return x + torch.tanh(self.layer(x)) * keep.floor() / 0.7

    def expected(self, x, target):
        f = torch.tanh(self.layer(x))
        return 0.3 * ((x - target) ** 2).mean() + 0.7 * ((x + f / 0.7 - target) ** 2).mean()


class Noisy(torch.nn.Module):
    """The noisy layer of Fortunato et al. 2018, with independent noise."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.sigma = torch.nn.Parameter(torch.full((4, 4), 0.3))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.layer.weight + self.sigma * torch.randn(4, 4), self.layer.bias)

    def expected(self, x, target):
        return ((self.layer(x) - target) ** 2 + (x**2) @ (self.sigma**2).T).mean()


class Masked(torch.nn.Module):
    """Features that are hidden by torch.bernoulli of a constant probability."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.bernoulli(torch.full_like(x, 0.25)) * self.layer(x)

    def expected(self, x, target):
        y = self.layer(x)
        return (0.75 * target**2 + 0.25 * (y - target) ** 2).mean()


class Gumbel(torch.nn.Module):
    """A choice by the largest of logits with Gumbel noise: class k with probability softmax(logits)[k]."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = torch.nn.Linear(4, 5), torch.nn.Linear(5, 4, bias=False)

    def forward(self, x):
        logits = self.layer(x)
        noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9))
        return self.table(torch.nn.functional.one_hot((logits + noise).argmax(1), 5).to(x.dtype))

    def expected(self, x, target):
        rows = self.table.weight.T  # [5, 4]
        each = ((rows[None] - target[:, None]) ** 2).mean(2)
        return (torch.softmax(self.layer(x), 1).detach() * each).sum(1).mean()


class Sampled(torch.nn.Module):
    """An action by torch.multinomial: no gradient goes through the choice."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = torch.nn.Linear(4, 5), torch.nn.Linear(5, 4, bias=False)

    def forward(self, x):
        action = torch.multinomial(torch.softmax(self.layer(x), 1), 1)[:, 0]
        return self.table(torch.nn.functional.one_hot(action, 5).to(x.dtype))

    expected = Gumbel.expected


def five_errors(values):
    """(mean, five standard errors of it)"""
    values = np.asarray(values, np.float64)
    return values.mean(0), 5 * values.std(0, ddof=1) / np.sqrt(len(values))


@pytest.mark.parametrize("module", [Residual, Noisy, Masked, Gumbel, Sampled])
def test_networks_that_draw_train_to_their_expectation(tmp_path, module):
    torch.manual_seed(0)
    network, steps = module(), 400
    x, target = torch.randn(6, 4), torch.randn(6, 4)
    export(network, {"x": x}, tmp_path / "model.onnx", "torchscript", train=True, outputs=("y",))
    session = onnx_train.Session(onnx_train.build(tmp_path / "model.onnx", "mse(y, target)", "sgd"), threads=1)
    feeds = {"x": x.numpy(), "target": target.numpy()}
    weights = {key: np.array(value) for key, value in session.state.items() if not key.startswith("state/")}
    losses, gradients = [], {key: [] for key in weights}
    for _ in range(steps):
        losses.append(session.step(feeds, lr=1.0).loss)
        for key, value in weights.items():
            gradients[key].append(value - session.state[key])
            session.state[key] = value
    wide = module().double()
    wide.load_state_dict({key: value.double() for key, value in network.state_dict().items()})
    expected = wide.expected(x.double(), target.double())
    expected.backward()
    mean, error = five_errors(losses)
    assert abs(mean - expected.item()) <= error and error > 0
    trained = {key: value for key, value in wide.named_parameters() if value.grad is not None}
    assert trained.keys() <= weights.keys()
    for key, value in trained.items():
        mean, error = five_errors(gradients[key])
        assert np.all(np.abs(mean - value.grad.numpy()) <= error + 1e-5), key


# ---- Ranks


def test_ranks_and_resumed_runs_change_no_bit(tmp_path):
    """Evaluations, too: their batches are numbered as one process numbers them."""
    build(DRAWS["normal like"], tmp_path, accumulate=True).save(tmp_path / "train.onnx")
    random = np.random.default_rng(1)
    data = tool.save(tmp_path / "data.npz", {k: random.normal(size=(23, 4)).astype(np.float32) for k in BATCH})
    run = "fit", tmp_path / "train.onnx", "--data", data, "--eval-data", data, "--batch-size", 3, "--accumulate", 4, "--lr", 0.01
    tool.run(*run, "--epochs", 2, "--out", tmp_path / "one")
    tool.run(*run, "--epochs", 2, "--out", tmp_path / "two", "--devices", "cpu,cpu")
    tool.run(*run, "--epochs", 1, "--out", tmp_path / "resumed")
    tool.run(*run, "--epochs", 2, "--out", tmp_path / "resumed", "--resume")
    keep = "step", "epoch", "loss", "grad_norm"
    lines = [[{key: line.get(key) for key in keep} for line in tool.metrics(tmp_path / name)] for name in ("one", "two", "resumed")]
    assert lines[0] == lines[1] == lines[2]
    for name in "two", "resumed":
        assert (tmp_path / name / "last.onnx").read_bytes() == (tmp_path / "one/last.onnx").read_bytes()
