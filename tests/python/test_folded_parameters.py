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
        self.shifts = torch.nn.Parameter(torch.zeros(6))  # equal parts of it are no views of each other

    def forward(self, x):
        a, b = x @ self.both[:3].T + self.shifts[:3], (self.both[3:] @ x.T + self.shifts[3:, None]).T
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
    # weight norm's product, its bias, two halves of `both` and of `shifts`, three gates, the exponential, and the row once.
    assert shapes == sorted([(3, 4), (3,), (4, 3), (3, 4), (3,), (3, 1), (), (), (), (3, 2), (1, 16)])
    double = module.double()
    loss = torch.nn.functional.cross_entropy(double(x.double()), torch.ones(4, dtype=torch.long))
    row = next(array for array in found.values() if array.shape == (1, 16))
    np.testing.assert_allclose(row, expected(double, loss)["row"], rtol=1e-5)
    assert "computed from" not in tool.run("check", path)


@pytest.mark.filterwarnings("ignore")
def test_torchscripts_copies_are_named_and_tied_on_demand(tmp_path):
    torch.manual_seed(0)
    module, x = Pinn(), torch.rand(16, 1)
    path = export(module, x, tmp_path / "pinn.onnx", "loss", dynamo=False)
    said = tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "loss")
    copies = [line.split(":  ")[0].strip() for line in said.splitlines() if "--tie '" in line]
    ties = [line.split("--tie '")[1].split("'")[0] for line in said.splitlines() if "--tie '" in line]
    assert len(copies) == 2 and [tie.split("=")[1] for tie in ties] == ["u.a.weight", "u.b.weight"]
    build = ["build", path, "-o", tmp_path / "train.onnx", "--loss", "loss"]
    printed = tool.run(*build, *(f"--tie={tie}" for tie in ties))
    assert "4 tensors, 49 elements" in printed and "'u.b.weight', in another shape" in printed
    data = tool.save(tmp_path / "data.npz", {"x": np.random.default_rng(0).random((64, 1), np.float32)})
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 2, "--batch-size", 16, "--lr", 1e-3, "--out",
             tmp_path / "run")  # fmt: skip
    assert "4 parameters agree" in tool.run("verify", tmp_path / "train.onnx")
    said = tool.run(*build, "--tie", ties[0].replace("u.a.weight", "u.a.bias"), status=1)
    assert "does not have the numbers of 'u.a.bias' float[16]" in said
    assert "did you mean 'u.a.weight'" in tool.run(*build, "--tie", ties[0] + "t", status=1)


def test_a_merged_weight_is_untied(tmp_path):
    """Exporters store equal weights of a fresh model once."""
    import onnx

    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[N,2] x) => (float[N,2] y)
      <float[2] scale = {1, 1}, float[2,2] w = {1, 2, 3, 4}> {
        a = Mul(x, scale) h = MatMul(a, w) b = Mul(h, scale) y = MatMul(b, w) }""")
    onnx.save(model, tmp_path / "model.onnx")
    build = ["build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx"]
    printed = tool.run(*build)
    assert "--untie 'w'" in printed and "--untie 'scale'" in printed
    printed = tool.run(*build, "--untie", "w", "--untie", "scale")
    assert "untied: 'w' and 'w/2'" in printed and "4 tensors, 12 elements" in printed and "--untie" not in printed
    assert "one node alone reads" in tool.run(*build, "--untie", "w,w", status=1)
