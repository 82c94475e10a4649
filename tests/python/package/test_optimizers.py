"""Every optimizer against its reference: fifty steps of a small network from the same weights on the same batches.

References are torch.optim's, and a few lines after the paper where PyTorch has none. Weights and slots are compared, with
weight decay, both kinds of clipping, groups and an average of the weights. One step runs on ONNX Runtime, too.
"""

import re

import numpy as np
import onnx
import pytest
import tool
import torch

import onnx_train

STEPS, BATCHES = 50, 5
# Rates are float32 numbers, as the input learning_rate is.
RATE = 2**-6
NETWORK = """<ir_version: 10, opset_import: ["" : 21]>
network (T[batch, 2, 4, 4] x) => (T[batch, 3] y) {
  c = Conv <kernel_shape = [3, 3]> (x, body.0.weight, body.0.bias)
  r = Tanh (c)
  f = Flatten (r)
  h = Gemm <transB = 1> (f, body.1.weight, body.1.bias)
  t = Tanh (h)
  y = Gemm <transB = 1> (t, head.weight, head.bias)
}"""


def network():
    """The network in PyTorch, with names of weights as in NETWORK."""
    torch.manual_seed(1)
    return torch.nn.ModuleDict({
        "body": torch.nn.ModuleList([torch.nn.Conv2d(2, 3, 3), torch.nn.Linear(12, 8)]), "head": torch.nn.Linear(8, 3),
    })  # fmt: skip


def forward(module, x):
    hidden = torch.tanh(module["body"][0](x)).flatten(1)
    return module["head"](torch.tanh(module["body"][1](hidden)))


def as_onnx(module, dtype):
    name = {"float32": "float", "float64": "double"}[dtype]
    text = NETWORK.replace("T[", f"{name}[")
    for key, _ in module.named_parameters():
        text = text.replace(key, f'"{key}"')
    graph = onnx.parser.parse_model(text)
    for key, value in module.named_parameters():
        graph.graph.initializer.append(onnx.numpy_helper.from_array(value.detach().numpy(), key))
    return graph


def batches(dtype):
    random = np.random.default_rng(3)
    return [{"x": random.normal(size=(6, 2, 4, 4)).astype(dtype), "labels": random.normal(size=(6, 3)).astype(dtype)}
            for _ in range(BATCHES)]  # fmt: skip


# ---- References that PyTorch has not


class Rule(torch.optim.Optimizer):
    """An optimizer of one function: update(p, g, state, t, group), which writes p."""

    def __init__(self, params, update, **defaults):
        super().__init__(params, {"lr": RATE, "weight_decay": 0.0} | defaults)
        self.update = update

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                self.update(p, p.grad.clone(), state, state["t"], group)


def lion(p, g, state, t, group):
    m = state.setdefault("exp_avg", torch.zeros_like(p))
    p.mul_(1 - group["lr"] * group["weight_decay"])
    p.sub_(group["lr"] * torch.sign(0.9 * m + 0.1 * g))
    m.mul_(0.99).add_(0.01 * g)


def adan(p, g, state, t, group):
    """adan_single_tensor of the authors' program, github.com/sail-sg/Adan."""
    m, u, n = (state.setdefault(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_diff", "exp_avg_sq"))
    d = g + state.get("neg_pre_grad", -g)
    state["neg_pre_grad"] = -g
    m.mul_(0.98).add_(g, alpha=0.02)
    u.mul_(0.92).add_(d, alpha=0.08)
    n.mul_(0.99).add_((g + 0.92 * d) ** 2, alpha=0.01)
    root = n.sqrt() / (1 - 0.99**t) ** 0.5 + 1e-8
    decay = group["lr"] * group["weight_decay"]
    if group.get("no_prox"):
        p.mul_(1 - decay)
    p.sub_(group["lr"] / (1 - 0.98**t) * m / root).sub_(group["lr"] * 0.92 / (1 - 0.92**t) * u / root)
    if not group.get("no_prox"):
        p.div_(1 + decay)


def lamb(p, g, state, t, group):
    m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_sq"))
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.999).add_(0.001 * g * g)
    update = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + group["weight_decay"] * p
    if group["weight_decay"] or group.get("always_adapt"):
        update *= p.norm() / update.norm()
    p.sub_(group["lr"] * update)


def lars(p, g, state, t, group):
    decay = group["weight_decay"]
    if decay:
        ratio = 0.001 * p.norm() / (g.norm() + decay * p.norm() + 1e-8)
        g = (g + decay * p) * ratio
    state["momentum_buffer"] = g.clone() if t == 1 else 0.9 * state["momentum_buffer"] + g
    p.sub_(group["lr"] * (g + 0.9 * state["momentum_buffer"]))


def hf_adamw(p, g, state, t, group):
    """transformers.AdamW's step."""
    m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_sq"))
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    rate = group["lr"] * ((1 - 0.999**t) ** 0.5 / (1 - 0.9**t) if group["correct_bias"] else 1)
    p.addcdiv_(m, v.sqrt().add_(1e-6), value=-rate)
    p.add_(p, alpha=-group["lr"] * group["weight_decay"])


def dynamic_map(signed):
    """bitsandbytes' 256 numbers: create_dynamic_map of its functional.py."""
    numbers = [0.0, 1.0]
    for i in range(7):
        ends = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        means = 10.0 ** (i - 6) * (ends[:-1] + ends[1:]) / 2
        numbers += [*means, *(-means if signed else [])]
    return torch.tensor(sorted(numbers))


def adamw_8bit(p, g, state, t, group):
    """Its AdamW with block_wise, each number rounded to the next one of the map."""
    blocks = torch.nn.functional.pad(g.flatten(), (0, -g.numel() % 256)).view(-1, 256)
    moments = []
    for i, beta, x in (1, 0.9, blocks), (2, 0.999, blocks * blocks):
        numbers = dynamic_map(signed=i == 1).to(p)
        old = numbers[state[f"state{i}"].long()] * state[f"absmax{i}"] if t > 1 else 0
        moments.append(beta * old + (1 - beta) * x)
        most = state[f"absmax{i}"] = moments[-1].abs().amax(1, keepdim=True)
        shares = moments[-1] / torch.where(most > 0, most, 1)
        state[f"state{i}"] = (shares[..., None] - numbers).abs().argmin(-1).to(torch.uint8)
    m, v = moments
    update = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    p.mul_(1 - group["lr"] * group["weight_decay"])
    p.sub_(group["lr"] * update.flatten()[: p.numel()].view_as(p))


class Muon:
    """PyTorch's Muon for matrices and filters, AdamW for the rest; without rounding to bfloat16."""

    def __init__(self, params, monkeypatch):
        params = list(params)
        matrices = [p.detach().flatten(1) for p in params if p.dim() > 1]  # views
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        self.pairs = [(flat, p) for flat, p in zip(matrices, (p for p in params if p.dim() > 1))]
        self.muon = torch.optim.Muon(matrices, lr=RATE, weight_decay=0.125, adjust_lr_fn="match_rms_adamw")
        self.rest = torch.optim.AdamW([p for p in params if p.dim() <= 1], lr=RATE / 4, weight_decay=0.125)
        self.param_groups = []

    def step(self):
        for flat, p in self.pairs:
            flat.grad = p.grad.flatten(1).clone()
        self.muon.step()
        self.rest.step()


def torch_optimizer(name, **options):
    return lambda params, monkeypatch: getattr(torch.optim, name)(params, lr=RATE, **options)


def rule(update, **options):
    return lambda params, monkeypatch: Rule(params, update, **options)


CASES = {
    "sgd(momentum=0.9, nesterov=true, weight_decay=0.125)":
        torch_optimizer("SGD", momentum=0.9, nesterov=True, weight_decay=0.125),
    "adam(weight_decay=0.125)": torch_optimizer("Adam", weight_decay=0.125),
    "adam(amsgrad=true, weight_decay=0.125)": torch_optimizer("Adam", amsgrad=True, weight_decay=0.125),
    "adamw(amsgrad=true)": torch_optimizer("AdamW", amsgrad=True),
    "rmsprop(eps=0.01)": torch_optimizer("RMSprop", eps=0.01),
    "rmsprop(momentum=0.5, centered=true, alpha=0.9, eps=0.125, weight_decay=0.125)":
        torch_optimizer("RMSprop", momentum=0.5, centered=True, alpha=0.9, eps=0.125, weight_decay=0.125),
    "adagrad(lr_decay=0.125, initial_accumulator_value=0.5, weight_decay=0.125)":
        torch_optimizer("Adagrad", lr_decay=0.125, initial_accumulator_value=0.5, weight_decay=0.125),
    "adadelta(rho=0.8, weight_decay=0.125)": torch_optimizer("Adadelta", rho=0.8, weight_decay=0.125),
    "adamax(betas=(0.8, 0.99), weight_decay=0.125)":
        torch_optimizer("Adamax", betas=(0.8, 0.99), weight_decay=0.125),
    "nadam(weight_decay=0.125)": torch_optimizer("NAdam", weight_decay=0.125),
    "nadam(decoupled_weight_decay=true, weight_decay=0.125)":
        torch_optimizer("NAdam", weight_decay=0.125, decoupled_weight_decay=True),
    "radam(weight_decay=0.125)": torch_optimizer("RAdam", weight_decay=0.125),
    "radam(decoupled_weight_decay=true, weight_decay=0.125)":
        torch_optimizer("RAdam", weight_decay=0.125, decoupled_weight_decay=True),
    "adafactor(weight_decay=0.125)": torch_optimizer("Adafactor", weight_decay=0.125),
    "adafactor(eps=(0.0001, 0.01), d=2)": torch_optimizer("Adafactor", eps=(0.0001, 0.01), d=2),
    "hf_adamw(weight_decay=0.125)": rule(hf_adamw, weight_decay=0.125, correct_bias=True),
    "hf_adamw(correct_bias=false)": rule(hf_adamw, correct_bias=False),
    "lion(weight_decay=0.125)": rule(lion, weight_decay=0.125),
    "adan(weight_decay=0.125)": rule(adan, weight_decay=0.125),
    "adan(no_prox=true, weight_decay=0.125)": rule(adan, no_prox=True, weight_decay=0.125),
    "lamb(weight_decay=0.125)": rule(lamb, weight_decay=0.125),
    "lars(nesterov=true, weight_decay=0.125)": rule(lars, weight_decay=0.125),
    "adamw8bit(weight_decay=0.125, min_8bit_size=1)": rule(adamw_8bit, weight_decay=0.125),
    f"muon(weight_decay=0.125, adjust_lr_fn=match_rms_adamw, lr={RATE}, adamw_lr={RATE / 4})": Muon,
}  # fmt: skip


# ---- Curves


def train(training, dtype, steps=STEPS):
    session = onnx_train.Session(training)
    data = batches(dtype)
    for step in range(steps):
        session.step(data[step % BATCHES], lr=RATE)
    return session


def train_torch(module, make, dtype, monkeypatch, after_backward=lambda module: None, after_step=lambda module: None):
    optimizer = make(module.parameters(), monkeypatch)
    data = [{name: torch.from_numpy(value) for name, value in batch.items()} for batch in batches(dtype)]
    for step in range(STEPS):
        batch = data[step % BATCHES]
        module.zero_grad()
        torch.nn.functional.mse_loss(forward(module, batch["x"]), batch["labels"]).backward()
        after_backward(module)
        optimizer.step()
        after_step(module)
    return optimizer


def difference(ours, theirs):
    theirs = theirs.detach().numpy()
    return np.abs(ours.reshape(theirs.shape) - theirs).max() / max(np.abs(theirs).max(), 1e-3)


def compare(session, module, tolerance):
    errors = {name: difference(np.asarray(session.state[name]), p) for name, p in module.named_parameters()}
    assert max(errors.values()) <= tolerance, errors


@pytest.fixture
def network_of(request):
    """network_of(dtype): new types are made by default, since PyTorch keeps numbers such as NAdam's product in it."""
    before = torch.get_default_dtype()

    def make(dtype):
        torch.set_default_dtype(getattr(torch, dtype))
        return network()

    yield make
    torch.set_default_dtype(before)


@pytest.mark.parametrize("expression", CASES)
def test_weights_and_slots_are_those_of_the_reference(network_of, monkeypatch, expression):
    for dtype, tolerance in (("float64", 1e-9), ("float32", 2e-6)):
        if dtype == "float32" and expression.startswith("adamw8bit"):
            continue  # a moment between two numbers of 8 bits may become the other one
        module = network_of(dtype)
        training = onnx_train.build(as_onnx(module, dtype), "mse", expression, decay="*")
        session = train(training, dtype)
        optimizer = train_torch(module, CASES[expression], dtype, monkeypatch)
        compare(session, module, tolerance)
        if expression.startswith("muon"):
            continue
        for name, p in module.named_parameters():
            slots = {key: value for key, value in optimizer.state[p].items() if key not in ("step", "t")}
            ours = {port.role: port.name for port in session.states() if port.of == name}
            assert set(slots) - {"momentum_buffer"} <= set(ours), "the names of PyTorch's state"
            for key in set(slots) & set(ours):
                assert difference(np.asarray(session.state[ours[key]]), slots[key]) <= 100 * tolerance, (name, key)


# ---- What groups, clipping and averages do to an update


def test_groups_clipping_and_layer_decay_are_those_of_pytorch(network_of, monkeypatch):
    module = network_of("float64")
    training = onnx_train.build(
        as_onnx(module, "float64"), "mse", f"adamw(lr={RATE}, weight_decay=0.25)", layer_decay=0.5, clip=0.125,
        clip_value=0.0625, group=["*.bias: lr=4x, betas=(0.8, 0.99)", f"head.*: lr={RATE / 2}, weight_decay=0.5"],
    )  # fmt: skip
    session = train(training, "float64")

    def groups(parameters, _):
        settings = {  # layers: body.0, body.1, head
            "body.0.weight": {"lr": RATE / 4, "weight_decay": 0.25},
            "body.0.bias": {"lr": RATE, "weight_decay": 0.0, "betas": (0.8, 0.99)},
            "body.1.weight": {"lr": RATE / 2, "weight_decay": 0.25},
            "body.1.bias": {"lr": RATE * 2, "weight_decay": 0.0, "betas": (0.8, 0.99)},
            "head.weight": {"lr": RATE / 2, "weight_decay": 0.5},
            "head.bias": {"lr": RATE / 2, "weight_decay": 0.5, "betas": (0.8, 0.99)},
        }
        return torch.optim.AdamW([{"params": [p], **settings[name]} for name, p in module.named_parameters()])

    def clip(module):
        torch.nn.utils.clip_grad_value_(module.parameters(), 0.0625)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.125)

    train_torch(module, groups, "float64", monkeypatch, after_backward=clip)
    compare(session, module, 1e-9)
    assert training.metadata["onnx_train.groups"].startswith('["*.bias: lr=4x')


@pytest.mark.parametrize("accumulate", [False, True])
def test_an_average_of_the_weights_is_what_inference_reads(network_of, monkeypatch, tmp_path, accumulate):
    module = network_of("float64")
    training = onnx_train.build(as_onnx(module, "float64"), "mse", "sgd(momentum=0.9)", ema=0.875, accumulate=accumulate)
    session = onnx_train.Session(training)
    data = batches("float64")
    for step in range(STEPS):
        if accumulate:
            session.accumulate(data[step % BATCHES])
            session.apply(lr=RATE)
        else:
            session.step(data[step % BATCHES], lr=RATE)
    average = torch.optim.swa_utils.AveragedModel(
        module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.875)
    )
    train_torch(module, torch_optimizer("SGD", momentum=0.9), "float64", monkeypatch,
                after_step=average.update_parameters)  # fmt: skip
    compare(session, average.module, 1e-9)
    for name, p in module.named_parameters():
        assert difference(np.asarray(session.state[f"raw/{name}"]), p) <= 1e-9, "training goes on from the raw weights"
    batch = data[0]
    want = forward(average.module, torch.from_numpy(batch["x"])).detach().numpy()
    np.testing.assert_allclose(session.predict({"x": batch["x"]})["y"], want, rtol=1e-9, atol=1e-12)
    loss = np.square(want - batch["labels"]).mean()
    np.testing.assert_allclose(session.evaluate(batch).loss, loss, rtol=1e-9)
    session.save(tmp_path / "checkpoint.onnx")
    inference = onnx_train.load(tmp_path / "checkpoint.onnx").export()
    served = onnx_train.Session(inference).predict({"x": batch["x"]})["y"]  # ONNX Runtime has no Conv of doubles
    np.testing.assert_allclose(served, want, rtol=1e-9, atol=1e-12)
    assert not any("raw/" in t.name for t in inference.to_onnx().graph.initializer)


@pytest.mark.parametrize("start, every", [(1, 1), (5, 3)])
def test_the_mean_of_the_weights_is_that_of_stochastic_weight_averaging(network_of, monkeypatch, start, every):
    module = network_of("float64")
    training = onnx_train.build(as_onnx(module, "float64"), "mse", "sgd(momentum=0.9)", swa=start, swa_every=every)
    session = onnx_train.Session(training)
    for step in range(STEPS):
        session.step(batches("float64")[step % BATCHES], lr=RATE)
        if step + 1 < start:
            assert all(np.array_equal(session.state[name], session.state[f"raw/{name}"])
                       for name, _ in module.named_parameters())  # fmt: skip
    average = torch.optim.swa_utils.AveragedModel(module)
    steps = iter(range(1, STEPS + 1))

    def after_step(trained):
        step = next(steps)
        if step >= start and (step - start) % every == 0:
            average.update_parameters(trained)

    train_torch(module, torch_optimizer("SGD", momentum=0.9), "float64", monkeypatch, after_step=after_step)
    compare(session, average.module, 1e-9)
    assert training.metadata["onnx_train.swa"] == (f"{start},{every}" if every > 1 else str(start))
    with pytest.raises(onnx_train.UsageError, match="give one"):
        onnx_train.build(as_onnx(module, "float64"), "mse", ema=0.9, swa=3)


def test_schedule_free_trains_y_and_evaluates_x(network_of):
    module = network_of("float64")
    training = onnx_train.build(as_onnx(module, "float64"), "mse", "schedule_free(weight_decay=0.125)", decay="*")
    session = train(training, "float64")
    parameters = list(module.parameters())
    z, v = [p.detach().clone() for p in parameters], [torch.zeros_like(p) for p in parameters]
    total = 0.0
    for step in range(STEPS):  # schedulefree.AdamWScheduleFree in training: the parameters are y
        batch = {name: torch.from_numpy(value) for name, value in batches("float64")[step % BATCHES].items()}
        module.zero_grad()
        torch.nn.functional.mse_loss(forward(module, batch["x"]), batch["labels"]).backward()
        total += RATE**2
        share = RATE**2 / total
        with torch.no_grad():
            for y, z_of, v_of in zip(parameters, z, v):
                v_of.mul_(0.999).add_(0.001 * y.grad**2)
                g = y.grad / ((v_of / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8) + 0.125 * y
                y.lerp_(z_of, share).add_(g, alpha=RATE * (0.9 * (1 - share) - 1))
                z_of.sub_(RATE * g)
    for (name, y), z_of in zip(module.named_parameters(), z):
        assert difference(np.asarray(session.state[f"raw/{name}"]), y) <= 1e-9
        assert difference(np.asarray(session.state[name]), y + (1 - 1 / 0.9) * (z_of - y)) <= 1e-9


def test_raw_weights_begin_as_those_that_are_drawn():
    training = onnx_train.build(tool.ROOT / "tests" / "fixtures" / "mlp.onnx", optimizer="sgd", ema=0.9, init="kaiming")
    session = onnx_train.Session(training)
    session.initialize(seed=3)
    assert np.ptp(session.state["fc1.weight"]) > 0
    np.testing.assert_array_equal(session.state["raw/fc1.weight"], session.state["fc1.weight"])


# ---- Elsewhere


@pytest.mark.parametrize("expression, average", [*((expression, {}) for expression in [*CASES, "schedule_free"]),
                                                 ("sgd", {"ema": 0.5}), ("sgd", {"swa": 2, "swa_every": 2})])  # fmt: skip
def test_a_flattened_step_runs_on_onnx_runtime(network_of, expression, average):
    module = network_of("float32")
    training = onnx_train.build(as_onnx(module, "float32"), "mse", expression, clip_value=0.5, **average)
    flat = training.flatten("step")
    import onnxruntime

    runtime = onnxruntime.InferenceSession(flat.to_bytes(), providers=["CPUExecutionProvider"])
    names = [output.name for output in runtime.get_outputs()]
    session = onnx_train.Session(training)
    state = {name: np.array(value) for name, value in session.state.items()}
    batch = batches("float32")[0]
    for _ in range(4 if average else 2):
        results = dict(zip(names, runtime.run(None, batch | {"learning_rate": np.array(RATE, np.float32)} | state)))
        state = {name: results[f"next/{name}"] for name in state}
        session.step(batch, lr=RATE)
    for name, value in state.items():
        scale = max(np.abs(value).max(), 1e-3)
        assert np.abs(session.state[name] - value).max() <= 1e-5 * scale, name


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_moments_of_8_bits_go_through_a_checkpoint(network_of, tmp_path, precision):
    """fp16 has loss scaling, which may skip an update."""
    module = network_of("float32")
    expression = "adamw8bit(min_8bit_size=1)"
    training = onnx_train.build(as_onnx(module, "float32"), "mse", expression, precision=precision)
    whole, first = train(training, "float32", steps=6), train(training, "float32", steps=3)
    first.save(tmp_path / "checkpoint.onnx")
    second = onnx_train.Session(onnx_train.load(tmp_path / "checkpoint.onnx"))
    data = batches("float32")
    for step in range(3, 6):
        second.step(data[step % BATCHES], lr=RATE)
    assert whole.state["state/body.1.weight/state1"].dtype == np.uint8
    for name, value in whole.state.items():
        np.testing.assert_array_equal(second.state[name], value, err_msg=name)
    reference = train(onnx_train.build(as_onnx(module, "float32"), "mse", "adamw"), "float32", steps=6)
    apart = np.linalg.norm(whole.state["body.1.weight"] - reference.state["body.1.weight"])
    moved = np.linalg.norm(reference.state["body.1.weight"] - module["body"][1].weight.detach().numpy())
    assert 0 < apart < 0.1 * moved


def test_every_optimizer_is_an_object_too():
    from onnx_train import optimizers

    kinds = [kind for kind in vars(optimizers).values()
             if isinstance(kind, type) and issubclass(kind, optimizers.Optimizer) and kind is not optimizers.Optimizer]  # fmt: skip
    names = {str(kind()) for kind in kinds}
    with pytest.raises(onnx_train.UsageError) as error:
        onnx_train.build(tool.ROOT / "tests" / "fixtures" / "mlp.onnx", optimizer="none")
    assert names == set(re.search("there is (sgd[^;]*)", str(error.value))[1].split(", "))
