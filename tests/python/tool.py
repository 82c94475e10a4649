"""Runs the onnx-train command as a user does: a process, files in, files out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

PATIENCE = 300  # seconds after which a process hangs: far above what a busy machine needs
os.environ["COLUMNS"] = "10000"  # sentences stay whole, so that tests find them
ROOT = Path(__file__).parents[2]
COMMAND = Path(os.environ.get("ONNX_TRAIN", ROOT / "build" / "onnx-train"))
BUILD = COMMAND.parent
# The command whose device cuda runs on the host (tests/cuda_on_host).
CUDA_ON_HOST = COMMAND.parent / "cuda_on_host" / "onnx-train"
sys.path.insert(0, str(COMMAND.parent / "python"))  # the package onnx_train, where the build made it


def start(*arguments, threads=1, command=COMMAND):
    """Starts the command. Models of a few hundred weights are slower with more threads than one."""
    return subprocess.Popen(
        [command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip


def output(*arguments):
    """What the command writes to standard output, without what it says beside it."""
    return start(*arguments).communicate(timeout=PATIENCE)[0]


def run(*arguments, status=0, timeout=PATIENCE, threads=1, command=COMMAND):
    """Runs the command to its end and returns what it printed; fails with its messages on another exit status."""
    process = start(*arguments, threads=threads, command=command)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    line = " ".join(map(str, arguments))
    assert process.returncode == status, f"onnx-train {line}\nexit status {process.returncode}\n{output}{errors}"
    return output + errors


# What the system counts as a child's peak includes what the process had that started it: this one has next to nothing.
PEAK = "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stderr=subprocess.STDOUT); \
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr); sys.exit(done.returncode)"


def peak_of(*arguments, threads=1, env=None):
    """Runs the command; its peak of resident memory in bytes, and what it printed. `env` is added to the environment."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PEAK, COMMAND, *map(str, arguments)], capture_output=True, text=True,
        timeout=PATIENCE, env=os.environ | {"OMP_NUM_THREADS": str(threads)} | (env or {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return int(done.stderr), done.stdout


def save(path, arrays):
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return path


def load(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def session(path, optimize=False):
    """The model on ONNX Runtime, as it is or with all that it does to a graph by default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def metrics(folder):
    """The lines of metrics.jsonl, one per step."""
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def losses(folder):
    return np.array([line["loss"] for line in metrics(folder)])


def state_of(training_model):
    """The state's start: initializers of the inference graph and of the algorithms."""
    graphs = [training_model.graph, *(info.algorithm for info in training_model.training_info)]
    return {t.name: numpy_helper.to_array(t) for graph in graphs for t in graph.initializer}


def run_steps(model, entry_path, data, batch_size, steps, rate):
    """Steps of a flattened entry point on ONNX Runtime: what comes out as next/<state> goes in as <state>."""
    runtime = session(entry_path, optimize=True)
    outputs = [o.name for o in runtime.get_outputs()]
    initial = state_of(onnx.load(model))
    names = [i.name for i in runtime.get_inputs()]
    state = {name: initial[name] for name in names if name in initial and f"next/{name}" in outputs}
    losses = []
    for step in range(steps):
        start = step * batch_size % len(next(iter(data.values())))
        feeds = {name: data[name][start : start + batch_size] for name in names if name in data}
        feeds["learning_rate"] = np.array(rate, np.float32)
        results = dict(zip(outputs, runtime.run(None, {**feeds, **state})))
        losses.append(results[outputs[0]])  # "loss", or "loss_1" where the model has an output of that name
        state = {name: results[f"next/{name}"] for name in state}
    return np.array(losses)
