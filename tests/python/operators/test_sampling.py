"""Interpolated images against PyTorch: GridSample, a spatial transformer network, deformable convolutions, RoiAlign,
MaxRoiPool."""

import itertools

import numpy as np
import onnx
import pytest
import tool
import torch
from export import export
from onnx import helper, numpy_helper
from torch.nn import functional as F


def save(path, node, inputs, opset=22):
    """y = node of its inputs, each plus a weight of zeros. Integers are initializers."""
    graph = helper.make_graph([], "g", [], [helper.make_empty_tensor_value_info("y")])
    for name, value in inputs.items():
        if value.dtype != np.float64:
            graph.initializer.append(numpy_helper.from_array(value, name))
            continue
        node.input[list(node.input).index(name)] = f"moved_{name}"
        graph.node.append(helper.make_node("Add", [name, f"to_{name}"], [f"moved_{name}"]))
        graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, value.shape))
        graph.initializer.append(numpy_helper.from_array(np.zeros_like(value), f"to_{name}"))
    graph.node.append(node)
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)


def compare(folder, node, inputs, theirs, without_gradient=()):
    """y, and the gradients of mean((y - target)²). theirs: what PyTorch computes from the float inputs."""
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in inputs.items() if v.dtype == np.float64}
    y = theirs(**tensors)
    target = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    F.mse_loss(y, target).backward()
    save(folder / "model.onnx", node, inputs)
    data = {k: v for k, v in inputs.items() if v.dtype == np.float64} | {"target": target.numpy()}
    tool.run("grad", folder / "model.onnx", "--inputs", tool.save(folder / "in.npz", data), "--loss", "mse(y, target)",
             "-o", folder / "out.npz", "--dtype", "float64")  # fmt: skip
    found = tool.load(folder / "out.npz")
    np.testing.assert_allclose(found["output/y"], y.detach(), rtol=0, atol=1e-11)
    for name, tensor in tensors.items():
        if name not in without_gradient:
            np.testing.assert_allclose(found[f"grad_input/{name}"], tensor.grad, rtol=0, atol=1e-11, err_msg=name)


MODES = [*itertools.product((2, 3), ("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True)),
         # Beyond a border of the outermost pixels PyTorch interpolates cubically; ONNX moves the coordinate there first.
         *itertools.product((2,), ("bicubic",), ("zeros", "reflection"), (False, True))]  # fmt: skip


@pytest.mark.parametrize("axes, mode, padding, align", MODES)
def test_grid_sample_is_that_of_pytorch(tmp_path, axes, mode, padding, align):
    rng = np.random.default_rng(0)
    name = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=name, padding_mode=padding, align_corners=int(align))
    inputs = {"x": rng.standard_normal((2, 3, 5, 6, 4)[: axes + 2]),
              "grid": rng.uniform(-1.4, 1.4, (2, 4, 3, 5)[: axes + 1] + (axes,))}  # fmt: skip
    compare(tmp_path, node, inputs,
            lambda x, grid: F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align))  # fmt: skip


def deform_conv(x, w, offset, b, mask, stride, padding, dilation, group, offset_group):
    """By columns that grid_sample makes."""
    n, c, height, width = x.shape
    rows, columns = offset.shape[2:]
    kernel = w.shape[2:]
    at = []
    for axis, count in enumerate((rows, columns)):
        taps = torch.arange(kernel[axis], dtype=x.dtype) * dilation[axis]
        places = torch.arange(count, dtype=x.dtype) * stride[axis] - padding[axis]
        shape = [1, 1, 1, 1]
        shape[axis], shape[2 + axis] = kernel[axis], count
        at.append((taps[:, None] + places[None]).reshape(shape).expand(*kernel, rows, columns))
    moved = offset.reshape(n * offset_group, *kernel, 2, rows, columns)
    y, x_at = at[0] + moved[:, :, :, 0], at[1] + moved[:, :, :, 1]
    grid = torch.stack([(2 * x_at + 1) / width - 1, (2 * y + 1) / height - 1], -1).reshape(n * offset_group, -1, 1, 2)
    images = x.reshape(n * offset_group, c // offset_group, height, width)
    sampled = F.grid_sample(images, grid, align_corners=False).reshape(n * offset_group, c // offset_group, -1)
    sampled = sampled * mask.reshape(n * offset_group, 1, -1)
    sampled = sampled.reshape(n, group, c // group * kernel[0] * kernel[1], rows * columns)
    result = w.reshape(1, group, w.shape[0] // group, -1) @ sampled
    return result.reshape(n, w.shape[0], rows, columns) + b[None, :, None, None]


@pytest.mark.parametrize("group, offset_group", [(1, 1), (2, 1), (2, 2)])
def test_deformable_convolutions_are_those_of_columns_that_pytorch_samples(tmp_path, group, offset_group):
    rng = np.random.default_rng(0)
    how = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "group": group, "offset_group": offset_group}
    taps = 6 * offset_group
    inputs = {
        "x": rng.standard_normal((2, 4, 6, 7)), "w": rng.standard_normal((4, 4 // group, 3, 2)),
        "offset": rng.uniform(-2, 2, (2, 2 * taps, 3, 5)), "b": rng.standard_normal(4),
        "mask": rng.uniform(0, 1, (2, taps, 3, 5)),
    }  # fmt: skip
    node = helper.make_node("DeformConv", list(inputs), ["y"], strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2],
                            group=group, offset_group=offset_group)  # fmt: skip
    compare(tmp_path, node, inputs, lambda **tensors: deform_conv(**tensors, **how))


def roi_align(x, rois, images, bins, scale, sampling, aligned):
    """The mean of samples that grid_sample reads where they are inside; those up to a pixel outside are at the border."""
    results = []
    for box, image in zip(rois, images):
        shift = 0.5 if aligned else 0.0
        begin, end = box[[1, 0]] * scale - shift, box[[3, 2]] * scale - shift
        length = end - begin if aligned else torch.clamp(end - begin, min=1)
        at = []
        for axis, size in enumerate(x.shape[2:]):
            step = length[axis] / bins[axis]
            count = sampling or int(torch.ceil(step))
            at.append(begin[axis] + step * (torch.arange(bins[axis] * count, dtype=x.dtype) + 0.5) / count)
        inside = [((a >= -1) & (a <= size)).to(x.dtype) for a, size in zip(at, x.shape[2:])]
        places = [(2 * torch.clamp(a, 0, size - 1) + 1) / size - 1 for a, size in zip(at, x.shape[2:])]
        y, x_at = torch.meshgrid(*places, indexing="ij")
        sampled = F.grid_sample(x[image : image + 1], torch.stack([x_at, y], -1)[None], align_corners=False)
        sampled = sampled * inside[0][:, None] * inside[1]
        results.append(F.avg_pool2d(sampled, [len(a) // b for a, b in zip(at, bins)]))
    return torch.cat(results)


@pytest.mark.parametrize("sampling, aligned", [(0, True), (2, True), (0, False), (3, False)])
def test_regions_are_means_of_samples(tmp_path, sampling, aligned):
    rng = np.random.default_rng(0)
    rois = np.array([[0.31, 0.42, 9.23, 7.17], [-3.1, -2.2, 5.4, 4.3], [6.2, 3.1, 19.3, 17.2], [1.2, 1.1, 1.9, 1.6]])
    images = np.array([0, 1, 1, 0])
    mode = "half_pixel" if aligned else "output_half_pixel"
    node = helper.make_node("RoiAlign", ["x", "rois", "images"], ["y"], output_height=2, output_width=3,
                            spatial_scale=0.5, sampling_ratio=sampling, coordinate_transformation_mode=mode)  # fmt: skip
    inputs = {"x": rng.standard_normal((2, 3, 5, 6)), "rois": rois, "images": images}
    compare(tmp_path, node, inputs,
            lambda x, rois: roi_align(x, rois.detach(), images, (2, 3), 0.5, sampling, aligned),
            without_gradient=("rois",))  # fmt: skip


def max_roi_pool(x, rois, bins, scale):
    """torchvision's roi_pool: the largest pixel of each bin of a region that is rounded to whole pixels."""

    def ends(start, end, count, size):
        start, end = np.trunc(np.array([start, end]) * scale + np.copysign(0.5, [start, end]))
        bin = max(end - start + 1, 1) / count
        edges = [(start + np.floor(p * bin), start + np.ceil((p + 1) * bin)) for p in range(count)]
        return np.clip(np.array(edges), 0, size).astype(int)

    results = []
    for image, x1, y1, x2, y2 in rois.tolist():
        rows, columns = ends(y1, y2, bins[0], x.shape[2]), ends(x1, x2, bins[1], x.shape[3])
        cut = [[x[int(image), :, h1:h2, w1:w2].flatten(1) for w1, w2 in columns] for h1, h2 in rows]
        lines = [torch.stack([c.amax(1) if c.shape[1] else c.new_zeros(len(c)) for c in line], 1) for line in cut]
        results.append(torch.stack(lines, 1))
    return torch.stack(results)


@pytest.mark.parametrize("bins, scale", [((2, 3), 0.5), ((3, 2), 1.0), ((7, 7), 0.25)])
def test_regions_are_largest_pixels(tmp_path, bins, scale):
    rng = np.random.default_rng(0)
    rois = np.array([[0, 0.31, 0.42, 9.23, 7.17], [1, -3.1, -2.2, 5.4, 4.3], [1, 6.2, 3.1, 19.3, 17.2],
                     [0, 1.5, 2.5, 1.5, 2.5], [0, 40, 40, 50, 50], [1, 5, 4, 3, 2]])  # fmt: skip
    node = helper.make_node("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=bins, spatial_scale=scale)
    inputs = {"x": rng.standard_normal((2, 3, 5, 6)), "rois": rois}
    compare(tmp_path, node, inputs, lambda x, rois: max_roi_pool(x, rois.detach(), bins, scale),
            without_gradient=("rois",))  # fmt: skip


class SpatialTransformer(torch.nn.Module):
    """Jaderberg et al., "Spatial Transformer Networks", 2015: a network finds how to turn and move the image that another
    one classifies."""

    def __init__(self, align):
        super().__init__()
        self.find = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(),
                                        torch.nn.Linear(4 * 25, 6))  # fmt: skip
        self.classify = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                            torch.nn.Linear(4 * 36, 10))  # fmt: skip
        torch.nn.init.normal_(self.find[-1].weight, std=0.02)
        self.find[-1].bias.data = torch.tensor([1.0, 0.05, 0.02, -0.03, 0.9, 0.04])
        self.align = align

    def forward(self, x):
        theta = self.find(x).reshape(-1, 2, 3)
        # The dynamo exporter writes the coordinates of the places in float32, which holds these.
        grid = F.affine_grid(theta, [x.shape[0], 1, 8, 8], align_corners=self.align)
        return self.classify(F.grid_sample(x, grid, align_corners=self.align))


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_spatial_transformer_trains_as_in_pytorch(tmp_path, exporter, align):
    torch.manual_seed(0)
    module = SpatialTransformer(align).double()
    x, labels = torch.randn(32, 1, 12, 12, dtype=torch.float64), torch.randint(0, 10, (32,))
    path = tmp_path / "model.onnx"
    if exporter == "dynamo":
        export(module, {"x": x[:8]}, path, exporter)
    else:
        from export import quiet

        with quiet():  # affine_grid is an operator since opset 20
            torch.onnx.export(module, (x[:8],), str(path), dynamo=False, opset_version=20, input_names=["x"],
                              output_names=["logits"], do_constant_folding=False)  # fmt: skip
    data = tool.save(tmp_path / "data.npz", {"x": x.numpy(), "labels": labels.numpy()})
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--optimizer", "sgd(momentum=0.9)")
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--steps", 20, "--batch-size", 8, "--lr", 2**-5,
             "--schedule", "constant", "--no-shuffle", "--out", tmp_path / "run")  # fmt: skip
    ours = tool.losses(tmp_path / "run")

    optimizer = torch.optim.SGD(module.parameters(), lr=2**-5, momentum=0.9)
    theirs = []
    for step in range(20):
        at = slice(step * 8 % 32, step * 8 % 32 + 8)
        loss = F.cross_entropy(module(x[at]), labels[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)
