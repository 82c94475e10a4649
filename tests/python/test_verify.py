"""`onnx-train verify`: right gradients are never called wrong, next to kinks neither; wrong ones always are."""

import numpy as np
import onnx
import pytest
import tool
import torch
from export import export
from onnx import helper, numpy_helper
from torch import nn

SEEDS = range(4)


class InvertedResidual(nn.Module):
    """MobileNet's block: ReLU6 or HardSwish around a depthwise convolution."""

    def __init__(self, channels, activation):
        super().__init__()
        wide = 4 * channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), activation(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), activation(),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x)


class Peaks(nn.Module):
    """Max of two branches, the largest values of a row, absolute values, bounds."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(12, 16), nn.Linear(12, 16), nn.Linear(5, 4)

    def forward(self, x):
        h = torch.maximum(self.a(x), self.b(x)).clamp(-0.5, 0.7)
        return self.head(torch.topk(h + h.abs(), 5).values)


def mobilenet(activation):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), activation(), nn.MaxPool2d(2),
        InvertedResidual(8, activation), InvertedResidual(8, activation), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


def zeroed(module):
    """All biases zero and all inputs of ReLUs, too: every kink is at the point itself."""
    for part in module:
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)
    return module


MODULES = {
    "relu6": (lambda: mobilenet(nn.ReLU6), (3, 16, 16)),
    "hardswish": (lambda: mobilenet(nn.Hardswish), (3, 16, 16)),
    "relu": (lambda: mobilenet(nn.ReLU), (3, 16, 16)),
    "peaks": (Peaks, (12,)),
    "zeros": (lambda: zeroed(nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4))), (12,)),
}


def built(name, folder, seed=0):
    make, shape = MODULES[name]
    torch.manual_seed(seed)
    export(make(), {"x": torch.randn(4, *shape)}, folder / "model.onnx", "torchscript")
    tool.run("build", folder / "model.onnx", "-o", folder / "train.onnx", "--loss", "cross_entropy")
    return folder / "train.onnx"


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("seed", SEEDS)
def test_right_gradients_are_never_called_wrong(name, seed, tmp_path):
    output = tool.run("verify", built(name, tmp_path, seed), "--seed", seed)
    assert "WRONG" not in output
    assert "agree within" in output


def edit_gradient(path, weight, edit):
    """Puts `edit(x) -> nodes that make y, initializers` between the step's gradient of `weight` and all that reads it."""
    model = onnx.load(path)
    step = next(t.algorithm for t in model.training_info if t.algorithm.name == "step")
    name = f"grad/{weight}"
    at, node = next((i, n) for i, n in enumerate(step.node) if name in n.output)
    node.output[list(node.output).index(name)] = "right"
    nodes, initializers = edit("right", name)
    for new in reversed(nodes):
        step.node.insert(at + 1, new)
    step.initializer.extend(initializers)
    onnx.save(model, path)


def scaled(factor):
    def edit(x, y):
        return [helper.make_node("Mul", [x, "factor"], [y])], [numpy_helper.from_array(np.float32(factor), "factor")]

    return edit


def one_element_off(shape):
    def edit(x, y):
        offset = np.zeros(shape, np.float32)
        offset.flat[0] = 0.01
        return [helper.make_node("Add", [x, "offset"], [y])], [numpy_helper.from_array(offset, "offset")]

    return edit


def transposed(x, y):
    return [helper.make_node("Transpose", [x], [y], perm=[1, 0])], []


def not_a_number(x, y):
    zero = numpy_helper.from_array(np.float32(0), "nothing")
    return [helper.make_node("Mul", [x, "nothing"], ["zeros"]), helper.make_node("Div", ["zeros", "nothing"], [y])], [zero]


WRONG = {
    "factor": scaled(1.01),
    "sign": scaled(-1),
    "zero": scaled(0),
    "one element": one_element_off((16, 12)),
    "not a number": not_a_number,
}


@pytest.mark.parametrize("edit", WRONG)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_gradient_next_to_kinks_is_called_wrong(edit, seed, tmp_path):
    path = built("peaks", tmp_path, seed)
    edit_gradient(path, "a.weight", WRONG[edit])
    output = tool.run("verify", path, "--seed", seed, status=1)
    wrong = [line for line in output.splitlines() if "WRONG" in line]
    assert len(wrong) == 1 and wrong[0].startswith("a.weight"), output


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_gradient_in_a_mobilenet_is_called_wrong(seed, tmp_path):
    path = built("relu6", tmp_path, seed)
    edit_gradient(path, "8.weight", scaled(1.001))
    assert "8.weight" in "".join(l for l in tool.run("verify", path, "--seed", seed, status=1).splitlines() if "WRONG" in l)


def test_a_transposed_gradient_is_called_wrong(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 9))
    export(module, {"x": torch.randn(4, 9)}, tmp_path / "model.onnx", "torchscript")
    path = tmp_path / "train.onnx"
    tool.run("build", tmp_path / "model.onnx", "-o", path, "--loss", "mse")
    assert "agree within" in tool.run("verify", path)
    edit_gradient(path, "0.weight", transposed)
    assert "WRONG" in tool.run("verify", path, status=1)


def test_the_error_is_the_relative_error_whatever_the_tolerance(tmp_path):
    path = built("peaks", tmp_path)
    edit_gradient(path, "head.weight", scaled(1.25))
    for tolerance in ("1e-9", "1e-5", "1e-2"):
        output = tool.run("verify", path, "--tolerance", tolerance, status=1)
        line = next(line for line in output.splitlines() if line.startswith("head.weight"))
        assert line.split()[3] == "0.2", line


@pytest.mark.parametrize("activation", ["Celu", "Celu<alpha = 0.5>", "Elu", "Selu"])
def test_operators_that_onnx_has_in_float32_alone_are_verified_in_float64(activation, tmp_path):
    onnx.save(onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[N,6] x) => (float[N,2] y)
      <float[6,3] w = {{1,2,3,-4,5,-6,7,8,-9,1,2,-3,4,5,6,7,8,9}}, float[3,2] v = {{1,-2,3,4,-5,6}}> {{
        h = MatMul(x, w) a = {activation}(h) y = MatMul(a, v) }}"""), tmp_path / "model.onnx")  # fmt: skip
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "mse(y)")
    for seed in SEEDS:
        said = tool.run("verify", tmp_path / "train.onnx", "--seed", seed, "--tolerance", "1e-7")
        assert "2 parameters agree" in said, said
    tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "double.onnx", "--loss", "mse(y)", "--dtype", "float64")


def test_a_tolerance_that_differences_cannot_tell_is_refused(tmp_path):
    said = tool.run("verify", tmp_path / "train.onnx", "--tolerance", "1e-20", status=2)
    assert "1e-20 is out of range; take a number, 1e-09 or more" in said


def test_zeros_without_a_value_are_float64_too(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[N,3] x) => (float[N,3] y)
      <float[3,3] w = {1,2,3,-4,5,-6,7,8,-9}>
      { s = Shape(x) z = ConstantOfShape(s) h = Add(x, z) y = Gemm(h, w) }""")  # fmt: skip
    onnx.save(model, tmp_path / "zeros.onnx")
    data = tool.save(tmp_path / "in.npz", {"x": np.ones((2, 3), np.float32), "labels": np.ones((2, 3), np.float32)})
    tool.run("grad", tmp_path / "zeros.onnx", "--inputs", data, "--loss", "mse", "--dtype", "float64", "-o", tmp_path / "g.npz")
    assert tool.load(tmp_path / "g.npz")["grad/w"].dtype == np.float64


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_passes_leave_the_numbers(precision, tmp_path):
    """Adam makes 1 or -1 of gradients that are nothing but rounding, those of biases before batch normalization."""
    tool.run("build", tool.ROOT / "models/digits_cnn.onnx", "-o", tmp_path / "train.onnx", "--precision", precision)
    said = tool.run("verify", tmp_path / "train.onnx", "--passes")
    lines = said.splitlines()
    assert lines[0].split() == ["pass", "difference", "bound", "output"]
    assert "WRONG" not in said and "does not run" not in said, said
    assert lines[-1].endswith("passes leave the numbers of 'step' within the bounds")
    exact = {line.split()[0]: line.split()[1:3] for line in lines[1:-1]}
    assert exact["merge_updates"] == ["0", "0"] and float(exact["fuse_elementwise"][1]) > 0


def test_passes_of_every_entry_point_are_verified(tmp_path):
    tool.run("build", tool.ROOT / "tests/fixtures/mlp.onnx", "-o", tmp_path / "train.onnx", "--accumulate", "--clip", "0.5")
    for entry in ("accumulate", "apply", "evaluate", "predict"):
        said = tool.run("verify", tmp_path / "train.onnx", "--passes", "--entry", entry, "--batch", 3)
        assert f" the numbers of '{entry}' within the bounds" in said, said
    assert "predict" in tool.run("verify", tool.ROOT / "tests/fixtures/mlp.onnx", "--passes")
    assert "--entry goes with --passes" in tool.run("verify", tmp_path / "train.onnx", "--entry", "step", status=2)
