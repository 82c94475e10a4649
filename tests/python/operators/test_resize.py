"""Resize: every mode against ONNX's reference implementation, gradients against differences and PyTorch's, and
segmentation and detection networks from both of PyTorch's exporters."""

import itertools
import logging
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
import reference
import tool
import torch
import networks
from export import export
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.ops import op_resize
from torch.nn import functional as F

# ---- Single nodes


@pytest.fixture(autouse=True)
def reference_in_double(monkeypatch):
    """The reference computes cubic weights in float32, for cubic_coeff_a is one."""
    for name in "_cubic_coeffs", "_cubic_coeffs_antialias":
        original = getattr(op_resize, name)
        monkeypatch.setattr(op_resize, name, lambda r, s=None, A=-0.75, f=original: f(r, s, float(A)))


def model_of(node, x, constants, path, dtype=TensorProto.FLOAT):
    """y = Resize(x + offset): the gradient of `offset` is that of the resized image."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "offset"], ["moved"]), node], "g",
        [helper.make_tensor_value_info("x", dtype, x.shape)], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(v, k) for k, v in {**constants, "offset": np.zeros_like(x)}.items()],
    )  # fmt: skip
    graph.output[0].type.tensor_type.elem_type = dtype
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)
    return model


def resize(x, scales=None, sizes=None, roi=None, **attributes):
    """The node that reads `moved`, and its constants."""
    constants = {
        "roi": None if roi is None else np.array(roi, np.float64),
        "scales": None if scales is None else np.array(scales, np.float32),
        "sizes": None if sizes is None else np.array(sizes, np.int64),
    }
    constants = {k: v for k, v in constants.items() if v is not None}
    names = ["moved", *(name if name in constants else "" for name in ("roi", "scales", "sizes"))]
    while not names[-1]:
        names.pop()
    return helper.make_node("Resize", names, ["y"], **attributes), constants


def forward_and_gradient(path, x, target, folder, *options):
    """y, and the gradient of mean((y - target)²) with respect to x."""
    inputs = tool.save(folder / "inputs.npz", {"x": x, "target": target})
    found = folder / "found.npz"
    tool.run("grad", path, "--inputs", inputs, "--loss", "mse(y, target)", "-o", found, *options)
    found = tool.load(found)
    return found["output/y"], found["grad/offset"]


def matrix_of(run, x):
    """Of y = M x + c, with c, by one run per element: the differences of a linear function are exact."""
    c = run(np.zeros_like(x))
    columns = [run(np.eye(1, x.size, i, dtype=x.dtype).reshape(x.shape)) - c for i in range(x.size)]
    return np.stack([column.ravel() for column in columns], 1), c.ravel()


MODES = [("linear", {}), ("cubic", {}), ("cubic", {"cubic_coeff_a": -0.5, "exclude_outside": 1})]
MODES += [("nearest", {"nearest_mode": m}) for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")]
COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


def all_calls():
    for (mode, more), coordinates in itertools.product(MODES, COORDINATES):
        base = {"mode": mode, "coordinate_transformation_mode": coordinates, **more}
        yield {**base, "scales": [1, 1, 2, 1.7]}
        yield {**base, "scales": [0.6, 2.3], "axes": [2, 3]}
        yield {**base, "sizes": [3, 9], "axes": [3, 2]}
        yield {**base, "sizes": [1, 1, 1, 1]}
        for policy in "not_larger", "not_smaller":
            yield {**base, "sizes": [6, 9], "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    for (mode, more), roi in itertools.product(MODES, ([0.4, 0.6, 0.6, 0.8], [-0.35, 0.7, 0.8, 1.4])):
        base = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 2.5, **more}
        yield {**base, "sizes": [1, 2, 3, 4], "roi": [0, 0, *roi[:2], 1, 1, *roi[2:]]}
        yield {**base, "sizes": [6, 1], "axes": [2, 3], "roi": roi}
    for mode, exclude, scales in itertools.product(("linear", "cubic"), (0, 1), ([0.6, 0.5], [0.35, 2])):
        yield {"mode": mode, "antialias": 1, "exclude_outside": exclude, "scales": scales, "axes": [2, 3]}


def test_every_mode_is_that_of_the_reference(tmp_path):
    """All calls in one model, in float64."""
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6))
    calls = list(all_calls())
    nodes, constants = [], {}
    for i, call in enumerate(calls):
        node, own = resize(x, **call)
        node.output[0] = f"y{i}"
        node.input[:] = ["x" if n == "moved" else f"{n}{i}" if n else "" for n in node.input]
        nodes.append(node)
        constants |= {f"{k}{i}": v for k, v in own.items()}
    outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(len(calls))]
    for output in outputs:
        output.type.tensor_type.elem_type = TensorProto.DOUBLE
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, x.shape)], outputs,
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    inputs = tool.save(tmp_path / "x.npz", {"x": x})
    tool.run("predict", tmp_path / "model.onnx", "--data", inputs, "-o", tmp_path / "y.npz")
    found = tool.load(tmp_path / "y.npz")
    wrong = []
    for i, call in enumerate(calls):
        got = found[f"y{i}"]
        if got.shape != wanted[i].shape or not np.allclose(got, wanted[i], rtol=1e-9, atol=1e-9):
            wrong.append(call)
    assert not wrong, f"{len(wrong)} of {len(calls)}:\n" + "\n".join(map(str, wrong))


def fractional(mode, coordinates, size, producer, folder):
    """Resize of 4 or `size` to 1.7 times as many."""
    node, constants = resize(np.zeros(1), [1, 1, 1.7, 0.6], mode=mode, coordinate_transformation_mode=coordinates)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["moved"]), node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, *size])], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(v, k) for k, v in {**constants, "w": np.ones(1, np.float32)}.items()],
    )  # fmt: skip
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9, producer_name=producer)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("size", [(4, 7), ("height", "width")], ids=["fixed", "open"])
@pytest.mark.parametrize("coordinates", ["align_corners", "half_pixel", "asymmetric", "half_pixel_symmetric"])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_scales_of_pytorch_that_make_no_whole_size_are_as_onnxruntime_reads_them(tmp_path, mode, coordinates, size):
    import onnx_train
    import onnxruntime

    if (mode, coordinates) == ("nearest", "half_pixel_symmetric"):
        size = (4, 8)  # of 7 one place is a tie but for rounding
    x = np.random.default_rng(0).standard_normal((1, 1, 4, size[1] if size[1] == 8 else 7)).astype(np.float32)
    path = fractional(mode, coordinates, size, "pytorch", tmp_path)
    wanted = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    session = onnx_train.Session(path, threads=1)
    np.testing.assert_allclose(session.run("predict", {"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)
    assert ("has sizes in their place" in tool.run("check", path, "--loss", "mse", "--train", "w")) == (coordinates == "align_corners")
    if coordinates == "align_corners" and mode != "nearest":
        by_pytorch = F.interpolate(torch.tensor(x), scale_factor=(1.7, 0.6), mode="bilinear" if mode == "linear" else "bicubic", align_corners=True)
        np.testing.assert_allclose(wanted, by_pytorch, rtol=1e-4, atol=1e-4)


def test_scales_of_other_files_that_make_no_whole_size_are_as_onnx_defines_them(tmp_path):
    import onnx_train

    x = np.random.default_rng(0).standard_normal((1, 1, 4, 7)).astype(np.float32)
    path = fractional("linear", "align_corners", (4, 7), "", tmp_path)
    wanted = onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    np.testing.assert_allclose(onnx_train.Session(path, threads=1).run("predict", {"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)
    assert "ONNX Runtime and PyTorch take the whole number" in " ".join(tool.run("check", path, "--loss", "mse", "--train", "w").split())


def node_tests():
    folder = tool.BUILD / "node_tests"
    return sorted(p.name for p in folder.glob("test_resize_*"))


def test_there_are_node_tests():
    assert len(node_tests()) >= 39, "tests/kernels/make_node_tests.py writes them to build/node_tests"


@pytest.mark.parametrize("name", node_tests())
def test_gradients_of_onnx_node_tests_agree_with_differences(tmp_path, name):
    folder = tool.BUILD / "node_tests" / name
    graph = onnx.load(folder / "model.onnx").graph
    tensors = [numpy_helper.to_array(onnx.TensorProto.FromString((folder / f"input_{i}.pb").read_bytes()))
               for i in range(len(graph.input))]  # fmt: skip
    constants = {i.name: t.astype(np.float64) if i.name == "roi" else t for i, t in zip(graph.input, tensors)}
    node = graph.node[0]
    x = constants.pop(node.input[0]).astype(np.float64)
    node.input[0], node.output[0] = "moved", "y"
    model = model_of(node, x, constants, tmp_path / "model.onnx", TensorProto.DOUBLE)

    evaluator = onnx.reference.ReferenceEvaluator(model)
    matrix, constant = matrix_of(lambda at: evaluator.run(None, {"x": at})[0], x)
    shape = evaluator.run(None, {"x": x})[0].shape
    target = np.random.default_rng(1).standard_normal(shape)
    y, gradient = forward_and_gradient(tmp_path / "model.onnx", x, target, tmp_path)
    expected = (matrix @ x.ravel() + constant).reshape(shape)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)
    from_differences = matrix.T @ (2 * (expected - target) / target.size).ravel()
    np.testing.assert_allclose(gradient.ravel(), from_differences, rtol=0, atol=1e-6 * np.abs(from_differences).max())


INTERPOLATIONS = {
    "nearest by 2": ((2, 3, 5, 6), dict(scale_factor=2)),
    "nearest to a size": ((2, 3, 5, 6), dict(size=(7, 4))),
    "nearest of sequences": ((2, 3, 9), dict(scale_factor=2)),
    "nearest of volumes": ((1, 2, 3, 4, 5), dict(scale_factor=2)),
    "bilinear by 2": ((2, 3, 5, 6), dict(scale_factor=2, mode="bilinear")),
    "bilinear by 0.5": ((2, 3, 6, 8), dict(scale_factor=0.5, mode="bilinear")),
    "bilinear by 1.5": ((2, 3, 5, 6), dict(scale_factor=1.5, mode="bilinear")),
    "bilinear to a size": ((2, 3, 5, 6), dict(size=(9, 4), mode="bilinear")),
    "bilinear, corners": ((2, 3, 5, 6), dict(scale_factor=2, mode="bilinear", align_corners=True)),
    "bilinear to a size, corners": ((2, 3, 5, 6), dict(size=(9, 4), mode="bilinear", align_corners=True)),
    "bilinear, antialias": ((2, 3, 9, 8), dict(size=(4, 3), mode="bilinear", antialias=True)),
    "linear of sequences": ((2, 3, 9), dict(scale_factor=2, mode="linear")),
    "trilinear": ((1, 2, 3, 4, 5), dict(scale_factor=2, mode="trilinear")),
    "bicubic by 2": ((2, 3, 5, 6), dict(scale_factor=2, mode="bicubic")),
    "bicubic to a size": ((2, 3, 5, 6), dict(size=(9, 4), mode="bicubic")),
    "bicubic, corners": ((2, 3, 5, 6), dict(size=(9, 4), mode="bicubic", align_corners=True)),
    "bicubic, antialias": ((2, 3, 9, 8), dict(size=(4, 3), mode="bicubic", antialias=True)),
}  # fmt: skip


class Interpolate(torch.nn.Module):
    def __init__(self, channels, options):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.rand(channels))
        self.options = options

    def forward(self, x):
        weight = self.weight.reshape(-1, *[1] * (x.dim() - 2))
        return F.interpolate(x * weight, **self.options)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_interpolate_is_that_of_pytorch(tmp_path, name, exporter):
    shape, options = INTERPOLATIONS[name]
    if exporter == "torchscript" and "antialias" in options:
        pytest.skip("PyTorch's older exporter has no antialias")
    torch.manual_seed(0)
    module, x = Interpolate(shape[1], options).double(), torch.randn(shape, dtype=torch.float64)
    export(module, {"x": x}, tmp_path / "model.onnx", exporter)
    x.requires_grad_()
    y = module(x)
    target = torch.randn(y.shape, dtype=torch.float64)
    F.mse_loss(y, target).backward()

    inputs = tool.save(tmp_path / "inputs.npz", {"x": x.detach().numpy(), "target": target.numpy()})
    found = tmp_path / "found.npz"
    tool.run("grad", tmp_path / "model.onnx", "--inputs", inputs, "--loss", "mse(logits, target)", "-o", found)
    found = tool.load(found)
    np.testing.assert_allclose(found["output/logits"], y.detach(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found["grad_input/x"], x.grad, rtol=0, atol=1e-9 * x.grad.abs().max().item())


def test_a_scale_that_a_float_rounds_down_makes_the_size_that_was_meant(tmp_path):
    x = torch.randn(2, 3, 10, 20)
    module = Interpolate(3, dict(scale_factor=0.7, mode="bilinear"))
    export(module, {"x": x}, tmp_path / "model.onnx")
    inputs = tool.save(tmp_path / "x.npz", {"x": x.numpy()})
    tool.run("predict", tmp_path / "model.onnx", "--data", inputs, "-o", tmp_path / "y.npz")
    np.testing.assert_allclose(tool.load(tmp_path / "y.npz")["logits"], module(x).detach(), rtol=0, atol=1e-5)


# ---- Whole networks whose sizes are known only when they run. Of fixed sizes: test_gradients.py.


def export_with_dynamic_sizes(module, x, path, exporter):
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    if exporter == "dynamo":
        dims = {i: torch.export.Dim.DYNAMIC for i in (0, 2, 3)}
        torch.onnx.export(module.eval(), (x,), path, dynamo=True, optimize=False, external_data=False, verbose=False,
                          dynamic_shapes=(dims,), input_names=["x"], output_names=["logits"])  # fmt: skip
    else:
        axes = {0: "batch", 2: "height", 3: "width"}
        torch.onnx.export(module.eval(), (x,), path, dynamo=False, do_constant_folding=False, opset_version=17,
                          training=torch.onnx.TrainingMode.PRESERVE, dynamic_axes={"x": axes}, input_names=["x"],
                          output_names=["logits"])  # fmt: skip


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["unet_bilinear", "deeplab", "yolo"])
@pytest.mark.filterwarnings("ignore")
def test_networks_train_at_a_size_they_were_not_exported_with(tmp_path, name, exporter):
    small = {"size": 16} if name == "yolo" else {"height": 13, "columns": 18}
    large = {"size": 24} if name == "yolo" else {"height": 18, "columns": 21}
    exported, example = networks.EXAMPLES[name](**small), networks.EXAMPLES[name](**large)
    path = Path(tmp_path / "model.onnx")
    export_with_dynamic_sizes(exported.module, exported.inputs["x"], path, exporter)
    inputs = tool.save(tmp_path / "inputs.npz", reference.arrays(example))
    tool.run("grad", path, "--inputs", inputs, "--loss", example.loss, "-o", tmp_path / "found.npz")
    ours, theirs = tool.load(tmp_path / "found.npz"), reference.gradients(example, "train")
    assert abs(ours["loss"] - theirs["loss"]) <= 1e-5 * abs(theirs["loss"])
    floor = 1e-3 * np.sqrt(sum(np.sum(g**2) for g in theirs["gradients"].values()))
    initializers = reference.Initializers(path)
    for weight, expected in theirs["gradients"].items():
        gradient = initializers.gradient(ours, theirs["weights"][weight])
        assert reference.distance(gradient, expected, floor) <= 1e-4, weight
