"""A process of peers.py that trains one workload until it is killed: PyTorch eager, torch.compile or ONNX Runtime.

Prints a JSON object a line: first {"resident": bytes} once everything is imported and nothing is made yet; then one
for each step, {"ms": time, "end": seconds of the monotonic clock, "loss": ...}; {"error": why} when it cannot go on.
"""

import json
import sys
import time
from pathlib import Path

from peers_workloads import BETAS, DECAY, EPSILON, RATE, Workload, loss_function


def say(**fields):
    print(json.dumps(fields), flush=True)


def resident_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("this process has no VmRSS")


def train_forever(step):
    """step() -> loss, as a number."""
    while True:
        start = time.perf_counter()
        loss = step()
        end = time.perf_counter()
        say(ms=1e3 * (end - start), end=time.monotonic(), loss=loss)


def pytorch_step(workload, threads, precision, compiled, fused):
    import torch
    import networks  # noqa: F401  (an import, not part of the model's memory)

    torch.set_num_threads(threads)
    if workload.network in ("gpt2", "masked_lm"):
        import transformers.models.bert.modeling_bert
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401
    if compiled:
        import torch._dynamo
        import torch._inductor.compile_fx  # noqa: F401
    say(resident=resident_bytes())
    example = workload.example()
    module, inputs, labels = example.module.train(), list(example.inputs.values()), example.labels
    optimizer = torch.optim.AdamW(module.parameters(), RATE, BETAS, EPSILON, DECAY, fused=fused or None)
    compute_loss = loss_function(example)

    def forward(inputs, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != "float32"):
            return compute_loss(module(*inputs), labels)

    if compiled:
        forward = torch.compile(forward)

    def step():
        loss = forward(inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def onnxruntime_step(training, flattened, data, threads):
    """State stays in the runtime's own tensors: what comes out as next/<state> goes in as <state>."""
    import numpy as np
    import onnx
    import onnxruntime

    say(resident=resident_bytes())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    runtime = onnxruntime.InferenceSession(flattened, options, providers=["CPUExecutionProvider"])
    outputs = [o.name for o in runtime.get_outputs()]
    names = {i.name for i in runtime.get_inputs()}

    model = onnx.load(training)
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    start = {t.name: t for graph in graphs for t in graph.initializer if f"next/{t.name}" in outputs}
    feeds = {name: onnx.numpy_helper.to_array(t) for name, t in start.items() if name in names}
    state = list(feeds)
    with np.load(data) as arrays:
        feeds |= {name: arrays[name] for name in arrays.files if name in names}
    feeds["learning_rate"] = np.array(RATE, np.float32)
    feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    del model, graphs, start

    def step():
        results = dict(zip(outputs, runtime.run_with_ort_values(outputs, feeds)))
        feeds.update({name: results[f"next/{name}"] for name in state})
        return float(results["loss"].numpy())

    return step


def run(make_step, arguments):
    """make_step(arguments) says what is resident and returns the step; what it cannot do is a finding of the comparison,
    not a fault."""
    try:
        train_forever(make_step(arguments))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        say(error=f"{type(error).__name__}: {lines[0] if lines else ''}")
        raise


def step_of(arguments):
    kind, threads = arguments["kind"], arguments["threads"]
    if kind == "onnxruntime":
        return onnxruntime_step(arguments["training"], arguments["step"], arguments["data"], threads)
    workload = Workload(**arguments["workload"])
    return pytorch_step(workload, threads, arguments["precision"], kind == "compile", arguments["fused"])


if __name__ == "__main__":
    run(step_of, json.loads(sys.argv[1]))
