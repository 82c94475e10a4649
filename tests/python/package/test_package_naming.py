"""Names are for people: the package computes the same numbers whatever the values of a model are called."""

import copy
import pickle
import re

import numpy as np
import pytest
import tool
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx_train

# What passes and the package call values of their own, what Python calls attributes of a result, and what no parser of
# names likes: those of naming_test.cc, and more.
WORDS = [
    "grad/w1", "grad/w1_1", "grad/h", "grad/y", "next/w1", "next/state/step", "state/step", "state/w1/exp_avg",
    "state/w1/grad", "state/random_key", "state/accumulated", "train/h", "loss", "loss_1", "accuracy", "grad_norm",
    "learning_rate", "clip_norm", "loss_scale", "seed", "initial/w1", "draw/w1", "grad/w1/part", "loss/part", "grad_scale",
    "micro_batches", "h_replaced", "w1_1", "output/y", "labels", "target", "step", "weight", "keys", "_names", "training",
    "onnx_train.role", "with space", 'say "hello"', "it's", "two\nlines", "a,b(c)=d", "back\\slash", "0", "é€", " ", "*", "w[12]",
    "__class__", "a.b", ".", "_1",
]  # fmt: skip
VALUES = ["x", "h", "y", "w1", "b2", "N", "cost"]
# Three words at a time, each for another value.
NAMINGS = [{VALUES[(i + 2 * k) % 7]: WORDS[(i + k) % len(WORDS)] for k in range(3)} for i in range(0, len(WORDS), 3)]
NAMINGS += [{value: word} for word in ("loss", "labels") for value in VALUES]
NAMINGS += [
    {"x": "learning_rate", "y": "loss", "w1": "accuracy", "w2": "grad_norm", "h": "grad/w1"},
    {"x": "labels", "w1": "grad/labels", "y": "grad/grad/labels", "N": "loss", "cost": "output/loss"},
    {value: str(i) for i, value in enumerate(VALUES)},
    {value: "x" + "_1" * i for i, value in enumerate(VALUES)},
]


def network(names, with_cost):
    """y = tanh(x w1) w2 + b2, and on top of it, if wanted, cost = mean((y - goal)²), a loss of the model's own."""
    rng = np.random.default_rng(0)
    n = lambda value: names.get(value, value)  # noqa: E731
    weights = {"w1": (4, 5), "w2": (5, 3), "b2": (3,)}
    nodes = [
        helper.make_node("MatMul", [n("x"), n("w1")], [n("p")]),
        helper.make_node("Tanh", [n("p")], [n("h")]),
        helper.make_node("MatMul", [n("h"), n("w2")], [n("q")]),
        helper.make_node("Add", [n("q"), n("b2")], [n("y")]),
    ]
    inputs = [helper.make_tensor_value_info(n("x"), TensorProto.FLOAT, [n("N"), 4])]
    outputs = [helper.make_tensor_value_info(n("y"), TensorProto.FLOAT, [n("N"), 3])]
    if with_cost:
        inputs.append(helper.make_tensor_value_info(n("goal"), TensorProto.FLOAT, [n("N"), 3]))
        outputs.append(helper.make_tensor_value_info(n("cost"), TensorProto.FLOAT, []))
        nodes += [
            helper.make_node("Sub", [n("y"), n("goal")], [n("d")]),
            helper.make_node("Mul", [n("d"), n("d")], [n("s")]),
            helper.make_node("ReduceMean", [n("s")], [n("cost")], keepdims=0),
        ]
    arrays = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n(w)) for w, s in weights.items()]
    graph = helper.make_graph(nodes, "network", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def results_of(names, with_cost):
    """All that the package says of the model, by names of the plain one."""
    plain = {name: value for value, name in names.items()}
    n = lambda value: names.get(value, value)  # noqa: E731

    def by_plain_name(arrays):
        return {plain.get(name, name): np.array(value) for name, value in arrays.items()}

    free = "classes" if "labels" in names.values() else "labels"  # a loss reads a value of the model of that name
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(6, 4)).astype(np.float32), np.arange(6) % 3
    target = rng.normal(size=(6, 3)).astype(np.float32)
    vectors = {n("x"): rng.normal(size=(6, 4)), n("w1"): rng.normal(size=(4, 5))}
    model = onnx_train.load(network(names, with_cost))
    loss = onnx_train.losses.output(n("cost")) if with_cost else onnx_train.losses.cross_entropy(n("y"), free)
    batch = (x, target) if with_cost else (x, labels)
    results = {}
    value, gradients = onnx_train.value_and_grad(model, loss, threads=1)(batch)
    results["value"] = np.array(value)
    results["gradients"] = by_plain_name(gradients)
    results["grad"] = by_plain_name(onnx_train.grad(model, loss, threads=1)(batch))
    results["hvp"] = by_plain_name(onnx_train.hvp(model, loss, threads=1)(batch, vectors))
    inputs = {n("x"): x, n("goal"): target} if with_cost else {n("x"): x}
    outputs, derivatives = onnx_train.jvp(model, threads=1)(inputs, vectors)
    results["jvp"] = by_plain_name(outputs), by_plain_name(derivatives)
    results["verify"] = by_plain_name(onnx_train.verify(model, loss, batch, threads=1).errors)
    training = model.build(loss, "adamw(lr=0.01)")
    session = onnx_train.Session(training, threads=1)
    before = session.evaluate(*batch)
    step = session.step(*batch, lr=0.1, clip_norm=0.5)
    assert step["loss"] == step.loss == before.loss == before["loss"]
    assert step.grad_norm == step["grad_norm"] and set(step) == set(before) | {"grad_norm"}
    results["step"] = [step[role] for role in sorted(step)]
    results["predict"] = by_plain_name(session.predict(*batch[: 2 if with_cost else 1]))
    roles = {(port.role, plain.get(port.of, port.of)): port.name for port in session.states()}
    results["state"] = [session.state[n("w1")].copy(), session.state[roles["exp_avg", "w1"]].copy()]
    data = dict(zip((port.name for port in session.inputs("step")), batch))
    history = onnx_train.fit(
        onnx_train.Session(training, threads=1), data, epochs=2, batch_size=2, eval_data=data, lr=0.05, progress=False
    )
    results["fit"] = [history.losses, [sorted(e.metrics.items()) for e in history.evaluations]]
    module = onnx_train.torch.Module(model, threads=1)
    tensors = [torch.tensor(x, requires_grad=True), *([torch.tensor(target)] if with_cost else [])]
    made = module(*tensors)
    made = made[0] if with_cost else made
    (first,) = torch.autograd.grad((made**2).sum(), tensors[0], create_graph=True)
    (first**2).sum().backward()
    results["torch"] = [made, first, tensors[0].grad, *(p.grad for p in module.parameters())]
    return results


def compat_results(names, folder):
    """The same of the interface of ONNX Runtime's training."""
    from onnx_train.onnxruntime.training import artifacts
    from onnx_train.onnxruntime.training.api import CheckpointState, Module, Optimizer

    n = lambda value: names.get(value, value)  # noqa: E731
    rng = np.random.default_rng(2)
    artifacts.generate_artifacts(
        network(names, True), [n("w1"), n("w2")], [n("b2")], artifact_directory=folder, loss_input_names=[n("cost")],
        optimizer=artifacts.OptimType.AdamW, additional_output_names=[n("y")],
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    results = []
    for _ in range(2):
        x, goal = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(6, 3)).astype(np.float32)
        results += [module(x, goal), state.parameters[n("w1")].grad]
        optimizer.step()
        module.lazy_reset_grad()
    return [*results, np.array(state.parameters[n("w2")].data)]


def assert_same(found, expected, what):
    assert type(found) is type(expected), what
    if isinstance(found, dict):
        assert set(found) == set(expected), what
        for key in found:
            assert_same(found[key], expected[key], f"{what} {key}")
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected), what
        for i, (a, b) in enumerate(zip(found, expected)):
            assert_same(a, b, f"{what} {i}")
    elif isinstance(found, torch.Tensor):
        assert torch.equal(found, expected), what
    else:
        assert np.array_equal(found, expected), what


@pytest.fixture(scope="module")
def plain():
    expected = {with_cost: results_of({}, with_cost) for with_cost in (False, True)}
    for results in expected.values():
        assert all(np.abs(product).max() > 1e-4 for product in results["hvp"].values())
        assert max(results["verify"].values()) < 1e-6
    return expected


# With a loss of the model's own and one of ours in turn; both where a name means something to a loss.
CASES = [(names, "cost" in names or i % 2 == 0) for i, names in enumerate(NAMINGS)]
CASES += [(names, False) for names in NAMINGS if set(names.values()) & {"loss", "labels"} and set(names) != {"cost"}]


@pytest.mark.parametrize(("names", "with_cost"), CASES, ids=repr)
def test_every_hostile_naming_gives_the_same_numbers(plain, names, with_cost):
    assert_same(results_of(names, with_cost), plain[with_cost], repr(names))


@pytest.mark.parametrize("names", NAMINGS, ids=repr)
def test_every_hostile_naming_trains_by_the_interface_of_onnxruntime(tmp_path, names):
    (tmp_path / "plain").mkdir()
    (tmp_path / "named").mkdir()
    expected = compat_results({}, tmp_path / "plain")
    assert expected[1].any() and not np.array_equal(expected[0][0], expected[2][0])
    assert_same(compat_results(names, tmp_path / "named"), expected, repr(names))


def test_hostile_namings_are_functions_of_jax():
    jax = pytest.importorskip("jax")
    import onnx_train.jax

    x = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)

    def results(names):
        f = onnx_train.jax.Function(network(names, False), threads=1)
        weights, dx = jax.grad(lambda w, v: jax.numpy.sum(f(w, v) ** 2), argnums=(0, 1))(f.weights, x)
        return [np.array(weights[names.get(name, name)]) for name in ("w1", "w2", "b2")] + [np.array(dx)]

    for names in ({"x": "output/y", "y": "loss", "w1": "grad/x"}, {"x": "y", "y": "x", "w1": "grad/y", "b2": "grad/x"}):
        assert_same(results(names), results({}), repr(names))


def test_a_result_has_the_loss_under_its_role_and_its_name(tmp_path):
    training = onnx_train.load(network({"cost": "loss"}, True)).build(onnx_train.losses.output("loss"))
    session = onnx_train.Session(training)
    (name,) = (port.name for port in session.outputs("step") if port.role == "loss")
    result = session.step(np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32))
    assert name != "loss" and set(result) == {"loss", "loss_count", "grad_norm"} and result["loss"] == result[name] == result.loss
    again = pickle.loads(pickle.dumps(copy.copy(result)))
    assert again == result and again[name] == result.loss and again.loss == result.loss
    with pytest.raises(KeyError):
        result["accuracy"]
    with pytest.raises(AttributeError, match="no output 'accuracy'; it has grad_norm, loss"):
        result.accuracy  # noqa: B018


def test_an_output_called_as_a_role_keeps_its_name_beside_the_output_of_that_role():
    port = lambda name, role: onnx_train.Port(name, role, "", "float32", (), None)  # noqa: E731
    names = onnx_train._result._Outputs([port("loss", ""), port("loss_1", "loss")])
    result = onnx_train.Result({"loss": 1.0, "loss_1": 2.0}, names)
    assert (result["loss"], result["loss_1"], result.loss) == (1.0, 2.0, 2.0)


def test_no_code_finds_a_value_by_its_spelling():
    spelled = re.compile(r"""\.name (==|!=) f?["']|f["'](state|grad|next|output)/|\bresults?\[["']""")
    assert spelled.search('port.name == "loss"') and spelled.search('f"state/{name}/grad"')
    files = list((tool.ROOT / "python_bindings" / "onnx_train").rglob("*.py"))
    assert len(files) > 20
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            is_code = not line.lstrip().startswith((">>>", "...", '"', "#")) and "``" not in line
            assert not (is_code and spelled.search(line)), f"{file.name}:{number}: {line}"
