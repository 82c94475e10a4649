"""Random models: outputs against ONNX Runtime, gradients against differences in float64.

    python tests/python/fuzzing/fuzz_gradients.py --count 100000 --keep failures
    python tests/python/fuzzing/fuzz_gradients.py --first 4711 --count 1 --keep failures     # one again

Model `number` is the same on every run: it comes from a generator seeded with it. Its outputs are those that ONNX Runtime
computes node by node in float32. Its gradient, uᵀ dy/dw in float64 for a random u, is held against central differences of
4th order along random directions: of all weights and inputs together, and of some alone. Where the differences of several
steps disagree there is a kink next to the model, and a gradient between the slopes on both sides is right.

Processes of some models each do the work, so that one that dies is a failure of the model it was at.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import fuzz_lowering
import numpy as np
import onnx
import onnxruntime
import random_blocks
import random_operators
from random_graph import RandomGraph, Rejected, alone

sys.path.append(str(Path(__file__).parents[1]))

OUTPUT_TOLERANCE = 2e-3  # float32, node after node
TOLERANCE = 1e-6
STEPS = (1e-4, 1e-5, 1e-3, 1e-6)
MODELS_OF_A_PROCESS = 100
SECONDS_OF_A_MODEL = 60
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Failure(Exception):
    """What is wrong with a model."""


def random_model(number):
    """(graph, model, logits)"""
    rng = random.Random(number)
    blocks = random_blocks.BLOCKS + 2 * random_operators.OPERATORS
    while True:
        graph = RandomGraph(rng, batch=rng.choice([1, 2, 3, 4]))
        fuzz_lowering.add_inputs(graph, rng)
        wanted = rng.randint(1, 8)
        for _ in range(4 * wanted):
            wanted -= graph.grow(rng.choice(blocks))
            if wanted == 0:
                break
        classes = rng.choice([1, 3, 5])
        try:
            graph.finish(classes)
            model = graph.model(classes, symbolic=rng.random() < 0.5)
            return graph, model, outputs_of(model, graph)
        except (Rejected, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue


def outputs_of(model, graph):
    """logits on ONNX Runtime. Rejected where it does not take the model, which is sound node by node."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, {name: graph.values[name] for name in graph.data})[0].astype(np.float64)
    except Exception as error:
        raise Rejected(str(error)) from error


class Derivative:
    """The outputs of a model and the product of a vector with its Jacobian, at any point."""

    def __init__(self, model):
        import onnx_train

        derivative = onnx_train.load(model.SerializeToString()).derivative("vjp", mode="frozen", dtype="float64")
        self.notes = derivative.notes
        self.session = onnx_train.Session(derivative, threads=1)
        ports = self.session.inputs("predict")
        self.vector = next((port for port in ports if port.role == "dy"), None)
        self.weights = {port.name: np.array(port.default, np.float64) for port in ports if port.role == "weight"}
        self.results = {port.of: port.name for port in self.session.outputs("predict") if port.role == "gradient"}
        (self.output,) = (port.name for port in self.session.outputs("predict") if port.of == "logits")

    def run(self, arrays, u):
        return self.session.run("predict", arrays | ({self.vector.name: u} if self.vector else {}))


def quotients(f, steps=STEPS):
    """Central differences of 4th order, and the slopes on both sides at the smallest step."""
    center = f(0.0)
    for h in steps:
        yield h, (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h), (f(h) - center) / h, (center - f(-h)) / h


def check_direction(name, derivative, u, point, gradients, direction, counts):
    def f(distance):
        moved = {key: value + distance * direction[key] if key in direction else value for key, value in point.items()}
        return float(np.sum(u * derivative.run(moved, u)[derivative.output]))

    along = sum(float(np.sum(gradients[key] * direction[key])) for key in direction if key in gradients)
    size = sum(float(np.sum(np.abs(gradients[key] * direction[key]))) for key in direction if key in gradients)
    noise = 1e-13 * abs(f(0.0))
    seen = []
    for h, central, right, left in quotients(f):
        if abs(central - along) <= TOLERANCE * max(abs(along), abs(central)) + 1e-8 * size + noise / h:
            return
        seen.append(central)
        low, high = min(left, right), max(left, right)
        bend = high - low
        # A kink moves one side by more than a step does; the slopes of both sides bound the gradient.
        if bend > 1e-3 * max(abs(along), size) and low - 0.1 * bend <= along <= high + 0.1 * bend and h <= 1e-5:
            counts["next to a kink"] += 1
            return
    raise Failure(f"the gradient along {name} is {along:.10g}; differences are {', '.join(f'{s:.10g}' for s in seen)}")


def check(number, counts, keep=None):
    import onnx_train

    graph, model, expected = random_model(number)
    counts["models"] += 1
    for node in model.graph.node:
        counts[f"node {node.op_type}"] += 1
    if keep:
        onnx.save(model, keep / f"{number}.onnx")
    try:
        check_model(graph, model, expected, np.random.default_rng(number), counts)
    except onnx_train.UnsupportedError as error:
        counts["refused: " + re.sub(r"'[^']*'|\b[a-z]+_?\d+|\d+", "_", str(error))[:160]] += 1


def is_close(outputs, expected):
    error = np.abs(outputs - expected).max(initial=0)
    return error <= OUTPUT_TOLERANCE * max(np.abs(expected).max(initial=0), 1)


def agrees_by_node(graph):
    """Whether each node alone computes in float32 what ONNX Runtime does from the same inputs.

    A model at a jump, such as Ceil, or Hardmax of a tie, may then have other outputs for what its nodes round.
    """
    import onnx_train

    for node in (node for node in graph.nodes if node.op_type != "Constant"):
        inputs = {name: graph.values[name] for name in (*node.input, *graph.outer.get(node.output[0], ())) if name}
        model = alone(node, inputs)
        for name, value in inputs.items():
            if value.dtype in (np.int64, bool):  # shapes may depend on them
                model.graph.input.remove(next(port for port in model.graph.input if port.name == name))
                model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        session = onnx_train.Session(onnx_train.load(model.SerializeToString()), threads=1)
        results = session.run("predict", {port.name: inputs[port.name] for port in session.inputs("predict")})
        if not all(is_close(np.asarray(results[name], float), graph.values[name]) for name in node.output if name in graph.values):
            return False
    return True


def check_model(graph, model, expected, rng, counts):
    derivative = Derivative(model)
    inputs = {name: graph.values[name] for name in graph.data}
    inputs = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in inputs.items()}
    u = rng.normal(size=expected.shape)
    point = derivative.weights | inputs
    results = derivative.run(point, u)
    outputs = results[derivative.output]
    if not is_close(outputs, expected):
        error = np.abs(outputs - expected).max(initial=0)
        if agrees_by_node(graph):
            counts["outputs next to a jump"] += 1
            return
        raise Failure(f"the outputs are apart from ONNX Runtime's by {error:.3g}")
    gradients = {name: results[port] for name, port in derivative.results.items()}
    floats = [name for name, value in point.items() if value.dtype == np.float64 and value.size]
    # Others that have none are held to be zero.
    refused = [name for name in floats if any(note.startswith(f"no gradient of the input '{name}'") for note in derivative.notes)]
    floats = [name for name in floats if name not in refused]
    if refused:
        counts["inputs whose gradient is refused"] += len(refused)
    for name in gradients:
        if gradients[name].shape != point[name].shape:
            raise Failure(f"the gradient of {name} has the shape {gradients[name].shape}")
    groups = [floats, *([name] for name in rng.permutation(floats)[:2])]
    for group in groups:
        direction = {name: rng.normal(size=point[name].shape) for name in group}
        norm = max(np.sqrt(sum(np.sum(d**2) for d in direction.values())), 1e-300)
        direction = {name: d / norm for name, d in direction.items()}
        check_direction(" and ".join(group) if len(group) < 3 else "all", derivative, u, point, gradients, direction, counts)
        counts["directions"] += 1


def child(first, count, keep):
    """Prints a line for each model before it begins, for each failure, and the counts at the end."""
    counts = Counter()
    for number in range(first, first + count):
        print(f"at {number}", flush=True)
        try:
            check(number, counts, keep)
        except Failure as failure:
            print(f"failure {number} {failure}", flush=True)
    for what, times in counts.items():
        print(f"count {times} {what}", flush=True)


def run_process(first, count, keep):
    """Complaints by number, counts, and the number from which on there is more to do."""
    arguments = [sys.executable, __file__, "--child", "--first", str(first), "--count", str(count)]
    process = subprocess.Popen([*arguments, *(["--keep", str(keep)] if keep else [])], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD)  # fmt: skip
    try:
        output, errors = process.communicate(timeout=SECONDS_OF_A_MODEL + 2 * count)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    complaints, counts, at = {}, Counter(), first
    for line in output.splitlines():
        what, _, rest = line.partition(" ")
        if what == "at":
            at = int(rest)
        elif what == "failure":
            number, _, text = rest.partition(" ")
            complaints[int(number)] = text
        elif what == "count":
            times, _, name = rest.partition(" ")
            counts[name] += int(times)
    if process.returncode == 0:
        return complaints, counts, first + count
    last = errors.strip().splitlines()[-1:] or [""]
    complaints[at] = f"the process ended with {process.returncode}: {last[0]}"
    return complaints, counts, at + 1


def run(first, count, keep=None, seconds=float("inf"), report=print):
    """Tries models; returns complaints by number and what was counted."""
    complaints, counts, end, number = {}, Counter(), time.monotonic() + seconds, first
    while number < first + count and time.monotonic() < end:
        found, counted, number = run_process(number, min(MODELS_OF_A_PROCESS, first + count - number), keep)
        for failing, text in found.items():
            report(f"{failing}: {text}")
        complaints |= found
        counts += counted
    return complaints, counts


def main():
    parser = fuzz_lowering.parser_of(__doc__, 200, "start no process after these", "folder for the models")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        return child(arguments.first, arguments.count, arguments.keep)
    fuzz_lowering.try_models(run, arguments)


if __name__ == "__main__":
    main()
