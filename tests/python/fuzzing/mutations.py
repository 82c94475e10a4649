"""Broken model files: each mutation takes a good model and a random generator and writes what a user might be handed.

Byte mutations damage the file as disks and attackers do; message mutations are well-formed protobuf that says
something impossible.
"""

import math
import os
import random
from pathlib import Path

import onnx
from onnx import TensorProto, helper

HUGE = [2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**63), 0]

SEEDS = {
    "attention": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (int64[N,8] tokens) => (float[N,8,16] logits)
        <float[16,4] table, float[4,4] wq, float[4,4] wk, float[4] gain, float[4] bias, float[4,16] head,
         int64[3] shape = {-1, 8, 4}, float scale = {0.5}>
        {
          x = Gather(table, tokens)
          n = LayerNormalization<axis = -1>(x, gain, bias)
          q = MatMul(n, wq)
          k = MatMul(n, wk)
          t = Transpose<perm = [0, 2, 1]>(k)
          s = MatMul(q, t)
          m = Mul(s, scale)
          p = Softmax<axis = -1>(m)
          a = MatMul(p, n)
          r = Reshape(a, shape)
          logits = MatMul(r, head)
        }""",
    "branch": """
        <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[N,4] x, bool c) => (float[N,3] y)
        <float[4,3] w, float[3] b>
        {
          h = local.Dense(x, w, b)
          y = If (c) <
            then_branch = yes () => (float[N,3] u) { u = Relu(h) },
            else_branch = no () => (float[N,3] v) { v = Neg(h) }
          >
        }
        <domain: "local", opset_import: ["" : 21]>
        Dense (x, w, b) => (y)
        {
          m = MatMul(x, w)
          y = Add(m, b)
        }""",
    "recurrent": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,4] x, int64[N,5] ids) => (float[N,3] y)
        <float[8,6] table, float[1,16,6] wi, float[1,16,4] wh, float[1,32] b, float[4,3] head, int64[1] zero = {0}>
        {
          e = Gather(table, ids)
          t = Transpose<perm = [1, 0, 2]>(e)
          seq, last, cell = LSTM<hidden_size = 4>(t, wi, wh, b)
          h = Squeeze(last, zero)
          g1 = Mul(h, x)
          d = Dropout(g1)
          y = MatMul(d, head)
        }""",
    "pictures": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,3,32,32] x) => (float[N,3] y)
        <float[4,3,3,3] w1, float[4] scale, float[4] bias, float[4] mean, float[4] var, float[4,1,3,3] w2, float[4,3] head>
        {
          c = Conv<strides = [4, 4]>(x, w1)
          n = BatchNormalization(c, scale, bias, mean, var)
          r = Relu(n)
          m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
          d = Conv<pads = [1, 1, 1, 1], group = 4>(m, w2)
          p = GlobalAveragePool(d)
          f = Flatten(p)
          y = MatMul(f, head)
        }""",
    "scan": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,5,4] x) => (float[N,3] y)
        <float[4,4] w, float[4,3] head, int64 zero = {0}, int64[1] zeros = {0}>
        {
          steps = Transpose<perm = [1, 0, 2]>(x)
          first = Gather(steps, zero)
          last, all = Scan<num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
            body = step (float[N,4] h, float[N,4] now) => (float[N,4] next, float[N,4] seen) {
              m = MatMul(h, w)
              s = Add(m, now)
              next = Tanh(s)
              seen = Neg(next)
            }>(first, steps)
          mean = ReduceMean<keepdims = 0>(all, zeros)
          both = Add(last, mean)
          y = MatMul(both, head)
        }""",
    "recurrences": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,5,6] x, int32[N] lens, float[N,1,4] h, float[N,1,4] c) => (float[N,3] y)
        <float[1,16,6] wl, float[1,16,4] rl, float[1,32] bl, float[1,12] peep, float[1,12,6] wg, float[1,12,4] rg,
         float[1,24] bg, float[1,4,6] wr, float[1,4,4] rr, float[1,8] br, float[4,3] head, int64[1] one = {1}>
        {
          yl, hl, cl = LSTM<hidden_size = 4, layout = 1>(x, wl, rl, bl, lens, h, c, peep)
          yg, hg = GRU<hidden_size = 4, layout = 1, linear_before_reset = 1>(x, wg, rg, bg, lens, h)
          yr, hr = RNN<hidden_size = 4, layout = 1>(x, wr, rr, br, lens, h)
          s = Sum(hl, hg, hr)
          q = Squeeze(s, one)
          y = MatMul(q, head)
        }""",
    "shapes": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,4,6] x) => (float[N,3] y)
        <float low = {-0.5}, float high = {0.5}, int64[6] pads = {0, 1, 1, 0, 0, 1}, float border = {0.25},
         int64[2] starts = {-1, 0}, int64[2] ends = {-9223372036854775807, 6}, int64[2] axes = {1, 2},
         int64[2] steps = {-2, 1}, int64[1] k = {4}, int64 axis = {2}, int64 diagonal = {-1}, int64[2] split = {2, 2},
         int64[3] repeats = {1, 2, 1}, int64[3] wide = {1, 6, 2}, float[1,6,1] gain, float[16,3] head,
         int64[2] shape = {0, -1}, int64[1] from = {0}, int64[1] to = {16}, int64[1] along = {1}>
        {
          c = Clip(x, low, high)
          p = Pad(c, pads, border)
          s = Slice(p, starts, ends, axes, steps)
          v, i = TopK<axis = 2>(s, k)
          d = CumSum<reverse = 1>(v, axis)
          t = Trilu<upper = 0>(d, diagonal)
          a, b = Split<axis = 2>(t, split)
          r = Tile(a, repeats)
          g = Mul(r, gain)
          e = Expand(g, wide)
          z = Concat<axis = 1>(b, e)
          n = Less(z, border)
          w = Where(n, z, border)
          f = Transpose<perm = [0, 2, 1]>(w)
          flat = Reshape(f, shape)
          o = Slice(flat, from, to, along)
          y = MatMul(o, head)
        }""",
    "indexing": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,6] x, int64[N,3] ids) => (float[N,3] y)
        <float[8,6] table, float[6,3] head, int64[2,2] pairs = {0, 1, 2, -1}, float[2] updates,
         int64[3,6] rows = {0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0, 7, 7, 7, 7, 7, 7}, float[3,6] more, int64 depth = {8},
         float[2] values = {0, 1}, int64 first = {0}, int64 last = {6}, int64 step = {2},
         int64[1] one = {1}>
        {
          t = ScatterND(table, pairs, updates)
          u = ScatterElements<axis = 0, reduction = "add">(t, rows, more)
          g1 = Gather(u, ids)
          hot = OneHot(ids, depth, values)
          g2 = MatMul(hot, u)
          picked = GatherElements<axis = 1>(x, ids)
          counted = Range(first, last, step)
          odd = Gather<axis = 1>(x, counted)
          both = Mul(picked, odd)
          pairs_of_u = GatherND(u, pairs)
          s = ReduceSum<keepdims = 0>(pairs_of_u)
          g = Add(g1, g2)
          m = ReduceMean<keepdims = 0>(g, one)
          n = MatMul(m, head)
          l = Mul(n, s)
          y = Add(l, both)
        }""",
    "blocks": """
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[N,4,6] x) => (float[N,3] y)
        <float[4] gs, float[4] gb, float[6] ls, float[6] lb, float[6,6] w, float[4,4] mask, float[6,3] head, int64[1] one = {1}>
        {
          n = GroupNormalization<num_groups = 2>(x, gs, gb)
          l = LayerNormalization<axis = -1>(n, ls, lb)
          q = Einsum<equation = "nti,ij->ntj">(l, w)
          a = Attention<q_num_heads = 2, kv_num_heads = 2>(q, l, l, mask)
          g = Gelu(a)
          s = ReduceMean<keepdims = 0>(g, one)
          y = MatMul(s, head)
        }""",
    "windows": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,2,9,9] x) => (float[N,3] y)
        <float[2,4,3,3] w1, float[4] b1, float[4,2,3,3] w2, float[4,3] head>
        {
          t = ConvTranspose<strides = [2, 2], output_padding = [1, 1], pads = [1, 1, 1, 1]>(x, w1, b1)
          m, i = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(t)
          a = AveragePool<kernel_shape = [2, 2], pads = [1, 0, 0, 1], count_include_pad = 1>(m)
          d = Conv<group = 2, dilations = [2, 2], auto_pad = "SAME_UPPER">(a, w2)
          l = LpPool<kernel_shape = [2, 2]>(d)
          p = GlobalMaxPool(l)
          f = Flatten(p)
          y = MatMul(f, head)
        }""",
}


def seed_models(root):
    """Good models to break: those above with weights filled in, and the CNN of models/."""
    rng = random.Random(0)
    models = []
    for text in SEEDS.values():
        model = onnx.parser.parse_model(text)
        for value in model.graph.value_info:  # declared without contents
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            weights = [rng.uniform(0.1 if value.name == "var" else -1, 1) for _ in range(math.prod(shape))]
            model.graph.initializer.append(helper.make_tensor(value.name, TensorProto.FLOAT, shape, weights))
        del model.graph.value_info[:]
        models.append(model)
    models.append(onnx.load(Path(root) / "models" / "digits_cnn.onnx"))
    return models


# ---- bytes ----------------------------------------------------------------------------------------------------------


def truncated(data, rng):
    return data[: rng.randrange(len(data))]


def bits_flipped(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 2, 8, 64])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def bytes_replaced(data, rng):
    start = rng.randrange(len(data))
    return data[:start] + rng.randbytes(min(rng.choice([1, 4, 100]), len(data) - start)) + data[start:][100:]


def span_repeated(data, rng):
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice([1, 10, 1000]))
    return data[:end] + data[start:end] * rng.choice([1, 3, 50]) + data[end:]


def length_inflated(data, rng):
    """A length prefix that claims more than there is."""
    start = rng.randrange(len(data))
    return data[:start] + b"\xff\xff\xff\xff\x07" + data[start:]


def not_a_model(data, rng):
    return rng.choice([b"", b"\0", b"hello\n" * 10, rng.randbytes(1000), b"\x0a" * 5000, b"\x3a\xff\xff\xff\xff\x0f"])


def nested_deeply(data, rng):
    """Graphs in attributes of nodes in graphs: deeper than a parser's stack if it has no limit."""
    inner = b""
    for tag in [b"\x0a", b"\x2a", b"\x32"][::-1] * rng.choice([40, 5000]):
        length, prefix = len(inner), b""
        while length >= 128:
            prefix, length = prefix + bytes([length % 128 + 128]), length // 128
        inner = tag + prefix + bytes([length]) + inner
    return data + b"\x3a" + bytes([len(inner) % 128 + 128, len(inner) // 128 % 128 + 128, len(inner) >> 14]) + inner


BYTES = [nested_deeply, truncated, bits_flipped, bits_flipped, bytes_replaced, span_repeated, length_inflated, not_a_model]

# ---- messages -------------------------------------------------------------------------------------------------------


def some_node(model, rng):
    return rng.choice(model.graph.node)


def some_tensor(model, rng):
    return rng.choice(model.graph.initializer)


def cycle(model, rng, folder):
    nodes = model.graph.node
    i = rng.randrange(len(nodes))
    if nodes[i].input:
        nodes[i].input[rng.randrange(len(nodes[i].input))] = rng.choice(nodes[i:]).output[0]


def undefined_input(model, rng, folder):
    some_node(model, rng).input.append(rng.choice(["nobody", "", "x" * 100000, "\u202e", "a\nb"]))


def output_twice(model, rng, folder):
    some_node(model, rng).output[0] = some_node(model, rng).output[0]


def inputs_dropped(model, rng, folder):
    del some_node(model, rng).input[rng.choice([0, 1]) :]


def nodes_shuffled(model, rng, folder):
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def another_operator(model, rng, folder):
    node = some_node(model, rng)
    node.op_type = rng.choice(["Conv", "MatMul", "Gather", "Split", "If", "Loop", "LSTM", "Nothing", "", "Dropout",
                               "TopK", "Resize", "Slice", "Pad", "Einsum", "BatchNormalization"])  # fmt: skip
    node.domain = rng.choice(["", "", "ai.onnx.ml", "onnx_train", "local", "x"])


def tensor_shape(model, rng, folder):
    tensor = some_tensor(model, rng)
    if tensor.dims and rng.random() < 0.7:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([*HUGE, 1, 7])
    else:
        tensor.dims.extend(rng.choice([[2**20] * 4, [1] * 1000, [-3], [0]]))


def tensor_data(model, rng, folder):
    tensor = some_tensor(model, rng)
    if tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data))]
    elif tensor.float_data:
        tensor.float_data.append(rng.choice([float("nan"), float("inf"), 1.0]))
    else:
        tensor.data_type = rng.choice([0, 1, 8, 14, 99, -1])


def tensor_type(model, rng, folder):
    some_tensor(model, rng).data_type = rng.choice([0, 2, 6, 7, 8, 9, 10, 11, 14, 22, 99, 2**31 - 1, -1])


def shape_values(model, rng, folder):
    """What Reshape, Expand and the like are told."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.INT64:
            count = len(tensor.raw_data) // 8 or len(tensor.int64_data)
            values = [rng.choice([*HUGE, 1, 8]) for _ in range(count)]
            tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT64, list(tensor.dims), values))


def input_type(model, rng, folder):
    value = rng.choice([*model.graph.input, *model.graph.output])
    kind = rng.randrange(4)
    if kind == 0:
        value.type.tensor_type.elem_type = rng.choice([0, 7, 8, 99])
    elif kind == 1:
        value.ClearField("type")
    elif kind == 2:
        dims = value.type.tensor_type.shape.dim
        if dims:
            rng.choice(dims).dim_value = rng.choice(HUGE)
    else:
        value.name = rng.choice(["", value.name * 2, "logits"])


def attribute(model, rng, folder):
    nodes = [n for n in model.graph.node if n.attribute]
    if not nodes:
        return
    a = rng.choice(rng.choice(nodes).attribute)
    if a.ints:
        a.ints[rng.randrange(len(a.ints))] = rng.choice(HUGE)
    elif a.type == onnx.AttributeProto.INT:
        a.i = rng.choice(HUGE)
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f = rng.choice([float("nan"), float("inf"), -1e38])
    else:
        a.type = rng.choice([0, 1, 2, 3, 4, 5, 14])


def attribute_type(model, rng, folder):
    nodes = [n for n in model.graph.node if n.attribute]
    if not nodes:
        return
    a = rng.choice(rng.choice(nodes).attribute)
    kind = rng.randrange(3)
    if kind == 0:
        a.type = rng.randrange(15)
    elif kind == 1:
        a.ints.extend([1] * 100000)
    else:
        a.name = "axis"


def opset(model, rng, folder):
    if rng.random() < 0.3:
        del model.opset_import[:]
    else:
        model.opset_import[0].version = rng.choice([-1, 0, 1, 6, 9, 11, 13, 99, 2**62])


def external_data(model, rng, folder):
    tensor = some_tensor(model, rng)
    secret = folder / "secret"
    secret.write_bytes(bytes(1 << 16))
    inside = folder / "model"
    inside.mkdir(exist_ok=True)
    link, hard = inside / "link.bin", inside / "hard.bin"
    if not link.exists():
        link.symlink_to(secret)
        os.link(secret, hard)
        (inside / "good.bin").write_bytes(bytes(64))
        (inside / "folder").mkdir()
    location = rng.choice(["../secret", "/etc/passwd", "link.bin", "hard.bin", "good.bin", "folder", "", "missing.bin",
                           "a/../../secret", "/dev/zero", "good.bin\0x", "x" * 5000, "./good.bin"])  # fmt: skip
    entries = {"location": location, "offset": str(rng.choice([0, -1, 2**63, 60, "x"])),
               "length": str(rng.choice([0, 64, 2**62, -5, "1e9"]))}  # fmt: skip
    if rng.random() < 0.3:
        entries[rng.choice(["basepath", "checksum", "location "])] = "/"
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def deep_subgraphs(model, rng, folder):
    condition = helper.make_tensor("c0", TensorProto.BOOL, [], [True])
    model.graph.initializer.append(condition)
    graph = helper.make_graph([helper.make_node("Identity", ["c0"], ["end"])], "leaf", [], [
        helper.make_tensor_value_info("end", TensorProto.BOOL, [])])  # fmt: skip
    for i in range(rng.choice([5, 20, 30])):
        node = helper.make_node("If", ["c0"], [f"o{i}"], then_branch=graph, else_branch=graph if i < 3 else None)
        output = helper.make_tensor_value_info(f"o{i}", TensorProto.BOOL, [])
        graph = helper.make_graph([node], f"g{i}", [], [output])
    model.graph.node.extend(graph.node)


def function_calls_itself(model, rng, folder):
    node = helper.make_node("Loop2", ["a"], ["b"], domain="mine")
    function = helper.make_function("mine", "Loop2", ["a"], ["b"], [node], [helper.make_opsetid("mine", 1)])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.graph.node.append(helper.make_node("Loop2", [model.graph.node[0].output[0]], ["looped"], domain="mine"))


def memory_bomb(model, rng, folder):
    """Constants that a folding pass would like to compute."""
    big = helper.make_tensor("big", TensorProto.INT64, [3], rng.choice([[2**20] * 3, [2**33, 1, 1], [10**6, 10**6, 0]]))
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    model.graph.initializer.extend([big, one])
    bomb = rng.choice(
        [
            [helper.make_node("ConstantOfShape", ["big"], ["bomb"])],
            [helper.make_node("Expand", ["one", "big"], ["bomb"])],
            [helper.make_node("Expand", ["one", "big"], ["wide"]), helper.make_node("ReduceSum", ["wide"], ["bomb"])],
        ]
    )
    last = model.graph.output[0].name
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            if name == last:
                node.output[i] = "before_bomb"
    model.graph.node.extend([*bomb, helper.make_node("Add", ["before_bomb", "bomb"], [last])])


def training_info(model, rng, folder):
    info = model.training_info.add()
    info.algorithm.name = rng.choice(["step", "", "predict"])
    info.algorithm.node.add(op_type="Relu", input=["nobody"], output=["y"])
    info.update_binding.add(key="nobody", value=rng.choice(["y", "", "nothing"]))


def names(model, rng, folder):
    for node in model.graph.node:
        node.name = rng.choice(["", "same", "\x1b[31m", "é" * 50])


def empty_graph(model, rng, folder):
    rng.choice([lambda: model.ClearField("graph"), lambda: model.graph.ClearField("node"),
                lambda: model.graph.ClearField("output"), lambda: model.graph.ClearField("input")])()  # fmt: skip


MESSAGES = [cycle, undefined_input, output_twice, inputs_dropped, nodes_shuffled, another_operator, tensor_shape,
            tensor_data, tensor_type, shape_values, input_type, attribute, attribute_type, opset, external_data,
            deep_subgraphs, function_calls_itself, memory_bomb, training_info, names, empty_graph]  # fmt: skip


def write(number, models, folder):
    """Writes broken model `number` into `folder`; returns its path and what was done to it."""
    rng = random.Random(number)
    model = onnx.ModelProto()
    model.CopyFrom(rng.choice(models))
    path = folder / "model" / "broken.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    if number % 2:
        mutation = BYTES[number // 2 % len(BYTES)]
        path.write_bytes(mutation(model.SerializeToString(), rng))
    else:
        mutation = MESSAGES[number // 2 % len(MESSAGES)]
        mutation(model, rng, folder)
        path.write_bytes(model.SerializeToString())
    return path, mutation.__name__
