"""Every loss of the table with each of its options, against PyTorch in float64: value and gradients; what counts; the
flattened step on ONNX Runtime; CUDA's kernels on the host."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
import tool
import torch
from onnx import TensorProto, helper
from torch.nn import functional as F

import onnx_train

N, C, D = 6, 4, 5



@dataclass
class Case:
    expression: str
    shapes: list  # of the predictions y0, y1, ..., which are x0 + w0, x1 + w1, ...
    theirs: Callable  # (predictions..., others...) -> loss of each position, or the loss
    others: dict = field(default_factory=dict)
    make: Callable = lambda x: x  # from what is drawn in [-2, 2] to the predictions' range
    counts: Callable = None  # (others...) -> whether each position counts; all do

    @property
    def loss(self):
        return self.expression.split("(")[0]


def draw(*shape, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape)


def indices(*shape, classes=C, ignored=None, seed=1):
    chosen = np.random.default_rng(seed).integers(0, classes, shape)
    if ignored is not None:
        chosen.reshape(-1)[::3] = ignored
    return chosen


def signs(*shape):
    return np.where(draw(*shape, seed=5) > 0, 1.0, -1.0)


LABELS = dict(labels=indices(N, ignored=-100))
PIXELS = dict(labels=indices(2, 3, 5, ignored=7))
TARGET = dict(target=draw(N, C, low=0, high=1, seed=4))
RATES = dict(target=np.random.default_rng(3).poisson(2.0, (N, C)).astype(float))
PAIR = [(N, D), (N, D)]
LIST = [1, 2, 0.5, 0.25]
WEIGHTS = torch.tensor(LIST, dtype=torch.float64)
LOG = lambda x: torch.log_softmax(x, 1)  # noqa: E731


def focal(x, y, gamma, w=torch.ones(C, dtype=torch.float64), ignore=-100):
    log_p = torch.log_softmax(x, 1)
    kept = torch.where(y == ignore, 0, y)
    own = log_p.gather(1, kept[:, None])[:, 0]
    losses = -w[kept] * (1 - own.exp()) ** gamma * own
    counted = y != ignore
    return losses[counted].sum() / w[y[counted]].sum()


def sigmoid_focal(x, t, alpha, gamma):
    """torchvision.ops.sigmoid_focal_loss, which is not installed here."""
    p = torch.sigmoid(x)
    losses = F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - (p * t + (1 - p) * (1 - t))) ** gamma
    return losses * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else losses


def dice(x, y, smooth=1e-5, ignore=None, sigmoid=False):
    """MONAI's DiceLoss with softmax and one-hot labels, of each sample."""
    if sigmoid:
        p, t = torch.sigmoid(x), y
    else:
        counted = torch.ones_like(y, dtype=bool) if ignore is None else y != ignore
        p = torch.softmax(x, 1) * counted[:, None]
        t = F.one_hot(torch.where(counted, y, 0), x.shape[1]).movedim(-1, 1).to(x) * counted[:, None]
    p, t = p.flatten(2), t.flatten(2)
    return (1 - (2 * (p * t).sum(2) + smooth) / (p.sum(2) + t.sum(2) + smooth)).mean(1)


def multi_margin(x, y, **options):
    return F.multi_margin_loss(x, y, reduction="none", **options)


def distill(x, teacher, temperature):
    divergence = F.kl_div(torch.log_softmax(x / temperature, 1), torch.softmax(teacher / temperature, 1), reduction="none")
    return divergence.sum(1) * temperature**2


def dpo(chosen, rejected, reference_chosen, reference_rejected, beta, smoothing=0.0, kind="sigmoid"):
    m = beta * ((chosen - rejected) - (reference_chosen - reference_rejected))
    if kind == "hinge":
        return torch.relu(1 - m)
    if kind == "ipo":
        return (m / beta - 1 / (2 * beta)) ** 2
    if kind == "robust":
        return (-F.logsigmoid(m) * (1 - smoothing) + F.logsigmoid(-m) * smoothing) / (1 - 2 * smoothing)
    return -F.logsigmoid(m) * (1 - smoothing) - F.logsigmoid(-m) * smoothing


def info_nce(a, b, temperature, symmetric=True, normalize=True):
    if normalize:
        a, b = F.normalize(a), F.normalize(b)
    logits, own = a @ b.T / temperature, torch.arange(len(a))
    losses = F.cross_entropy(logits, own, reduction="none")
    return (losses + F.cross_entropy(logits.T, own, reduction="none")) / 2 if symmetric else losses


def nt_xent(a, b, temperature, normalize=True):
    z = torch.cat([a, b])
    z = F.normalize(z) if normalize else z
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=bool), -torch.inf)
    own = torch.arange(len(a))
    return F.cross_entropy(logits, torch.cat([own + len(a), own]), reduction="none").reshape(2, -1).mean(0)


STEPS = 7
SPEECH = dict(labels=np.array([[1, 2, 2], [3, 1, -9], [2, -9, -9]]), input_lengths=np.array([7, 6, 4]),
              target_lengths=np.array([3, 2, 0]))  # fmt: skip
SHORT = SPEECH | dict(input_lengths=np.array([3, 6, 4]))  # a repeated label needs a blank in between: 4 steps


def ctc(blank=0, time=0, **options):
    def loss(x, labels, input_lengths, target_lengths):
        log_p = torch.log_softmax(x if time == 0 else x.transpose(0, 1), 2)
        return F.ctc_loss(log_p, labels.clamp(min=0), input_lengths, target_lengths, blank, **options)

    return loss


def positive(x):
    return np.abs(x) + 0.1


CASES = [
    Case("cross_entropy(y0, labels, weight=[1, 2, 0.5, 0.25])", [(N, C)],
         lambda x, y: F.cross_entropy(x, y, WEIGHTS), LABELS),
    Case("cross_entropy(y0, labels, weight=[1, 2, 0.5, 0.25], label_smoothing=0.2, axis=1, ignore_index=7)", [(2, C, 3, 5)],
         lambda x, y: F.cross_entropy(x, y, WEIGHTS, ignore_index=7, label_smoothing=0.2), PIXELS),
    Case("cross_entropy(y0, target, probabilities=true, weight=[1, 2, 0.5, 0.25], reduction=sum)", [(N, C)],
         lambda x, t: F.cross_entropy(x, t, WEIGHTS, reduction="sum"), TARGET),
    Case("nll(y0, labels, weight=[1, 2, 0.5, 0.25], axis=1, ignore_index=7)", [(2, C, 3, 5)],
         lambda x, y: F.nll_loss(x, y, WEIGHTS, ignore_index=7), PIXELS),
    Case("nll(y0, labels, log=true)", [(N, C)],
         lambda x, y: F.nll_loss(x.log(), y), LABELS, positive),
    Case("focal(y0, labels)", [(N, C)], lambda x, y: focal(x, y, 2), LABELS),
    Case("focal(y0, labels, gamma=0.5, weight=[1, 2, 0.5, 0.25])", [(N, C)], lambda x, y: focal(x, y, 0.5, WEIGHTS), LABELS),
    Case("focal(y0, labels, gamma=0, axis=1, ignore_index=7)", [(2, C, 3, 5)],
         lambda x, y: F.cross_entropy(x, y, ignore_index=7), PIXELS),
    Case("multi_margin(y0, labels)", [(N, C)], multi_margin, dict(labels=indices(N))),
    Case("multi_margin(y0, labels, p=2, margin=0.7, weight=[1, 2, 0.5, 0.25], axis=1)", [(N, C)],
         lambda x, y: multi_margin(x, y, p=2, margin=0.7, weight=WEIGHTS), dict(labels=indices(N))),
    Case("multi_margin(y0, labels, ignore_index=0)", [(N, C)], lambda x, y: multi_margin(x, y)[y != 0],
         dict(labels=indices(N))),
    Case("dice(y0, labels, axis=1, ignore_index=7)", [(2, C, 3, 5)], lambda x, y: dice(x, y, ignore=7), PIXELS),
    Case("dice(y0, labels, smooth=0.5)", [(2, 6, 3)], lambda x, y: dice(x.transpose(1, 2), y, 0.5),
         dict(labels=indices(2, 6, classes=3))),
    Case("dice(y0, masks, sigmoid=true)", [(2, C, 3, 5)], lambda x, t: dice(x, t, sigmoid=True),
         dict(masks=np.round(draw(2, C, 3, 5, low=0, high=1)))),
    Case("bce_with_logits(y0, target, weight=w, pos_weight=p)", [(N, C)],
         lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=p),
         TARGET | dict(w=draw(N, C, low=0.1, seed=5), p=draw(C, low=0.5, seed=6))),
    Case("mse(y0, target)", [(N, C)], F.mse_loss, TARGET),
    Case("l1(y0, target)", [(N, C)], F.l1_loss, TARGET),
    Case("huber(y0, target, delta=0.3)", [(N, C)], lambda x, t: F.huber_loss(x, t, delta=0.3), TARGET),
    Case("smooth_l1(y0, target)", [(N, C)], F.smooth_l1_loss, TARGET),
    Case("smooth_l1(y0, target, beta=0.4)", [(N, C)], lambda x, t: F.smooth_l1_loss(x, t, beta=0.4), TARGET),
    Case("smooth_l1(y0, target, beta=0)", [(N, C)], F.l1_loss, TARGET),
    Case("sigmoid_focal(y0, target)", [(N, C)], lambda x, t: sigmoid_focal(x, t, 0.25, 2), TARGET),
    Case("sigmoid_focal(y0, target, alpha=-1, gamma=1.5, reduction=sum)", [(N, C)],
         lambda x, t: sigmoid_focal(x, t, -1, 1.5).sum(), TARGET),
    Case("hinge(y0, target)", [(N, C)], lambda x, t: (1 - t * x).clamp(min=0), dict(target=signs(N, C))),
    Case("hinge(y0, target, p=2, margin=0.5)", [(N, C)], lambda x, t: (0.5 - (2 * t - 1) * x).clamp(min=0) ** 2,
         dict(target=(signs(N, C) + 1) / 2)),
    Case("hinge_embedding(y0, target, margin=0.5)", [(N, C)], lambda x, t: F.hinge_embedding_loss(x, t, 0.5),
         dict(target=signs(N, C))),
    Case("kl_div(y0, target)", [(N, C)], lambda x, t: F.kl_div(x, t, reduction="none"),
         dict(target=TARGET["target"] * (TARGET["target"] > 0.2))),
    Case("kl_div(y0, target, log_target=true, reduction=batchmean)", [(N, C, 2)],
         lambda x, t: F.kl_div(x, t, log_target=True, reduction="batchmean"), dict(target=draw(N, C, 2, seed=9))),
    Case("distill(y0, teacher, temperature=4)", [(N, C)], lambda x, t: distill(x, t, 4), dict(teacher=draw(N, C, seed=8))),
    Case("distill(y0, y1, axis=1)", [(2, C, 3), (2, C, 3)], lambda x, t: distill(x, t, 2)),
    Case("poisson_nll(y0, target)", [(N, C)], F.poisson_nll_loss, RATES),
    Case("poisson_nll(y0, target, log_input=false, full=true, eps=0.01)", [(N, C)],
         lambda x, t: F.poisson_nll_loss(x, t, log_input=False, full=True, eps=0.01), RATES, positive),
    Case("gaussian_nll(y0, y1, target, full=true)", [(N, C), (N, C)],
         lambda x, v, t: F.gaussian_nll_loss(x, t, v, full=True), TARGET, positive),
    Case("gaussian_nll(y0, y1, target, eps=0.8)", [(N, C), (N, 1)],
         lambda x, v, t: F.gaussian_nll_loss(x, t, v, eps=0.8), TARGET, positive),
    Case("dpo(y0, y1, reference_chosen, reference_rejected)", [(N,), (N,)], lambda *a: dpo(*a, 0.1),
         dict(reference_chosen=draw(N, seed=2), reference_rejected=draw(N, seed=3))),
    Case("dpo(y0, y1, y2, y3, beta=0.5, label_smoothing=0.2)", [(N,)] * 4, lambda *a: dpo(*a, 0.5, 0.2)),
    Case("dpo(y0, y1, y2, y3, loss_type=hinge, beta=0.5)", [(N,)] * 4, lambda *a: dpo(*a, 0.5, kind="hinge")),
    Case("dpo(y0, y1, y2, y3, loss_type=ipo)", [(N,)] * 4, lambda *a: dpo(*a, 0.1, kind="ipo")),
    Case("dpo(y0, y1, y2, y3, loss_type=robust, label_smoothing=0.3)", [(N,)] * 4, lambda *a: dpo(*a, 0.1, 0.3, "robust")),
    Case("dpo(y0, y1, reference_free=true, beta=0.5)", [(N,)] * 2, lambda a, b: dpo(a, b, 0, 0, 0.5)),
    Case("triplet_margin(y0, y1, y2)", PAIR + [(N, D)], F.triplet_margin_loss),
    Case("triplet_margin(y0, y1, y2, margin=3, p=1, swap=true)", PAIR + [(N, D)],
         lambda *a: F.triplet_margin_loss(*a, margin=3, p=1, swap=True)),
    Case("triplet_margin(y0, y1, y2, p=3, eps=0.001)", PAIR + [(N, D)],
         lambda *a: F.triplet_margin_loss(*a, p=3, eps=0.001)),
    Case("cosine_embedding(y0, y1, target, margin=0.1)", PAIR, lambda a, b, t: F.cosine_embedding_loss(a, b, t, 0.1),
         dict(target=signs(N))),
    Case("cosine(y0, target)", [(N, D)], lambda x, t: 1 - F.cosine_similarity(x, t), dict(target=draw(N, D, seed=7))),
    Case("margin_ranking(y0, y1, target, margin=0.2)", [(N,), (N,)], lambda a, b, t: F.margin_ranking_loss(a, b, t, 0.2),
         dict(target=signs(N))),
    Case("info_nce(y0, y1)", PAIR, lambda a, b: info_nce(a, b, 0.07)),
    Case("info_nce(y0, y1, temperature=t, symmetric=false, normalize=false)", PAIR,
         lambda a, b, t: info_nce(a, b, t, False, False), dict(t=np.array(0.5))),
    Case("nt_xent(y0, y1)", PAIR, lambda a, b: nt_xent(a, b, 0.5)),
    Case("nt_xent(y0, y1, temperature=0.2, normalize=false)", PAIR, lambda a, b: nt_xent(a, b, 0.2, False)),
    Case("ctc(y0, labels, input_lengths, target_lengths)", [(STEPS, 3, 4)], ctc(), SPEECH),
    Case("ctc(y0, labels, input_lengths, target_lengths, time=1, blank=3, zero_infinity=true)", [(3, STEPS, 4)],
         ctc(3, time=1, zero_infinity=True), SHORT | dict(labels=np.array([[1, 2, 2], [0, 1, -9], [2, -9, -9]]))),
]  # fmt: skip
IDS = [case.expression for case in CASES]


def network(shapes, batch=None, dtype=TensorProto.DOUBLE):
    """y_k = x_k + w_k for zeros w_k; the first axis of every input is named `batch` where that is given."""
    nodes, inputs, outputs, weights = [], [], [], []
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    for k, shape in enumerate(shapes):
        shape = (batch, *shape[1:]) if batch else shape
        inputs.append(helper.make_tensor_value_info(f"x{k}", dtype, shape))
        outputs.append(helper.make_tensor_value_info(f"y{k}", dtype, shape))
        weights.append(onnx.numpy_helper.from_array(np.zeros(shape[-1] if len(shape) > 1 else 1, numpy_type), f"w{k}"))
        nodes.append(helper.make_node("Add", [f"x{k}", f"w{k}"], [f"y{k}"]))
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def predictions(case):
    return {f"x{k}": case.make(draw(*shape, seed=10 + k)) for k, shape in enumerate(case.shapes)}


def ours(case, x, others, expression=None, batch=None):
    weights = [f"w{k}" for k in range(len(case.shapes))]
    model = network(case.shapes, batch)
    function = onnx_train.value_and_grad(model, expression or case.expression, dtype="float64", threads=1, train=weights)
    return function(x | others)


def theirs(case, x, others):
    tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in x.items()}
    loss = case.theirs(*tensors.values(), *map(torch.from_numpy, map(np.asarray, others.values()))).mean()
    loss.backward()
    return loss.item(), {name: tensor.grad.numpy() for name, tensor in tensors.items()}


def expect_equal(found, expected, tolerance=1e-9):
    (value, gradients), (their_value, their_gradients) = found, expected
    np.testing.assert_allclose(value, their_value, rtol=tolerance, atol=tolerance)
    for name, gradient in their_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=tolerance, atol=tolerance, err_msg=name)


def by_command(case, x, folder):
    """What `onnx-train grad` gives: the gradients of the training step."""
    onnx.save(network(case.shapes), folder / "model.onnx")
    arrays, out = tool.save(folder / "inputs.npz", x | case.others), folder / "out.npz"
    weights = ",".join(f"w{k}" for k in range(len(case.shapes)))
    tool.run("grad", folder / "model.onnx", "--inputs", arrays, "--loss", case.expression, "-o", out, "--train", weights)
    found = tool.load(out)
    return found["loss"], {name.removeprefix("grad_input/"): value for name, value in found.items()}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_value_and_gradients_are_those_of_pytorch(case, tmp_path):
    x = predictions(case)
    # A variance below eps keeps its slope by StopGradient, which value_and_grad does not see: it differentiates the
    # flattened evaluation, whose functions are inlined.
    found = by_command(case, x, tmp_path) if "eps=0.8" in case.expression else ours(case, x, case.others)
    expect_equal(found, theirs(case, x, case.others))


def reference():
    """{loss: its options} of docs/losses.md, whose reference a test compares with the table."""
    text = (tool.ROOT / "docs" / "losses.md").read_text()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    return {section.split("\n")[0]: re.findall(r"^- `(\w+)`:", section, re.MULTILINE) for section in sections}


def test_every_loss_and_option_has_a_case():
    for loss, options in reference().items():
        used = " ".join(case.expression for case in CASES if case.loss == loss)
        assert used, loss
        assert not [option for option in options if f"{option}=" not in used], loss
    assert len(reference()) > 20


# One case of each loss, with what its arrays are for other numbers of samples.
FIRST = {case.loss: case for case in reversed(CASES)}
ROWS = list(FIRST)


def of_samples(case, arrays, rows):
    """The rows of what has the samples as its first axis."""
    axis = 1 if case.loss == "ctc" else 0
    count = case.shapes[0][axis]
    result = {}
    for name, value in arrays.items():
        value = np.asarray(value)
        on = axis if name.startswith("x") else 0
        result[name] = value.take(rows, on) if value.ndim and value.shape[on] == count else value
    return result


# The first axis of ctc are the steps. The accuracy of images takes an ArgMax along an inner axis, for which there is no
# kernel without samples.
@pytest.mark.parametrize("loss", [loss for loss in ROWS if loss not in ("ctc", "dice", "nll")])
def test_an_empty_batch_has_the_loss_0(loss):
    case = FIRST[loss]
    x, others = (of_samples(case, arrays, []) for arrays in (predictions(case), case.others))
    value, gradients = ours(case, x, others, batch="batch")
    assert value == 0 and all(not gradients[name].size for name in x)
    assert all(np.all(gradients[f"w{k}"] == 0) for k in range(len(case.shapes)) if f"w{k}" in gradients)


@pytest.mark.parametrize("loss", ["cross_entropy", "nll", "focal", "multi_margin", "dice"])
@pytest.mark.parametrize("weighted", [False, True])
def test_labels_that_are_all_ignored_have_the_loss_0_and_no_gradient(loss, weighted):
    case = Case(loss, [(2, C, 3)], None)
    expression = f"{loss}(y0, labels, axis=1{', sample_weight=s' * weighted})"
    others = dict(labels=np.full((2, 3), -100)) | (dict(s=np.ones(2)) if weighted else {})
    x = dict(x0=np.where(draw(2, C, 3) > 1, -np.inf, 0.5))
    value, gradients = ours(case, x, others, expression)
    assert value == 0 and np.all(gradients["x0"] == 0)


@pytest.mark.parametrize("loss", ROWS)
def test_nan_is_not_hidden(loss):
    case = FIRST[loss]
    for k in range(len(case.shapes)):
        x = predictions(case)
        np.moveaxis(x[f"x{k}"], *(1, 0) if loss == "ctc" else (0, 0))[-2 if loss == "ctc" else -1] = np.nan
        assert np.isnan(ours(case, x, case.others)[0]), f"x{k}"


@pytest.mark.parametrize("loss", [loss for loss in ROWS if loss not in ("info_nce", "nt_xent")])
def test_a_sample_counts_as_often_as_its_weight_says(loss):
    """A weight of 2 is a sample that is there twice, one of 0 a sample that is not there."""
    case = FIRST[loss]
    count = case.shapes[0][1 if loss == "ctc" else 0]
    weights = np.arange(count) % 3
    rows = np.repeat(np.arange(count), weights)
    arrays = predictions(case), case.others
    x, others = (of_samples(case, a, rows) for a in arrays)
    plain = case.expression.replace(", reduction=batchmean", "")
    repeated = Case(plain, [x[f"x{k}"].shape for k in range(len(case.shapes))], None)
    expected, their_gradients = ours(repeated, x, others)
    value, gradients = ours(case, arrays[0], arrays[1] | dict(s=weights.astype(float)), plain[:-1] + ", sample_weight=s)")
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    axis = 1 if loss == "ctc" else 0
    for name in arrays[0]:
        sums = np.zeros_like(gradients[name])
        np.add.at(np.moveaxis(sums, axis, 0), rows, np.moveaxis(their_gradients[name], axis, 0))
        np.testing.assert_allclose(gradients[name], sums, rtol=1e-9, atol=1e-12)


def test_sums_are_sums():
    """reduction=sum is the mean times what it is over."""
    for loss, over in dict(dice=2, hinge=N * C, info_nce=N, triplet_margin=N, distill=N).items():
        case = FIRST[loss]
        x = predictions(case)
        mean, total = (ours(case, x, case.others, case.expression[:-1] + end)[0] for end in (")", ", reduction=sum)"))
        assert total == pytest.approx(over * mean, rel=1e-12), loss


def single(array):
    return array.astype(np.float32) if array.dtype == np.float64 else array


@pytest.mark.parametrize("loss", ROWS)
def test_the_flattened_step_runs_on_onnx_runtime(loss, tmp_path):
    import onnxruntime

    case = FIRST[loss]
    weights = [f"w{k}" for k in range(len(case.shapes))]
    model = onnx_train.build(network(case.shapes, dtype=TensorProto.FLOAT), case.expression, "sgd", train=weights)
    arrays = {name: single(np.asarray(value)) for name, value in (predictions(case) | case.others).items()}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    runtime = onnxruntime.InferenceSession(model.flatten("step").to_bytes(), options, providers=["CPUExecutionProvider"])
    state = {f"w{k}": np.zeros(shape[-1] if len(shape) > 1 else 1, np.float32) for k, shape in enumerate(case.shapes)}
    feeds = arrays | state | {"learning_rate": np.array(1, np.float32), "state/step": np.array(0)}
    names = [output.name for output in runtime.get_outputs()]
    wanted = [i.name for i in (*runtime.get_inputs(), *runtime.get_overridable_initializers())]
    found = dict(zip(names, runtime.run(names, {name: feeds[name] for name in wanted if name in feeds})))
    session = onnx_train.Session(model, threads=1)
    result = session.step(arrays, lr=1.0)
    np.testing.assert_allclose(found["loss"], result.loss, rtol=2e-5)
    for weight in weights:
        if f"next/{weight}" in names:
            np.testing.assert_allclose(found[f"next/{weight}"], session.state[weight], rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ROWS)
def test_cuda_on_the_host_computes_the_same(loss, tmp_path):
    case = FIRST[loss]
    onnx.save(network(case.shapes), tmp_path / "model.onnx")
    arrays = tool.save(tmp_path / "inputs.npz", predictions(case) | case.others)
    weights = ",".join(f"w{k}" for k in range(len(case.shapes)))
    results = {}
    tool.run("grad", tmp_path / "model.onnx", "--inputs", arrays, "--loss", case.expression, "-o", tmp_path / "cuda.npz",
             "--device", "cuda", "--dtype", "float64", "--train", weights, command=tool.CUDA_ON_HOST)  # fmt: skip
    results = tool.load(tmp_path / "cuda.npz")
    expected, gradients = ours(case, predictions(case), case.others)
    np.testing.assert_allclose(results["loss"], expected, rtol=1e-9)
    for name in set(gradients) - set(case.others):  # the command has no gradients of what the loss alone reads
        key = f"grad_input/{name}" if name.startswith("x") else f"grad/{name}"
        np.testing.assert_allclose(results[key], gradients[name], rtol=1e-8, atol=1e-12)


def test_a_teacher_runs_in_the_step_and_is_not_exported(tmp_path):
    """Loss and gradient are PyTorch's; the step runs on ONNX Runtime; the inference model knows nothing of the teacher."""
    weight = draw(C, 3, seed=20)
    x, y = draw(N, C, seed=21), indices(N, classes=3)
    nodes = [helper.make_node("MatMul", ["x0", "v"], ["logits"])]
    ports = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ("rows", C)),
             helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("rows", 3))]  # fmt: skip
    weights = [onnx.numpy_helper.from_array(weight.astype(np.float32), "v")]
    graph = helper.make_graph(nodes, "t", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "t.onnx")
    student = network([(N, C)], "batch", TensorProto.FLOAT)
    student.graph.node.append(helper.make_node("MatMul", ["y0", "u"], ["logits"]))
    student.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((C, 3), np.float32), "u"))
    student.graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("batch", 3)))
    expression = "0.5*cross_entropy(logits, labels) + 0.5*distill(logits, teacher.logits, temperature=4)"
    model = onnx_train.build(student, expression, "sgd", train="u", dtype="float64", teacher=str(tmp_path / "t.onnx"))
    session = onnx_train.Session(model, threads=1)
    loss = session.step({"x0": x, "labels": y}, lr=1.0).loss
    u = torch.ones(C, 3, dtype=torch.float64, requires_grad=True)
    logits, teacher = torch.from_numpy(x) @ u, torch.from_numpy(x @ weight.astype(np.float32).astype(float))
    expected = 0.5 * F.cross_entropy(logits, torch.from_numpy(y)) + 0.5 * distill(logits, teacher, 4).mean()
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-9)
    np.testing.assert_allclose(session.state["u"], 1 - u.grad.numpy(), rtol=1e-6)
    exported = model.export().to_onnx()
    assert {t.name for t in exported.graph.initializer} == {"w0", "u"} and not exported.functions
    assert [node.op_type for node in exported.graph.node] == ["Add", "MatMul"]
