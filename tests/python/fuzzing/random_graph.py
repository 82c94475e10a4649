"""A forward model that grows node by node, with the contents of every value at hand.

Each node is run by ONNX Runtime as it is added: a node whose results are not finite, too large, or too close to a kink
of what computed them is turned away (`Rejected`). What is left is a model whose training is well conditioned nearly
everywhere, so that two plans for it must agree.
"""

import math

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
SIZES = [1, 1, 2, 2, 3, 4, 4, 5, 7, 8, 8, 15, 16, 16, 17, 32, 33]
MAX_ELEMENTS = 1 << 14
LARGEST = 50.0  # of an element
NEAR = 1e-4  # a kink


class Rejected(Exception):
    """What was to be added does not fit."""


def model_of(nodes, inputs, outputs, initializers=(), name="g"):
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def declared(name, array, shape=None):
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, dtype, array.shape if shape is None else shape)


def alone(node, inputs):
    """A model of one node."""
    return model_of([node], [declared(n, v) for n, v in inputs.items()],
                    [helper.make_empty_tensor_value_info(n) for n in node.output if n])  # fmt: skip


def evaluate(node, values, outer=()):
    """The node's outputs, from the contents of its inputs and of those that its subgraphs read."""
    inputs = {name: values[name] for name in (*node.input, *outer) if name}
    model = alone(node, inputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(zip([n for n in node.output if n], session.run(None, inputs)))
    except Exception as error:
        raise Rejected(str(error)) from error


class RandomGraph:
    def __init__(self, rng, batch):
        self.rng, self.batch = rng, batch
        self.values = {}  # contents, of the first batch
        self.data = {}  # of the model's inputs, of all batches
        self.weights, self.nodes = {}, []
        self.outer = {}  # what subgraphs read, by the node's first output
        self.live = []  # float values to go on from

    # ---- values

    def size(self):
        return self.rng.choice(SIZES)

    def random(self, *shape, scale=1.0):
        seed = self.rng.randrange(2**32)
        return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)

    def name(self, kind):
        return f"{kind}{len(self.values)}"

    def input(self, kind, array):
        """`array` holds the samples of all batches."""
        name = self.name(kind)
        self.data[name], self.values[name] = array, array[: self.batch]
        return name

    def weight(self, *shape, scale=None):
        """One to train; at times one that is in use elsewhere."""
        if math.prod(shape) > MAX_ELEMENTS:
            raise Rejected("too large a weight")
        same = [n for n, v in self.weights.items() if v.shape == shape and n.startswith("w")]
        if same and self.rng.random() < 0.4:
            return self.rng.choice(same)
        name = self.name("w")
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 4
        self.weights[name] = self.random(*shape, scale=scale or 1 / math.sqrt(max(fan_in, 1)))
        self.values[name] = self.weights[name]
        return name

    def constant(self, values, dtype=np.int64):
        """One that is not trained: an initializer (names const... are frozen) or a node."""
        name, array = self.name("const"), np.asarray(values, dtype)
        self.values[name] = array
        if self.rng.random() < 0.5:
            self.weights[name] = array
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        return name

    def shape(self, name):
        return self.values[name].shape

    def pick(self, *ranks, where=lambda shape: True):
        """A float value of one of the ranks; one of the latest, as a rule."""
        fits = [n for n in self.live if (not ranks or len(self.shape(n)) in ranks) and where(self.shape(n))]
        if not fits:
            raise Rejected("nothing of that shape")
        return self.rng.choice(fits[-3:] if self.rng.random() < 0.6 else fits)

    # ---- nodes

    def op(self, op_type, *inputs, outputs=1, kinks=(), outer=(), **attributes):
        """Adds a node, or raises Rejected. Returns its output, or the list of them. `outer`: what its subgraphs read."""
        for kink in kinks:
            distance = np.abs(self.values[inputs[0]] - np.float32(kink))
            if np.any((distance < NEAR) & (distance > 0)):
                raise Rejected("near a kink")
        first = len(self.values)
        names = [f"v{first + i}" for i in range(outputs)]
        node = helper.make_node(op_type, inputs, names, **attributes)
        results = evaluate(node, self.values, outer)
        for value in results.values():
            if value.size > MAX_ELEMENTS or len(value.shape) > 6:
                raise Rejected("too large")
            if value.dtype == np.float32 and not (np.all(np.isfinite(value)) and np.abs(value).max(initial=0) < LARGEST):
                raise Rejected("not finite, or too large")
        self.nodes.append(node)
        self.outer[names[0]] = outer
        self.values.update(results)
        return names[0] if outputs == 1 else names

    def grow(self, block):
        """Adds what block(self) makes, all of it or nothing; whether it did."""
        nodes, weights, values = len(self.nodes), dict(self.weights), dict(self.values)
        try:
            made = block(self)
        except (Rejected, ValueError, IndexError, ZeroDivisionError):  # the latter: of empty tensors
            del self.nodes[nodes:]
            self.weights, self.values = weights, values
            return False
        self.live += [n for n in ([made] if isinstance(made, str) else made) if self.values[n].dtype == np.float32]
        return True

    # ---- the whole

    def sinks(self):
        """Float values that nothing reads."""
        read = {name for node in self.nodes for name in node.input}
        return [name for name in self.live if name not in read]

    def finish(self, classes):
        """Joins every loose end in `logits` of [batch, classes]."""
        terms = []
        for name in self.sinks():
            shape = self.shape(name)
            if len(shape) < 2 or shape[0] != self.batch or self.values[name].size == 0:
                axes = [] if not shape else [self.constant(list(range(len(shape))))]
                terms.append(self.op("ReduceSum", name, *axes, keepdims=0) if math.prod(shape) < 9 else
                             self.op("ReduceMean", name, *axes, keepdims=0))  # fmt: skip
                continue
            flat = name if len(shape) == 2 else self.op("Flatten", name, axis=1)
            terms.append(self.op("MatMul", flat, self.weight(self.shape(flat)[1], classes)))
        terms.append(self.weight(1, classes))
        # One term of the full shape comes first, whatever broadcasts behind it.
        terms.sort(key=lambda n: -self.values[n].size)
        if self.shape(terms[0]) != (self.batch, classes):
            raise Rejected("nothing depends on the batch")
        self.nodes.append(helper.make_node("Sum", terms, ["logits"]))
        return "logits"

    def model(self, classes, symbolic):
        inputs = [declared(n, v, (["N"] if symbolic else [self.batch]) + list(v.shape[1:])) for n, v in self.data.items()]
        batch = "N" if symbolic else self.batch
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, classes])
        model = model_of(self.nodes, inputs, [output],
                         [numpy_helper.from_array(v, n) for n, v in self.weights.items()])  # fmt: skip
        onnx.checker.check_model(model, full_check=True)
        return model
