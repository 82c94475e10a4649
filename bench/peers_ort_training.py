"""A process of peers.py that trains one workload with ONNX Runtime Training: the artifacts that it generates from an
exported model, with its cross entropy and its AdamW, trained by its Module and Optimizer.

Prints what peers_worker.py prints. The artifacts are made in a process of their own, whose memory is not the step's.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from peers_worker import resident_bytes, run, say
from peers_workloads import BETAS, DECAY, EPSILON, RATE


# What the library's gradients read, and exporters leave out: mean and deviation, the mask.
OUTPUTS = {"LayerNormalization": 3, "Dropout": 2}


def add_outputs(model):
    for i, node in enumerate(model.graph.node):
        node.output.extend(f"{node.op_type}_{i}_{k}" for k in range(len(node.output), OUTPUTS.get(node.op_type, 0)))


def generate(exported, folder):
    """Every weight is trained; batch norm's statistics are none."""
    import onnx
    from onnxruntime.training import artifacts, onnxblock

    model = onnx.load(exported)
    add_outputs(model)
    floats = [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    artifacts.generate_artifacts(
        model,
        requires_grad=[name for name in floats if ".running_" not in name],
        frozen_params=[name for name in floats if ".running_" in name],
        loss=onnxblock.loss.CrossEntropyLoss(ignore_index=-100),
        optimizer=onnxblock.optim.AdamW(betas=BETAS, eps=EPSILON, weight_decay=DECAY),
        artifact_directory=folder,
    )


def generate_elsewhere(exported):
    folder = Path(exported).with_suffix(".artifacts")
    folder.mkdir(exist_ok=True)
    result = subprocess.run([sys.executable, __file__, "generate", exported, folder], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError((result.stderr.strip().splitlines() or ["generate_artifacts failed"])[-1])
    return folder


def ort_training_step(arguments):
    folder = generate_elsewhere(arguments["portable"])
    import onnxruntime
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    say(resident=resident_bytes())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = arguments["threads"]
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(RATE)
    module.train()
    with np.load(arguments["data"]) as arrays:
        batch = {name: arrays[name] for name in arrays.files}
    batch["labels"] = batch["labels"].reshape(-1)  # the exported logits have one axis before that of classes
    batch = [batch[name] for name in module.input_names()]

    def step():
        loss = module(*batch)
        optimizer.step()
        module.lazy_reset_grad()
        return float(loss)

    return step


if __name__ == "__main__":
    if sys.argv[1] == "generate":
        generate(*sys.argv[2:])
    else:
        run(ort_training_step, json.loads(sys.argv[1]))
