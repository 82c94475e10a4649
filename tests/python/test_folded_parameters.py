"""What PyTorch's exporters fold of parameters: one weight stays one, and an expression of weights is no weight."""

import logging
import warnings

import numpy as np
import pytest
import tool
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(1, 16)
        self.b = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Pinn(torch.nn.Module):
    """Mean (u'(x) - cos x)² + u(0)². The exporters fold u(0)², the column of a's weight and the transpose of b's."""

    def __init__(self):
        super().__init__()
        self.u = Net()

    def equation(self, x):
        h = torch.tanh(self.u.a(x))
        slope = ((1 - h * h) * self.u.a.weight[:, 0]) @ self.u.b.weight.T
        return ((slope - torch.cos(x)) ** 2).mean()

    def forward(self, x):
        return self.equation(x) + self.u(torch.zeros(1, 1, dtype=x.dtype)).pow(2).mean()


class Rows(torch.nn.Module):
    """Parts of one parameter, a product of two, an exponential and one that is repeated: all are trained."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
        self.both = torch.nn.Parameter(torch.randn(6, 4))
        self.gates = torch.nn.Parameter(torch.randn(3))
        self.log_rates = torch.nn.Parameter(torch.randn(3, 2))
        self.row = torch.nn.Parameter(torch.randn(1, 16))

    def forward(self, x):
        a, b = x @ self.both[:3].T, x @ self.both[3:].T
        y = self.layer(x) * self.gates[0] + a * self.gates[1] + torch.sigmoid(b) * self.gates[2]
        return torch.tanh(y @ -torch.exp(self.log_rates)) @ (torch.ones(2, 1, dtype=x.dtype) @ self.row)


def export(module, x, path, output, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        torch.onnx.export(module, (x,), str(path), input_names=["x"], output_names=[output], verbose=False, **options)
        logging.disable(logging.NOTSET)
    return path


def gradients(path, x, loss, folder, *arguments):
    data = tool.save(folder / "batch.npz", {"x": x.numpy()} if loss == "loss" else {"x": x.numpy(), "labels": [1] * len(x)})
    tool.run("grad", path, "--inputs", data, "-o", folder / "grad.npz", "--loss", loss, "--dtype", "float64", *arguments)
    return {name[5:]: array for name, array in tool.load(folder / "grad.npz").items() if name.startswith("grad/")}


def expected(module, loss):
    """The parameters' gradients in float64."""
    parameters = dict(module.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: g.numpy() for name, g in zip(parameters, found) if g is not None}


@pytest.mark.filterwarnings("ignore")
def test_views_of_a_parameter_are_one_weight_and_an_expression_is_none(tmp_path):
    torch.manual_seed(0)
    module, x = Pinn(), torch.rand(16, 1)
    path = export(module, x, tmp_path / "pinn.onnx", "loss", dynamo=True, external_data=False)
    found = gradients(path, x, "loss", tmp_path)
    double = module.double()
    wanted = expected(double, double.equation(x.double()))
    # b's weight has the layout of its use, and b's bias is in u(0)² alone.
    assert set(found) == {"u.a.weight", "u.a.bias", "permute"}
    np.testing.assert_allclose(found["u.a.weight"], wanted["u.a.weight"], rtol=1e-6)
    np.testing.assert_allclose(found["u.a.bias"], wanted["u.a.bias"], rtol=1e-6)
    np.testing.assert_allclose(found["permute"].ravel(), wanted["u.b.weight"].ravel(), rtol=1e-6)
    said = tool.run("check", path)
    assert "select: folded from 'u.a.weight', which 'u.a.weight' is, too: in another shape; they are one weight" in said
    printed = tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "loss")
    for text in (said, printed):
        assert "mean_1: computed from 'u.a.bias', 'u.a.weight', 'u.b.bias' and 1 more by the exporter" in text
        assert "not trained, and the gradients of what it was computed from lack its part" in text
        assert "optimize=False" in text
    assert "3 tensors, 48 elements" in printed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"dynamo": True, "external_data": False, "optimize": False},
                                     {"dynamo": False, "do_constant_folding": False}], ids=["dynamo", "torchscript"])  # fmt: skip
def test_an_export_without_folding_has_all_gradients(options, tmp_path):
    """What the message advises."""
    torch.manual_seed(0)
    module, x = Pinn(), torch.rand(16, 1)
    path = export(module, x, tmp_path / "pinn.onnx", "loss", **options)
    found = gradients(path, x, "loss", tmp_path)
    double = module.double()
    wanted = expected(double, double(x.double()))
    assert set(found) == set(wanted)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore")
def test_parts_and_functions_of_parameters_stay_weights(tmp_path):
    torch.manual_seed(0)
    module, x = Rows(), torch.rand(4, 4)
    path = export(module, x, tmp_path / "rows.onnx", "y", dynamo=True, external_data=False)
    found = gradients(path, x, "cross_entropy", tmp_path)
    shapes = sorted(array.shape for array in found.values())
    # weight norm's product, its bias, two halves of `both`, three gates, the exponential, and the row once.
    assert shapes == sorted([(3, 4), (3,), (4, 3), (4, 3), (), (), (), (3, 2), (1, 16)])
    double = module.double()
    loss = torch.nn.functional.cross_entropy(double(x.double()), torch.ones(4, dtype=torch.long))
    row = next(array for array in found.values() if array.shape == (1, 16))
    np.testing.assert_allclose(row, expected(double, loss)["row"], rtol=1e-5)
    assert "computed from" not in tool.run("check", path)
