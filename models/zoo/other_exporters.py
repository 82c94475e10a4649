"""Files of other frameworks than PyTorch: written by their exporters where these are installed (pip install skl2onnx
jax2onnx), or node by node as tf2onnx and Paddle2ONNX write them. A PyTorch module computes the same."""

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F
from zoo.convolutions import SGD
from zoo.entry import Family, choices, classifier, draw, regressor

FAMILY = Family("Other frameworks")


# ---- scikit-learn


def perceptron():
    generator = draw()
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return regressor(module, {"x": torch.randn(12, 6, generator=generator)}, torch.randn(12, 1, generator=generator))


def skl2onnx(example, path):
    import skl2onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.neural_network import MLPRegressor

    x = example.inputs["x"].numpy()
    model = MLPRegressor(hidden_layer_sizes=(8,), activation="tanh", max_iter=1).fit(x, example.targets["target"].numpy().ravel())
    layers = example.module[0], example.module[2]
    model.coefs_ = [layer.weight.detach().numpy().T.copy() for layer in layers]
    model.intercepts_ = [layer.bias.detach().numpy() for layer in layers]
    written = skl2onnx.convert_sklearn(model, initial_types=[("x", FloatTensorType([None, 6]))], target_opset=17)
    onnx.save(renamed(written, {written.graph.output[0].name: "y"}), path)


def renamed(model, names):
    for n in model.graph.node:
        n.input[:] = [names.get(i, i) for i in n.input]
        n.output[:] = [names.get(o, o) for o in n.output]
    for v in (*model.graph.input, *model.graph.output):
        v.name = names.get(v.name, v.name)
    return model


# ---- JAX: a convolution, channels last, layer norm and attention


class Jax(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, width, 3, 2, 1), nn.LayerNorm(width, eps=2.0**-17)
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 5)

    def forward(self, x):
        x = F.gelu(self.convolution(x.permute(0, 3, 1, 2))).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + torch.softmax(q @ k.transpose(1, 2) * 8**-0.5, -1) @ v
        return self.head(x.mean(1))


def jax_network():
    generator = draw()
    return classifier(Jax(), {"x": torch.randn(4, 8, 8, 3, generator=generator)}, choices(generator, 5, 4))


def jax2onnx(example, path):
    import jax
    import jax.numpy as jnp
    from jax2onnx import to_onnx

    p = {name: jnp.asarray(value.detach().numpy()) for name, value in example.module.named_parameters()}
    kernel = p["convolution.weight"].transpose(2, 3, 1, 0)

    def forward(x):
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.gelu(x + p["convolution.bias"], approximate=False).reshape(x.shape[0], -1, 8)
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        y = (x - mean) * jax.lax.rsqrt(variance + 2.0**-17) * p["norm.weight"] + p["norm.bias"]
        q, k, v = jnp.split(y @ p["qkv.weight"].T + p["qkv.bias"], 3, -1)
        x = x + jax.nn.softmax(q @ k.transpose(0, 2, 1) * 8**-0.5, -1) @ v
        return x.mean(1) @ p["head.weight"].T + p["head.bias"]

    written = to_onnx(forward, [tuple(example.inputs["x"].shape)])
    onnx.save(renamed(written, {written.graph.input[0].name: "x", written.graph.output[0].name: "logits"}), path)


# ---- TensorFlow: channels last, transposed for each convolution; batch norm over channels first


class Channels(nn.Module):
    def __init__(self, last, classes=5):
        super().__init__()
        self.last = last
        self.one, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, eps=2.0**-10, momentum=0.125)
        self.deep, self.head = nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.Linear(8, classes)
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x):
        x = F.relu6(self.norm(self.one(x.permute(0, 3, 1, 2) if self.last else x)))
        x = F.max_pool2d(self.deep(x) + self.bias[:, None, None], 2)
        return self.head(x.mean((2, 3)))


def channels(last):
    def make():
        generator = draw()
        shape = (4, 10, 10, 3) if last else (4, 3, 10, 10)
        return classifier(Channels(last), {"x": torch.randn(shape, generator=generator)}, choices(generator, 5, 4))

    return make


def weights_of(module):
    return {name: value.detach().numpy() for name, value in module.state_dict().items() if value.is_floating_point()}


def saved(path, nodes, initializers, inputs, opset):
    graph = helper.make_graph(nodes, "main_graph", inputs, [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, 5])],
                              [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in initializers.items()])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7), path)


NORM = ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]


def as_tf2onnx(example, path):
    """Names as of Keras layers, an explicit Pad, a bias that is added channels last, a product with the kernel."""
    w = weights_of(example.module)
    to_first, to_last = dict(perm=[0, 3, 1, 2]), dict(perm=[0, 2, 3, 1])
    n = helper.make_node
    nodes = [
        n("Transpose", ["x"], ["conv__6:0"], **to_first),
        n("Conv", ["conv__6:0", "one.weight"], ["conv:0"], kernel_shape=[3, 3], strides=[1, 1], auto_pad="VALID"),
        n("BatchNormalization", ["conv:0", *NORM], ["bn:0"], epsilon=2.0**-10, momentum=0.875),
        n("Clip", ["bn:0", "zero", "six"], ["relu6:0"]),
        n("Conv", ["relu6:0", "deep.weight"], ["depthwise:0"], group=8, kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
        n("Transpose", ["depthwise:0"], ["depthwise__9:0"], **to_last),
        n("Add", ["depthwise__9:0", "bias"], ["BiasAdd:0"]),
        n("Transpose", ["BiasAdd:0"], ["pool__12:0"], **to_first),
        n("MaxPool", ["pool__12:0"], ["pool:0"], kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID"),
        n("GlobalAveragePool", ["pool:0"], ["mean:0"]),
        n("Squeeze", ["mean:0", "spatial"], ["mean__15:0"]),
        n("MatMul", ["mean__15:0", "kernel"], ["MatMul:0"]),
        n("Add", ["MatMul:0", "head.bias"], ["logits"]),
    ]  # fmt: skip
    w["kernel"] = w.pop("head.weight").T
    w |= {"zero": np.float32(0), "six": np.float32(6), "spatial": np.array([2, 3], np.int64)}
    saved(path, nodes, w, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["unk__20", 10, 10, 3])], 13)


def as_paddle2onnx(example, path):
    """Weights in Constant nodes, a batch of -1, biases reshaped before they are added, opset 11."""
    w = weights_of(example.module)
    w["kernel"] = w.pop("head.weight").T
    w |= {"shape": np.array([1, 8, 1, 1], np.int64), "zero": np.float32(0), "six": np.float32(6), "flat": np.array([0, -1], np.int64)}
    n = helper.make_node
    nodes = [n("Constant", [], [name], value=numpy_helper.from_array(np.ascontiguousarray(a), name)) for name, a in w.items()]
    nodes += [
        n("Conv", ["x", "one.weight"], ["conv2d_0.tmp_0"], dilations=[1, 1], group=1, kernel_shape=[3, 3], pads=[0, 0, 0, 0], strides=[1, 1]),
        n("BatchNormalization", ["conv2d_0.tmp_0", *NORM], ["batch_norm_0.tmp_3"], epsilon=2.0**-10, momentum=0.875),
        n("Clip", ["batch_norm_0.tmp_3", "zero", "six"], ["relu6_0.tmp_0"]),
        n("Conv", ["relu6_0.tmp_0", "deep.weight"], ["depthwise.tmp_0"], dilations=[1, 1], group=8, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        n("Reshape", ["bias", "shape"], ["Reshape_0"]),
        n("Add", ["depthwise.tmp_0", "Reshape_0"], ["depthwise.tmp_1"]),
        n("MaxPool", ["depthwise.tmp_1"], ["pool2d_0.tmp_0"], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], ceil_mode=0),
        n("GlobalAveragePool", ["pool2d_0.tmp_0"], ["pool2d_1.tmp_0"]),
        n("Reshape", ["pool2d_1.tmp_0", "flat"], ["flatten_0.tmp_0"]),
        n("MatMul", ["flatten_0.tmp_0", "kernel"], ["linear_0.tmp_0"]),
        n("Add", ["linear_0.tmp_0", "head.bias"], ["logits"]),
    ]  # fmt: skip
    saved(path, nodes, {}, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 3, 10, 10])], 11)


# ---- ONNX Runtime's builder of generative models: a decoder that reads keys and values of the tokens before


class Cached(nn.Module):
    """One layer of Llama, whose queries follow a cache, with rotated heads, two queries to a key."""

    def __init__(self, width=32, vocabulary=20, places=16):
        super().__init__()
        self.embedding, self.qkv, self.mix = nn.Embedding(vocabulary, width), nn.Linear(width, 64, bias=False), nn.Linear(width, width, bias=False)
        self.norm, self.last, self.head = nn.RMSNorm(width, 2.0**-17), nn.RMSNorm(width, 2.0**-17), nn.Linear(width, vocabulary, bias=False)
        angles = torch.arange(places)[:, None] * 0.5 ** torch.arange(4)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def rotated(self, x, first):
        c, s = (t[first : first + x.shape[2]] for t in (self.cosines, self.sines))
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, a * s + b * c], -1)

    def forward(self, text, keys, values):
        x = self.embedding(text)
        batch, time, _ = x.shape
        q, k, v = (p.view(batch, time, -1, 8).transpose(1, 2) for p in self.qkv(self.norm(x)).split((32, 16, 16), -1))
        before = keys.shape[2]
        k = torch.cat([keys, self.rotated(k, before)], 2).repeat_interleave(2, 1)
        v = torch.cat([values, v], 2).repeat_interleave(2, 1)
        hidden = torch.ones(time, before + time, dtype=torch.bool).triu(before + 1)
        weights = (self.rotated(q, before) @ k.transpose(2, 3) * 8**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        return self.head(self.last(x + self.mix((weights @ v).transpose(1, 2).reshape(batch, time, -1))))


def cached(before):
    """Training with an empty cache, or after tokens whose keys and values are given."""

    def make():
        generator = draw()
        text = choices(generator, 20, 3, 7)
        inputs = {"text": text[:, :-1].contiguous(), "keys": torch.randn(3, 2, before, 8, generator=generator),
                  "values": torch.randn(3, 2, before, 8, generator=generator)}  # fmt: skip
        return classifier(Cached(), inputs, text[:, 1:].contiguous())

    return make


def as_onnxruntime(example, path):
    """The nodes that its model builder writes: SimplifiedLayerNormalization, its form with a residual, and
    GroupQueryAttention with caches, whose lengths come from the shapes of the inputs."""
    w = {name: value.detach().numpy() for name, value in example.module.named_parameters()}
    w |= {name: w.pop(name).T for name in ("qkv.weight", "mix.weight", "head.weight")}
    w |= {"cosines": example.module.cosines.numpy(), "sines": example.module.sines.numpy()}
    w |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    n = helper.make_node
    nodes = [
        n("Gather", ["embedding.weight", "text"], ["x"]),
        n("Shape", ["text"], ["sizes"]), n("Gather", ["sizes", "one"], ["time"]),
        n("Shape", ["keys"], ["cache"]), n("Gather", ["cache", "two"], ["before"]), n("Add", ["before", "time"], ["total"]),
        n("Cast", ["total"], ["total_lengths"], to=TensorProto.INT32),
        n("Sub", ["total", "one"], ["last_places"]), n("Gather", ["sizes", "zero"], ["batch"]),
        n("Expand", ["last_places", "batch"], ["all_places"]), n("Cast", ["all_places"], ["lengths"], to=TensorProto.INT32),
        n("SimplifiedLayerNormalization", ["x", "norm.weight"], ["normal"], axis=-1, epsilon=2.0**-17),
        n("MatMul", ["normal", "qkv.weight"], ["qkv"]),
        n("GroupQueryAttention", ["qkv", "", "", "keys", "values", "lengths", "total_lengths", "cosines", "sines"],
          ["attended", "present.keys", "present.values"], domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1),
        n("MatMul", ["attended", "mix.weight"], ["mixed"]),
        n("SkipSimplifiedLayerNormalization", ["mixed", "x", "last.weight"], ["normal_2"], domain="com.microsoft", epsilon=2.0**-17),
        n("MatMul", ["normal_2", "head.weight"], ["logits"]),
    ]  # fmt: skip
    value, kinds = helper.make_tensor_value_info, (TensorProto.FLOAT, TensorProto.INT64)
    cache = ["batch", 2, "past_sequence_length", 8]
    inputs = [value("text", kinds[1], ["batch", "sequence_length"]), *(value(name, kinds[0], cache) for name in ("keys", "values"))]
    graph = helper.make_graph(
        nodes, "main_graph", inputs, [value("logits", kinds[0], ["batch", "sequence_length", 20])],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in w.items()])  # fmt: skip
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)


FAMILY.add("Perceptron of scikit-learn", perceptron, exporters=(skl2onnx,), rate=2.0**-7)
FAMILY.add("Convolution, attention of JAX", jax_network, exporters=(jax2onnx,), rate=2.0**-7)
FAMILY.add("Channels last", channels(True), exporters=(as_tf2onnx,), quick=True, notes="written by hand", **SGD)
FAMILY.add("Weights in Constant nodes", channels(False), exporters=(as_paddle2onnx,), quick=True, notes="written by hand", **SGD)
FAMILY.add("GroupQueryAttention, empty cache", cached(0), exporters=(as_onnxruntime,), notes="written by hand")
FAMILY.add("GroupQueryAttention, filled cache", cached(4), exporters=(as_onnxruntime,), notes="written by hand")
