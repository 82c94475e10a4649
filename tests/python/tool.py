"""Runs the onnx-train command as a user does: a process, files in, files out."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np

os.environ["COLUMNS"] = "10000"  # sentences stay whole, so that tests find them
ROOT = Path(__file__).parents[2]
COMMAND = Path(os.environ.get("ONNX_TRAIN", ROOT / "build" / "onnx-train"))
# The command whose device cuda runs on the host (tests/cuda_on_host).
CUDA_ON_HOST = COMMAND.parent / "cuda_on_host" / "onnx-train"


def start(*arguments, threads=1, command=COMMAND):
    """Starts the command. Models of a few hundred weights are slower with more threads than one."""
    return subprocess.Popen(
        [command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip


def run(*arguments, status=0, timeout=120, threads=1, command=COMMAND):
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


def save(path, arrays):
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return path


def load(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def session(path):
    """The model on ONNX Runtime, as it is."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def metrics(folder):
    """The lines of metrics.jsonl, one per step."""
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def losses(folder):
    return np.array([line["loss"] for line in metrics(folder)])
