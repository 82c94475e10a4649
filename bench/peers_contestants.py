"""Who takes part in peers.py: the command that each runs, what it trains, and the files that it needs beyond ours."""

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

from peers_workloads import COMMAND, ROOT

# Each has an environment of its own, build/contestants/NAME, as NAME.txt in bench/contestants describes it.
OWN_ENVIRONMENT = ["ort-training", "spingalett"]
ALL = ["eager", "compile", "jax", "onnxruntime", "ort-training", "ours"]
SCRIPTS = {"jax": "peers_jax.py", "ort-training": "peers_ort_training.py"}
# What contestants train that do not train everything: (networks, precisions).
TRAINS = {
    "jax": (["mlp", "resnet18", "gpt2", "dlrm", "lstm", "masked_lm"], ["float32", "gemm-bf16", "bf16"]),
    "ort-training": (["mlp", "resnet18", "masked_lm"], ["float32"]),
}


def python_of(kind):
    return ROOT / "build" / "contestants" / kind / "bin" / "python" if kind in OWN_ENVIRONMENT else Path(sys.executable)


def is_installed(kind):
    if kind == "jax":
        return importlib.util.find_spec("jax") is not None
    return python_of(kind).exists()


def installed():
    return [kind for kind in ALL if is_installed(kind)]


def version(kind):
    """As its first requirement names it."""
    pinned = (ROOT / "bench" / "contestants" / f"{kind}.txt").read_text().split()[0]
    return pinned.split("==")[1]


def trains(kind, workload, precision):
    networks, precisions = TRAINS.get(kind, ([workload.network], [precision]))
    return workload.network in networks and precision in precisions


def make_own_files(kind, example, folder):
    """Returns what the contestant reads beyond the files of all, by the name of the worker's argument."""
    if kind == "jax":
        return {"weights": save_weights(example.module, folder / "weights.npz")}
    if kind == "ort-training":
        return {"portable": export_for_training(example, folder / "portable.onnx")}
    return {}


def save_weights(module, path):
    """Weights and running statistics, by name; a tensor with two names once."""
    import numpy as np

    statistics = [(name, buffer) for name, buffer in module.named_buffers() if ".running_" in name]
    np.savez(path, **{name: tensor.detach().numpy() for name, tensor in [*module.named_parameters(), *statistics]})
    return path


def export_for_training(example, path):
    """By the older exporter, in train mode, every size fixed, and logits with one axis before the classes', for the losses
    of ONNX Runtime Training."""
    from export import export
    from torch import nn

    class Flat(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *inputs):
            return self.module(*inputs).flatten(0, -2)

    export(Flat(example.module), example.inputs, path, exporter="torchscript", train=True, sizes={})
    return path


def command_of(kind, workload, example, precision, files, folder, threads, options):
    """What to run, as a list."""
    if kind in ("ours", "before"):
        command = COMMAND if kind == "ours" else options.before
        return [command, "bench", files.training, "--data", files.data, "--batch-size", str(workload.sizes["batch"]),
                "--seconds", "1e9", "--each-step"]  # fmt: skip
    arguments = dict(
        kind=kind, workload=asdict(workload), loss=example.loss, precision=precision, threads=threads,
        fused=not options.plain_adamw, training=files.training, step=files.step, data=files.data,
        **make_own_files(kind, example, folder),
    )  # fmt: skip
    script = Path(__file__).with_name(SCRIPTS.get(kind, "peers_worker.py"))
    return [python_of(kind), script, json.dumps(arguments, default=str)]
