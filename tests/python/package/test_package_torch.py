"""The module for PyTorch: gradients and curves are PyTorch's, parameters are PyTorch's tensors."""

import concurrent.futures
import copy
import io
import pickle

import numpy as np
import onnx
import pytest
import reference
import tool
import torch
import networks
from torch.nn import functional as F

import onnx_train
from onnx_train.torch import Module  # noqa: E402

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"


def by_value(module, theirs):
    """Our parameters by the names of PyTorch's module, and whether the exporter has transposed them."""
    found = {}
    for name, parameter in theirs.named_parameters():
        for ours in module.parameters():
            for transposed in (False, True)[: ours.dim()]:
                value = ours.T if transposed and ours.dim() == 2 else ours
                same = value.shape == parameter.shape and torch.equal(value.double(), parameter.double())
                if same and name not in found:
                    found[name] = ours, transposed
    return found


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "bert", "lstm", "unet"])
def test_gradients_are_those_of_pytorch(exported, name, mode):
    example, path = exported(name, double=True)
    expected = reference.gradients(copy.deepcopy(example), mode)
    module = Module(path, threads=1).train(mode == "train")
    matched = by_value(module, reference.to_double(example).module)
    inputs = [v.clone().requires_grad_(v.is_floating_point()) for v in reference.to_double(example).inputs.values()]
    logits = module(*inputs)
    reference.LOSSES[example.loss](logits, example.labels).backward()
    np.testing.assert_allclose(logits.detach(), expected["logits"], rtol=1e-7, atol=1e-10)
    for (key, gradient), ours in zip(expected["inputs"].items(), (i for i in inputs if i.is_floating_point())):
        np.testing.assert_allclose(ours.grad, gradient, rtol=1e-6, atol=1e-9, err_msg=key)
    assert len(matched) >= len(list(module.parameters())) > 0
    for key, (parameter, transposed) in matched.items():
        ours = parameter.grad.T if transposed and parameter.dim() == 2 else parameter.grad
        np.testing.assert_allclose(ours, expected["gradients"][key], rtol=1e-6, atol=1e-9, err_msg=key)


def test_as_a_layer_of_a_larger_model():
    """Between two layers of PyTorch, used twice, one output unused: gradients within 1e-6 of PyTorch's in float64."""

    class Larger(torch.nn.Module):
        def __init__(self, middle):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.middle = torch.nn.Linear(3, 4).double(), middle
            self.last = torch.nn.Linear(3, 2).double()

        def forward(self, x):
            h = self.first(x)
            return self.last(self.middle(h) * self.middle(torch.relu(h)))

    class Middle(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.p = torch.nn.ParameterDict(
                {name.replace(".", "_"): p.detach().clone() for name, p in module.named_parameters()}
            )

        def forward(self, x):
            p = self.p
            return torch.tanh(x @ p["fc1_weight"] + p["fc1_bias"]) @ p["fc2_weight"] + p["fc2_bias"]

    module = Module(MLP, dtype="float64", threads=1)
    ours, theirs = Larger(module), Larger(Middle(module))
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs = [x.clone().requires_grad_() for _ in "12"]
    for model, value in zip((ours, theirs), inputs):
        model(value).pow(2).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-6, atol=1e-12)
    assert len(list(ours.parameters())) == len(list(theirs.parameters())) == 8
    expected = {key.replace("middle.p.fc1_", "middle.fc1.").replace("middle.p.fc2_", "middle.fc2."): p.grad
                for key, p in theirs.named_parameters()}  # fmt: skip
    for key, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key], rtol=1e-6, atol=1e-12)


def test_gradcheck_of_several_inputs_and_outputs():
    graph = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]>
        g (double[N, 3] a, double[N, 3] b, int64[K] i) => (double[N, 3] p, double[N] q, int64[N, 3] s)
        <double[3, 3] w = {1,2,3,4,5,6,7,8,10}, int64[1] one = {1}>
        { h = MatMul(a, w)  t = Tanh(b)  p = Mul(h, t)  g = Gather<axis = 1>(p, i)
          q = ReduceSum<keepdims = 0>(g, one)  s = Cast<to = 7>(h) }"""
    )
    module = Module(graph, threads=1)
    a, b = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in "12")
    i = torch.tensor([0, 2, 2])
    p, q, s = module(a, b, i)
    assert s.dtype == torch.int64 and not s.requires_grad and q.shape == (4,)
    assert torch.autograd.gradcheck(lambda a, b: module(a, b, i)[:2], (a, b))
    gradient, = torch.autograd.grad(q.sum(), a)  # p has no gradient of its own
    w = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 10.0]], dtype=torch.float64)
    expected, = torch.autograd.grad(((a @ w) * torch.tanh(b))[:, [0, 2, 2]].sum(), a)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_adamw_of_pytorch_makes_the_curve_of_the_sessions_own(exported, name):
    example, path = exported(name, double=True)
    data = reference.repeated(example, 3)
    size, rate = len(example.labels), 2**-9
    session = onnx_train.Session(
        onnx_train.build(path, example.loss, "adamw(weight_decay=0.1)", decay="*"), threads=1
    )
    module = Module(path, threads=1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.1)
    ours, theirs = [], []
    for step in range(30):
        start = step * size % len(data["labels"])
        batch = {key: value[start : start + size] for key, value in data.items()}
        theirs.append(session.step(batch, lr=rate).loss)
        labels = torch.from_numpy(batch.pop("labels"))
        optimizer.zero_grad()
        loss = reference.LOSSES[example.loss](module(*map(torch.from_numpy, batch.values())), labels)
        loss.backward()
        optimizer.step()
        ours.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert ours[-1] < ours[0]
    states = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    for key, tensor in states.items():
        if key in session.state and tensor.is_floating_point():
            np.testing.assert_allclose(tensor.detach(), session.state[key], rtol=1e-5, atol=1e-9, err_msg=key)


def test_parameters_are_read_where_they_are():
    module = Module(MLP, threads=1)
    assert {key for key, _ in module.named_parameters()} == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    assert list(module.state_dict()) == [key for key, _ in module.named_parameters()]
    x = torch.eye(4)
    with torch.no_grad():
        module.fc2.weight.zero_()
        module.fc2.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(module(x), torch.tensor([[1.0, 2.0, 3.0]]).expand(4, 3))
    module.fc2.bias.data = torch.tensor([4.0, 5.0, 6.0])  # another memory
    assert torch.equal(module(x), torch.tensor([[4.0, 5.0, 6.0]]).expand(4, 3))
    other = Module(MLP, threads=1)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))


def test_frozen_weights_are_constants():
    module = Module(MLP, freeze="fc1.*", threads=1)
    assert [key for key, _ in module.named_parameters()] == ["fc2.weight", "fc2.bias"]
    module(torch.eye(4)).sum().backward()
    assert module.fc2.weight.grad.abs().sum() > 0


def test_batch_norm_updates_its_statistics_in_training_mode_only():
    # Attributes are float32 numbers.
    eps, momentum = float(np.float32(1e-5)), 1 - float(np.float32(0.9))
    norm = torch.nn.BatchNorm2d(3, eps=eps, momentum=momentum).double()
    graph = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]>
        g (double[N, 3, 4, 4] x) => (double[N, 3, 4, 4] y)
        <double[3] gamma = {1, 1, 1}, double[3] beta = {0, 0, 0}, double[3] mean = {0, 0, 0},
         double[3] variance = {1, 1, 1}>
        { y = BatchNormalization(x, gamma, beta, mean, variance) }"""
    )
    module = Module(graph, threads=1)
    assert {key for key, _ in module.named_buffers()} == {"mean", "variance"}
    for training in (True, True, False):
        module.train(training), norm.train(training)
        x = torch.randn(5, 3, 4, 4, dtype=torch.float64) * 3 + 1
        a, b = (x.clone().requires_grad_() for _ in "12")
        ours, theirs = module(a), norm(b)
        torch.testing.assert_close(ours, theirs)
        ours.pow(3).sum().backward(), theirs.pow(3).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
        torch.testing.assert_close(module.mean, norm.running_mean)
        torch.testing.assert_close(module.variance, norm.running_var)


def test_dropout_draws_anew_in_each_call_and_backward_uses_the_mask_of_its_call():
    graph = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[N, 100] x) => (float[N, 100] y)
        <float ratio = {0.5}, bool off = {0}, float[100] w = {%s}> { h = Dropout(x, ratio, off)  y = Mul(h, w) }"""
        % ", ".join(["1"] * 100)
    )
    module = Module(graph, threads=1)
    inputs = [torch.ones(3, 100, requires_grad=True) for _ in "12"]
    first, second = (module(x) for x in inputs)
    assert not torch.equal(first, second) and 0.3 < (first == 0).float().mean() < 0.7
    (first + second).sum().backward()
    for x, y in zip(inputs, (first, second)):
        assert torch.equal(x.grad, y.detach())  # the mask, times 2
    module.eval()
    assert torch.equal(module(inputs[0]), inputs[0])


def test_weights_that_change_between_the_passes_are_an_error():
    module = Module(MLP, threads=1)
    loss = module(torch.eye(4)).sum()
    with torch.no_grad():
        module.fc2.weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def penalty(module, inputs, labels, loss):
    """A loss with the squared norm of its gradient by inputs and weights, as gradient penalties have it."""
    value = reference.LOSSES[loss](module(*inputs), labels)
    sources = [v for v in (*inputs, *module.parameters()) if v.is_floating_point()]
    gradients = torch.autograd.grad(value, sources, create_graph=True, allow_unused=True)
    return value + sum((g**2).sum() for g in gradients if g is not None)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ["mlp", "bert", "gpt2", "deeplab", "yolo", "unet_bilinear", "mobilenet", "dlrm", "lstm"])
def test_second_derivatives_are_those_of_pytorch(exported, name, mode):
    example, path = exported(name, double=True)
    double = reference.to_double(example)
    results = []
    module = Module(path, threads=1)
    matched = by_value(module, double.module)
    for network in (double.module, module):
        inputs = [v.clone().requires_grad_(v.is_floating_point()) for v in double.inputs.values()]
        value = penalty(network.train(mode == "train"), inputs, example.labels, example.loss)
        value.backward()
        results.append((value.detach(), [v.grad for v in inputs if v.is_floating_point()]))
    (expected, by_inputs), (ours, our_inputs) = results
    np.testing.assert_allclose(ours, expected, rtol=1e-8)
    for a, b in zip(our_inputs, by_inputs):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    for key, (parameter, transposed) in matched.items():
        ours = parameter.grad.T if transposed and parameter.dim() == 2 else parameter.grad
        theirs = dict(double.module.named_parameters())[key].grad
        scale = max(float(theirs.abs().max()), 1e-3)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8 * scale, err_msg=key)


def test_third_derivatives_agree_with_differences():
    module = Module(MLP, dtype="float64", threads=1)
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def second(x):
        first, = torch.autograd.grad(module(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(second, x, atol=1e-6)


def test_inputs_that_change_in_place_stop_a_second_derivative_only():
    module = Module(MLP, threads=1)
    for create_graph in (False, True):
        x = torch.eye(4, requires_grad=True)
        y = module(x).sum()
        with torch.no_grad():
            module.fc2.bias.add_(1)  # which the backward pass does not read
        if create_graph:
            with pytest.raises(onnx_train.UsageError, match="'fc2.bias' was changed in place"):
                torch.autograd.grad(y, x, create_graph=True)
        else:
            torch.autograd.grad(y, x)


def test_inference_needs_no_graph():
    module = Module(MLP, threads=1)
    with torch.no_grad():
        assert module(torch.eye(4)).grad_fn is None
    copied = copy.deepcopy(module.state_dict())
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in copied.items())


@pytest.mark.parametrize(
    "attempt, text",
    [
        (lambda m: m(torch.eye(4), torch.eye(4)), "takes 1 inputs (x), not 2"),
        (lambda m: m(torch.eye(4, dtype=torch.complex64)), "'x' is complex64; it must be float32"),
        (lambda m: m(torch.eye(3)), "x"),
        (lambda m: m(torch.empty(2, 4, device="meta")), "is on meta"),
    ],
)
def test_wrong_inputs_are_named(attempt, text):
    with pytest.raises(onnx_train.Error) as raised:
        attempt(Module(MLP, threads=1))
    assert text in str(raised.value)


def test_a_model_without_a_gradient_says_all_that_is_missing():
    graph = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]>
        g (float[2, 2] x) => (float[2, 2] y) { y = Unheard(x) }"""
    )
    with pytest.raises(onnx_train.UnsupportedError, match="Unheard"):
        Module(graph)


def test_compiled_and_by_name():
    """torch.compile cannot look into the passes: the module is a break in its graph, and the rest is compiled."""
    module = Module(MLP, threads=1)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    expected = module(x)
    torch.testing.assert_close(torch.compile(module, backend="eager")(x), expected)
    compiled = torch.compile(lambda x: 2 * module(x + 0).tanh(), backend="eager")
    torch.testing.assert_close(compiled(x), 2 * expected.tanh())
    compiled(x).sum().backward()
    assert module.get_parameter("fc2.bias").grad is not None
    torch.testing.assert_close(module(x=x), expected)
    for arguments, named in (((x,), {"x": x}), ((), {"y": x}), ((), {})):
        with pytest.raises(onnx_train.UsageError, match="takes 1 inputs"):
            module(*arguments, **named)


def test_copies_have_their_own_parameters():
    module = Module(MLP, freeze="fc1.*", threads=1)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    expected = module(x).detach()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert [n for n, _ in other.named_parameters()] == ["fc2.weight", "fc2.bias"]
        with torch.no_grad():
            other.get_parameter("fc2.bias").add_(1)
        torch.testing.assert_close(other(x), expected + 1)
        torch.testing.assert_close(module(x), expected)
        other(x).sum().backward()
        assert module.get_parameter("fc2.bias").grad is None and other.get_parameter("fc2.bias").grad is not None


def test_threads_wait_for_each_other():
    module, f = Module(MLP, threads=1), onnx_train.value_and_grad(MLP, "cross_entropy", threads=1)
    xs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(32)]
    expected = [module(x).detach() for x in xs]
    labels = np.array([0, 1, 2])
    losses = [f((x.numpy(), labels))[0] for x in xs]

    def run(x):
        y = module(x)
        torch.autograd.grad(y.sum(), list(module.parameters()))
        return y.detach(), f((x.numpy(), labels))[0]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for (y, loss), theirs, value in zip(pool.map(run, xs), expected, losses):
            assert torch.equal(y, theirs) and loss == value


def test_an_empty_batch_changes_no_statistics():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    module = Module(exported_in_training(net), threads=1)
    before = {name: value.clone() for name, value in module.named_buffers()}
    for samples in (0, 1):
        with pytest.raises(onnx_train.Error, match="needs more than 1 value per channel"):
            module(torch.zeros(samples, 4))
    module(torch.randn(4, 4))
    module.eval()
    assert module(torch.zeros(0, 4)).shape == (0, 8) and before


def exported_in_training(net):
    file = io.BytesIO()
    torch.onnx.export(net, (torch.randn(8, 4),), file, dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, input_names=["x"], dynamic_axes={"x": {0: "N"}})  # fmt: skip
    return file.getvalue()
