"""What people reported when they trained or differentiated ONNX files by converting them back, or by other runtimes."""

import logging
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
import torch
import torch.nn.functional as F
from PIL import Image
from reported import RNG, doubles, expect_pytorchs, floats, gradients, node, run_refused, same_numbers, save, value  # noqa: F401

import onnx_train


def export(module, inputs, path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        torch.onnx.export(module, inputs, str(path), dynamo=False, verbose=False, opset_version=15, **options)
        logging.disable(logging.NOTSET)


def test_a_monotonic_keras_layer_has_all_its_parameters(tmp_path):
    """ENOT-AutoDL/onnx2torch#194: "optimizer got an empty parameter list" for a converted Keras MonoDense network.

    They needed the kernel and bias of its layers trained: here they are inputs of MatMul and Add, between three
    activations, one of which makes its ones by Shape, Cast and Expand.
    """
    kernel, bias = "sequential/mono_dense/MatMul/ReadVariableOp:0", "sequential/mono_dense/BiasAdd/ReadVariableOp:0"
    last = ["sequential/mono_dense_1/MatMul/ReadVariableOp:0", "sequential/mono_dense_1/BiasAdd/ReadVariableOp:0"]
    weights = {kernel: floats(3, 12), bias: floats(12, scale=0.3), last[0]: floats(12, 1), last[1]: floats(1),
               "sizes": np.int64([5, 5, 2]), "one": np.float32([1]), "zero": np.float32(0)}  # fmt: skip
    nodes = [node("MatMul", ["input", kernel], "product"), node("Add", ["product", bias], "h"),
             node("Split", "h sizes", "convex other both", axis=1), node("Elu", "convex", "a"),
             node("Neg", "other", "n"), node("Elu", "n", "e"), node("Neg", "e", "b"),
             node("Shape", "both", "shape"), node("Cast", "shape", "int32", to=6), node("Cast", "int32", "int64", to=7),
             node("Expand", "one int64", "ones"), node("Neg", "ones", "minus"), node("Min", "both ones", "low"),
             node("Add", "low ones", "shifted"), node("Elu", "shifted", "f"), node("Elu", "ones", "knee"),
             node("Sub", "f knee", "below"), node("Max", "both minus", "high"), node("Sub", "high ones", "g"), node("Neg", "g", "k"),
             node("Elu", "k", "l"), node("Neg", "l", "m"), node("Add", "m knee", "above"), node("Less", "both zero", "negative"),
             node("Where", "negative below above", "c"), node("Concat", "a b c", "joined", axis=1),
             node("MatMul", ["joined", last[0]], "sum"), node("Add", ["sum", last[1]], "mono_dense_1")]  # fmt: skip
    model = tmp_path / "model.onnx"
    save(model, nodes, [value("input", "unk__29", 3)], [value("mono_dense_1", "unk__30", 1)], weights, 13, 7)
    x, target = floats(32, 3), floats(32, 1)
    p = doubles({name: array for name, array in weights.items() if "/" in name})
    convex, other, both = (torch.tensor(x).double() @ p[kernel] + p[bias]).split([5, 5, 2], 1)
    saturated = torch.where(both < 0, F.elu(both.clamp(max=1) + 1) - 1, 1 - F.elu(1 - both.clamp(min=-1)))
    y = torch.cat([F.elu(convex), -F.elu(-other), saturated], 1) @ p[last[0]] + p[last[1]]
    found = gradients(model, {"input": x, "labels": target}, "mse")
    assert set(found[1]) == {kernel, bias, *last, "input/input"}
    expect_pytorchs(found, F.mse_loss(y, torch.tensor(target).double()), p)
    # One number for each sample: no loss over classes is proposed, or taken without --loss.
    assert tool.run("check", model).rstrip().endswith("--loss mse")
    assert "mse(mono_dense_1, labels)" in tool.run("build", model, "-o", tmp_path / "train.onnx")


def arcface(path, slope, spatial_parameters=(4,)):
    """The form of the zoo's ArcFace, which MXNet wrote: IR version 3, opset 8, spatial=0 in every batch normalization."""
    weights = {"conv0_weight": floats(4, 3, 3, 3, scale=0.3), "relu0_gamma": np.full(slope, 0.25, np.float32),
               "pre_fc1_weight": floats(6, 256, scale=0.1), "pre_fc1_bias": floats(6, scale=0.1),
               "shift": np.float32([127.5]), "scale": np.float32([0.0078125]), "row": np.int64([0, -1])}  # fmt: skip
    for name, shape in (("bn0", spatial_parameters), ("fc1", (6,))):
        weights |= {f"{name}_gamma": 1 + floats(*shape, scale=0.1), f"{name}_beta": floats(*shape, scale=0.1),
                    f"{name}_moving_mean": floats(*shape, scale=0.1), f"{name}_moving_var": 1 + np.abs(floats(*shape))}  # fmt: skip
    norm = {"epsilon": 2e-5, "momentum": 0.9, "spatial": 0}
    nodes = [node("Sub", "data shift", "d"), node("Mul", "d scale", "m"),
             node("Conv", "m conv0_weight", "conv0", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             node("BatchNormalization", "conv0 bn0_gamma bn0_beta bn0_moving_mean bn0_moving_var", "bn0", **norm),
             node("PRelu", "bn0 relu0_gamma", "relu0"), node("Dropout", "relu0", "dropout0", ratio=0.4),
             node("Reshape", "dropout0 row", "flat"), node("Gemm", "flat pre_fc1_weight pre_fc1_bias", "pre_fc1", transB=1),
             node("BatchNormalization", "pre_fc1 fc1_gamma fc1_beta fc1_moving_mean fc1_moving_var", "fc1", **norm)]  # fmt: skip
    save(path, nodes, [value("data", 1, 3, 8, 8)], [value("fc1", 1, 6)], weights, 8, 3, weights_are_inputs=True, valid=False)
    return weights


def test_an_arcface_of_mxnet_is_fine_tuned(tmp_path):
    """onnx/models#156: spatial=0 and the slopes of PRelu keep the zoo's ArcFace from running; all edit its file.

    They needed the file as it is, which nobody can export again: its batch normalizations by channel, its slopes trained.
    """
    model = tmp_path / "model.onnx"
    weights = arcface(model, (4, 1, 1))
    x = RNG.uniform(0, 255, (8, 3, 8, 8)).astype(np.float32)
    train = onnx_train.build(str(model), "mse", batch="dynamic")
    train.export().save(tmp_path / "served.onnx")
    p, (mean, variance) = doubles(weights), ("moving_mean", "moving_var")

    def norm(x, name):
        moments = [p[f"{name}_{part}"].detach() for part in (mean, variance)]
        return F.batch_norm(x, *moments, p[f"{name}_gamma"], p[f"{name}_beta"], training=False, eps=2e-5)

    h = F.conv2d((torch.tensor(x).double() - 127.5) * 0.0078125, p["conv0_weight"], padding=1)
    h = F.prelu(norm(h, "bn0"), p["relu0_gamma"].flatten())
    fc1 = norm(F.linear(h.flatten(1), p["pre_fc1_weight"], p["pre_fc1_bias"]), "fc1")
    served = tool.session(tmp_path / "served.onnx").run(None, {"data": x})[0]
    np.testing.assert_allclose(served, fc1.detach(), rtol=1e-4, atol=1e-5)
    # One image, as the file fixes it, with the running statistics: the gradient of each weight, slopes included.
    target = floats(1, 6)
    found = gradients(model, {"data": x[:1], "labels": target}, "mse", "--mode", "frozen")
    assert {"relu0_gamma", "bn0_gamma", "fc1_beta"} <= set(found[1])
    expect_pytorchs(found, F.mse_loss(fc1[:1], torch.tensor(target).double()), p)
    # What no reading fits is refused with its node: slopes along the width, numbers for each pixel.
    arcface(tmp_path / "slopes.onnx", (4,))
    assert "'relu0_gamma', is float[4]" in run_refused("check", tmp_path / "slopes.onnx")
    arcface(tmp_path / "pixels.onnx", (4, 1, 1), (4, 8, 8))
    assert "node 'bn0' (BatchNormalization)" in run_refused("check", tmp_path / "pixels.onnx")


class Voice(torch.nn.Module):
    """VITS in small: durations decide how long each sound lasts, so the waveform's length depends on the text."""

    def __init__(self):
        super().__init__()
        self.emb, self.enc = torch.nn.Embedding(20, 8), torch.nn.Conv1d(8, 8, 3, padding=1)
        self.dp, self.m, self.logs = torch.nn.Conv1d(8, 1, 3, padding=1), torch.nn.Conv1d(8, 8, 1), torch.nn.Conv1d(8, 8, 1)
        self.up, self.post = torch.nn.ConvTranspose1d(8, 4, 4, 2, 1), torch.nn.Conv1d(4, 1, 3, padding=1, bias=False)

    def forward(self, input, input_lengths, scales):
        x = self.emb(input).transpose(1, 2)
        mask = (torch.arange(x.shape[2])[None] < input_lengths[:, None]).unsqueeze(1).to(x.dtype)
        h = torch.relu(self.enc(x * mask))
        durations = torch.ceil(torch.exp(self.dp(h) * mask) * mask * scales[1])
        lengths = torch.clamp_min(durations.sum([1, 2]), 1).long()
        places = torch.arange(lengths.max())
        frames = (places[None] < lengths[:, None]).unsqueeze(1).to(x.dtype)
        path = (places[None, None] < torch.cumsum(durations.squeeze(1), -1).unsqueeze(-1)).to(x.dtype)
        path = path - F.pad(path, [0, 0, 1, 0])[:, :-1]
        m, logs = torch.matmul(self.m(h), path), torch.matmul(self.logs(h), path)
        z = (m + torch.randn_like(m) * torch.exp(logs) * scales[0]) * frames
        return torch.tanh(self.post(F.leaky_relu(self.up(z), 0.125))).unsqueeze(1)


def test_a_voice_is_trained_on_from_its_file(tmp_path):
    """rhasspy/piper#48: "Can I continue training from an ONNX model?" - "No, you can only resume from a checkpoint".

    They needed to fine-tune a published voice of which only the ONNX file is left, whose length of sound its data decide.
    """
    torch.manual_seed(0)
    voice, model = Voice().eval(), tmp_path / "model.onnx"
    given = (torch.randint(0, 20, (2, 7)), torch.tensor([7, 5]), torch.tensor([0.667, 1.0, 0.8]))
    axes = {"input": {0: "batch_size", 1: "phonemes"}, "input_lengths": {0: "batch_size"}, "output": {0: "batch_size", 3: "time"}}
    export(voice, given, model, input_names=["input", "input_lengths", "scales"], output_names=["output"], dynamic_axes=axes)
    text = tool.run("check", model, "--loss", "l1")
    assert "It can be trained" in text and 'the loss does not depend on ["dp.weight", "dp.bias"]; they are not trained' in text
    inputs = [torch.randint(0, 20, (1, 9)), torch.tensor([9]), torch.tensor([0.0, 1.0, 0.8])]  # no noise
    doubled = voice.double()
    waveform = doubled(*inputs[:2], inputs[2].double())
    target = floats(*waveform.shape, scale=0.1)
    batch = {"input": inputs[0], "input_lengths": inputs[1], "scales": inputs[2], "labels": target}
    found = gradients(model, batch, "l1")
    found = found[0], {name: array for name, array in found[1].items() if not name.startswith(("logs.", "dp."))}
    expect_pytorchs(found, F.l1_loss(waveform, torch.tensor(target).double()), dict(doubled.named_parameters()))
    tool.run("fit", model, "--data", tool.save(tmp_path / "data.npz", batch), "--loss", "l1", "--steps", 3, "--out", tmp_path / "run")
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "voice.onnx")
    heard = tool.session(tmp_path / "voice.onnx").run(None, {name: np.asarray(batch[name]) for name in axes if name in batch} | {"scales": inputs[2].numpy()})
    assert heard[0].shape == tuple(waveform.shape) and not np.allclose(heard[0], waveform.detach(), atol=1e-6)


def yolo(path):
    """A head of YOLOv5 as its exporter writes it: one picture, boxes decoded in the graph by constants of the code."""
    weights = {"model.0.conv.weight": floats(8, 3, 3, 3, scale=0.3), "model.0.conv.bias": floats(8, scale=0.1),
               "model.24.m.0.weight": floats(21, 8, 1, 1, scale=0.4), "model.24.m.0.bias": floats(21, scale=0.1)}  # fmt: skip
    grid = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1) - np.float32(0.5)
    anchors = np.float32([[10, 13], [16, 30], [33, 23]]).reshape(3, 1, 1, 2)
    cells = [np.broadcast_to(x, (1, 3, 4, 4, 2)).astype(np.float32).copy() for x in (grid, anchors)]
    constants = {"two": np.float32(2), "eight": np.float32(8), "parts": np.int64([2, 2, 3]), "split": np.int64([1, 3, 7, 4, 4]),
                 "rows": np.int64([1, 48, 7]), "/model.24/Constant_2_output_0": cells[0], "/model.24/Constant_5_output_0": cells[1]}  # fmt: skip
    nodes = [*(node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(x))) for name, x in constants.items()),
             node("Conv", "images model.0.conv.weight model.0.conv.bias", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
             node("Sigmoid", "c", "s"), node("Mul", "c s", "h"), node("Conv", "h model.24.m.0.weight model.24.m.0.bias", "m"),
             node("Reshape", "m split", "r"), node("Transpose", "r", "raw", perm=[0, 1, 3, 4, 2]), node("Sigmoid", "raw", "p"),
             node("Split", "p parts", "xy wh rest", axis=4), node("Mul", "xy two", "xy2"),
             node("Add", "xy2 /model.24/Constant_2_output_0", "cell"), node("Mul", "cell eight", "centre"),
             node("Mul", "wh two", "wh2"), node("Pow", "wh2 two", "square"), node("Mul", "square /model.24/Constant_5_output_0", "size"),
             node("Concat", "centre size rest", "boxes", axis=4), node("Reshape", "boxes rows", "output0")]  # fmt: skip
    save(path, nodes, [value("images", 1, 3, 8, 8)], [value("output0", 1, 48, 7)], weights, 17, 8)
    return weights, cells


def test_a_detector_of_one_picture_is_trained_in_batches(tmp_path):
    """ultralytics/yolov5#11595: "use onnx as pre-trained weights", where the training program takes .pt files alone.

    They needed to fine-tune an exported detector, whose batch is 1 in its Reshapes (microsoft/onnxruntime#10463), and
    whose grid of cells is a constant of the code and no weight.
    """
    model = tmp_path / "model.onnx"
    weights, (grid, anchors) = yolo(model)
    text = tool.run("check", model)
    assert "Next: onnx-train build" in text and "--batch dynamic" in text
    assert "'/model.24/Constant_2_output_0': positions" in text and "1 weight: constants" not in text
    tool.run("build", model, "-o", tmp_path / "train.onnx", "--batch", "dynamic", "--loss", "mse")
    session, x, target = onnx_train.Session(str(tmp_path / "train.onnx"), threads=1), floats(5, 3, 8, 8), floats(5, 48, 7)
    assert not [name for name in session.state if "Constant" in name]
    p = doubles(weights)
    raw = F.conv2d(F.silu(F.conv2d(torch.tensor(x).double(), p["model.0.conv.weight"], p["model.0.conv.bias"], 2, 1)),
                   p["model.24.m.0.weight"], p["model.24.m.0.bias"]).reshape(5, 3, 7, 4, 4).permute(0, 1, 3, 4, 2)  # fmt: skip
    xy, wh, rest = raw.sigmoid().split([2, 2, 3], -1)
    boxes = torch.cat([(xy * 2 + torch.tensor(grid)) * 8, (wh * 2) ** 2 * torch.tensor(anchors), rest], -1).reshape(5, 48, 7)
    loss = F.mse_loss(boxes, torch.tensor(target).double())
    assert session.evaluate(x, target).loss == pytest.approx(loss.item(), rel=1e-5)
    # The raw scores, before what the graph decodes: a loss of one's own starts from them.
    tool.run("build", model, "-o", tmp_path / "raw.onnx", "--batch", "dynamic", "--cut", "raw", "--loss", "bce_with_logits(raw, wanted)")
    wanted = RNG.integers(0, 2, (5, 3, 4, 4, 7)).astype(np.float32)
    data = tool.save(tmp_path / "data.npz", {"images": x, "wanted": wanted})
    tool.run("fit", tmp_path / "raw.onnx", "--data", data, "--steps", 1, "--batch-size", 5, "--out", tmp_path / "run")
    expected = F.binary_cross_entropy_with_logits(raw, torch.tensor(wanted).double())
    assert tool.losses(tmp_path / "run")[0] == pytest.approx(expected.item(), rel=1e-5)
    one = {"images": x[:1], "labels": target[:1]}
    expect_pytorchs(gradients(model, one, "mse"), F.mse_loss(boxes[:1], torch.tensor(target[:1]).double()), p)


def test_the_leaves_of_trees_as_products_are_fine_tuned(tmp_path):
    """microsoft/hummingbird#517: "First attempt on fine-tuning tree-based models", which it compiles to products.

    They needed boosted trees trained on by gradients: the leaves can be, and that the thresholds cannot has to be said.
    """
    feature = np.zeros((6, 5), np.float32)
    feature[np.arange(6), [0, 1, 2, 3, 4, 0]] = 1
    weights = {"weight_1": feature, "bias_1": floats(6, 1), "weight_3": floats(2, 1, 4),
               "weight_2": np.float32([[[1, 1, 0], [1, -1, 0], [-1, 0, 1], [-1, 0, -1]]] * 2),
               "bias_2": np.float32([2, 1, 1, 0] * 2).reshape(2, 4, 1), "nodes": np.int64([2, 3, -1]), "axis": np.int64([0])}  # fmt: skip
    nodes = [node("Transpose", "X", "columns", perm=[1, 0]), node("MatMul", "weight_1 columns", "chosen"),
             node("LessOrEqual", "chosen bias_1", "left"), node("Cast", "left", "f", to=1), node("Reshape", "f nodes", "decisions"),
             node("MatMul", "weight_2 decisions", "paths"), node("Equal", "paths bias_2", "leaf"), node("Cast", "leaf", "g", to=1),
             node("MatMul", "weight_3 g", "values"), node("ReduceSum", "values axis", "sum", keepdims=0),
             node("Transpose", "sum", "y", perm=[1, 0])]  # fmt: skip
    model = tmp_path / "model.onnx"
    save(model, nodes, [value("X", "sym", 5)], [value("y", "sym", 1)], weights, 13, 7)
    text = tool.run("check", model)
    assert 'the loss does not depend on ["weight_1", "weight_2"]; they are not trained' in text and text.rstrip().endswith("--loss mse")
    x, target = floats(64, 5), floats(64, 1)
    found = gradients(model, {"X": x, "labels": target}, "mse")
    assert list(found[1]) == ["weight_3"]
    p = doubles(weights)
    decisions = (p["weight_1"] @ torch.tensor(x.T).double() <= p["bias_1"]).double().reshape(2, 3, -1)
    leaves = (p["weight_2"] @ decisions == p["bias_2"]).double()
    assert (leaves.sum(1) == 1).all()
    expect_pytorchs(found, F.mse_loss((p["weight_3"] @ leaves).sum(0).T, torch.tensor(target).double()), p)
    data = tool.save(tmp_path / "data.npz", {"X": x, "target": target})
    refused = run_refused("fit", model, "--data", data, "--steps", 1, "--train", "bias_1", "--out", tmp_path / "run")
    assert "the gradient is zero after node 'left' (LessOrEqual)" in refused


def test_a_name_of_two_values_is_a_damaged_file(tmp_path):
    """pytorch/pytorch#168211: a buffer `mean` and the output of a ReduceMean have one name in the exported file.

    They needed to be told that the file is wrong, and where; what came out was a model that is connected differently.
    """
    weights = {"mean": np.zeros((1, 3, 1, 1), np.float32), "w": floats(2, 3)}
    nodes = [node("Sub", "v mean", "x", "node_Sub"), node("ReduceMean", "x", "mean", "node_ReduceMean", axes=[2, 3], keepdims=0),
             node("Gemm", "mean w", "y", transB=1)]  # fmt: skip
    save(tmp_path / "model.onnx", nodes, [value("v", "N", 3, 4, 4)], [value("y", "N", 2)], weights, 17, 8, valid=False)
    said = run_refused("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx")
    assert "'mean'" in said and "node_ReduceMean" in said and "export it again" in said
    assert not (tmp_path / "train.onnx").exists()


def test_pictures_in_bytes_enter_a_graph_that_normalizes_and_turns_them(tmp_path):
    """NVIDIA/TensorRT#3985: a graph of Transpose and Cast on a UINT8 picture [N, H, W, C] breaks.

    They needed preprocessing in the file, in front of the network: here such a classifier is trained from pictures in
    folders, its mean and deviation stay, and channels first are refused.
    """
    weights = {"mean": np.float32([123.7, 116.3, 103.5]), "std": np.float32([58.4, 57.1, 57.4]), "k": floats(4, 3, 3, 3, scale=0.5),
               "kb": floats(4, scale=0.1), "fw": floats(4, 2, scale=0.5), "fb": floats(2, scale=0.1)}  # fmt: skip
    nodes = [node("Cast", "image", "f", to=1), node("Sub", "f mean", "s"), node("Div", "s std", "d"),
             node("Transpose", "d", "t", perm=[0, 3, 1, 2]), node("Conv", "t k kb", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             node("Relu", "c", "r"), node("GlobalAveragePool", "r", "g"), node("Flatten", "g", "row"),
             node("Gemm", "row fw fb", "logits")]  # fmt: skip
    model = tmp_path / "model.onnx"
    save(model, nodes, [value("image", "N", 8, 8, 3, dtype=onnx.TensorProto.UINT8)], [value("logits", "N", 2)], weights, 13, 7)
    pixels = RNG.integers(0, 80, (6, 8, 8, 3)).astype(np.uint8) + np.uint8([[[[120, 0, 0]]], [[[0, 0, 120]]]] * 3)
    for i, picture in enumerate(pixels):
        (tmp_path / "data" / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "data" / f"class{i % 2}" / f"{i}.png")
    tool.run("fit", model, "--data", tmp_path / "data", "--steps", 1, "--batch-size", 6, "--out", tmp_path / "run")
    labels = np.arange(6) % 2
    found = gradients(model, {"image": pixels, "labels": labels}, "cross_entropy")
    p = doubles(weights)
    x = ((torch.tensor(pixels).double() - p["mean"].detach()) / p["std"].detach()).permute(0, 3, 1, 2)
    logits = F.relu(F.conv2d(x, p["k"], p["kb"], padding=1)).mean((2, 3)) @ p["fw"] + p["fb"]
    loss = F.cross_entropy(logits, torch.tensor(labels))
    assert tool.losses(tmp_path / "run")[0] == pytest.approx(loss.item(), rel=1e-5)
    assert set(found[1]) == {"k", "kb", "fw", "fb"}
    expect_pytorchs(found, loss, p)
    data = tool.save(tmp_path / "data.npz", {"image": pixels.transpose(0, 3, 1, 2), "labels": labels})
    assert "uint8[N,8,8,3], the data holds uint8[6,3,8,8]" in run_refused("fit", model, "--data", data, "--steps", 1, "--out", tmp_path / "other")


def test_the_gradient_that_guides_a_diffusion_is_a_file_for_any_runtime(tmp_path):
    """onnx/onnx#6088: no way to export the gradient of a graph, which classifier-guided diffusion needs.

    They needed ∂ log p(y | x, t) / ∂x as ONNX, which another runtime runs; microsoft/onnxruntime#13738 adds that such a
    graph of a model with dynamic axes must fit every batch, also where a product broadcasts.
    """
    weights = {"steps": floats(10, 8), "w": floats(6, 8, scale=0.5), "heads": floats(3, 8, 8, scale=0.4), "out": floats(24, 4, scale=0.4),
               "axis": np.int64([1]), "row": np.int64([0, -1])}  # fmt: skip
    nodes = [node("Gather", "steps t", "time"), node("MatMul", "x w", "p"), node("Add", "p time", "h0"), node("Tanh", "h0", "h"),
             node("Unsqueeze", "h axis", "one"), node("Unsqueeze", "one axis", "rows"), node("MatMul", "rows heads", "m"),
             node("Sigmoid", "m", "s"), node("Reshape", "s row", "f"), node("MatMul", "f out", "logits")]  # fmt: skip
    model = tmp_path / "model.onnx"
    inputs = [value("x", "batch", 6), value("t", "batch", dtype=onnx.TensorProto.INT64)]
    save(model, nodes, inputs, [value("logits", "batch", 4)], weights, 17, 8)
    guide = onnx_train.load(str(model)).derivative("gradient", "cross_entropy(logits, y, reduction=sum)", freeze="*")
    guide.save(tmp_path / "guide.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "guide.onnx"))
    names = [output.name for output in session.get_outputs()]
    (of_x,) = [name for name in names if name.endswith("/x")]
    p = doubles(weights)
    for batch in (1, 5):
        x, t, y = floats(batch, 6), RNG.integers(0, 10, batch), RNG.integers(0, 4, batch)
        found = session.run([of_x], {"x": x, "t": t, "y": y})[0]
        point = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        h = torch.tanh(point @ p["w"] + p["steps"][torch.tensor(t)])
        logits = torch.sigmoid(h[:, None, None] @ p["heads"]).flatten(1) @ p["out"]
        logits.log_softmax(1)[torch.arange(batch), torch.tensor(y)].sum().backward()
        np.testing.assert_allclose(-found, point.grad, rtol=1e-4, atol=1e-6)
