"""How long a training step must take on an H200, modelled from what it reads, writes and computes; and the same count
for PyTorch eager. No GPU is needed: our plan is the one that the CUDA backend makes, built on this machine.

    .deps/venv/bin/python bench/modelled_time.py [--only PART] [--precision float32,bf16]

A kernel takes what its bytes take at the memory's bandwidth, or what its products and convolutions take at the peak of
their type, whichever is longer, and one launch. A node of ours is one kernel, or none if it is a view. An operation of
PyTorch is one kernel, unless it is a view; AdamW is its fused one. Peaks are those of NVIDIA's data sheet of the H200
SXM, without sparsity: float32 outside of tensor cores. No kernel reaches them: shares and ratios mean something, times
are lower bounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from gpu_check import BENCHMARKS
from peers_workloads import ROOT, loss_function

sys.path.insert(0, str(ROOT / "models"))
COMMAND = ROOT / "build" / "cuda_on_host" / "onnx-train"  # scripts/cuda_on_host builds it
BYTES_PER_SECOND = 4.8e12
FLOPS_PER_SECOND = {"float": 67e12, "bfloat16": 989e12, "float16": 989e12, "double": 34e12}
LAUNCH = 2e-6  # seconds


class Step:
    """The kernels of a step: how many, and their modelled seconds."""

    def __init__(self):
        self.kernels = 0
        self.products = 0.0  # seconds of kernels that multiply matrices, convolve or attend
        self.others = Counter()  # seconds by operator

    def add(self, name, flops, byte_count):
        seconds = max(sum(n / FLOPS_PER_SECOND[t] for t, n in flops.items()), byte_count / BYTES_PER_SECOND) + LAUNCH
        self.kernels += 1
        if flops:
            self.products += seconds
        else:
            self.others[name] += seconds

    @property
    def seconds(self):
        return self.products + sum(self.others.values())


def ours(example, precision):
    """Our step, from the plan of the CUDA backend."""
    from export import export

    step = Step()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(example.module, example.inputs, folder / "model.onnx", optimize=example.optimize)
        options = [] if precision == "float32" else ["--precision", precision]
        run("build", folder / "model.onnx", "-o", folder / "train.onnx", "--loss", example.loss, "--optimizer", "adamw",
            *options)  # fmt: skip
        batch = next(iter(example.inputs.values())).shape[0]
        for node in json.loads(run("show", folder / "train.onnx", "--plan", "--json", "--device", "cuda", "--batch", batch)):
            if node["kernel"] != "view":
                step.add(node["op"], flops_of(node), node["bytes"])
    return step


def flops_of(node):
    """By type. Our own kernels multiply in float32, whatever their operands are stored in: tensor cores are the
    libraries'."""
    by_library = node["kernel"].startswith(("cuDNN", "Gemm", "MatMul", "TransposedMatMul"))
    if by_library or "double" in node["flops"] or not node["flops"]:
        return node["flops"]
    return {"float": sum(node["flops"].values())}


def run(*arguments):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True,
                          env=os.environ | {"GPU_HOST_MEMORY": str(141 * 10**9)})  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"onnx-train {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what PyTorch would launch. Tensors are fake: nothing is computed."""

    TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "double"}

    def __init__(self, step):
        super().__init__()
        self.step = step

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        from torch.utils._pytree import tree_leaves
        from torch.utils.flop_counter import flop_registry, sdpa_flop_count

        result = function(*arguments, **(options or {}))
        packet = function._overloadpacket
        changes = function._schema.is_mutable
        tensors = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]
        results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        launches_none = function.namespace == "prim" or function.is_view or not (tensors or changes)
        if launches_none or packet in (torch.ops.aten.detach, torch.ops.aten.empty_like):
            return result
        flops = {}
        count = 0
        if "scaled_dot_product" in str(packet):
            backward = "backward" in str(packet)
            query, key, value = (t.shape for t in tensors[int(backward) :][:3])  # after the output's gradient
            count = sdpa_flop_count(query, key, value) * (2.5 if backward else 1)  # it computes the scores again
        elif packet in flop_registry:
            count = flop_registry[packet](*arguments, **(options or {}), out_val=result)
        if count:
            flops = {self.TYPES[next(t for t in tensors if t.is_floating_point()).dtype]: count}
        read = sum(t.numel() * t.element_size() for t in tensors)
        written = sum(t.numel() * t.element_size() for t in results) if not changes else read
        self.step.add(str(packet), flops, read + written)
        return result


def eager(example, precision):
    """PyTorch's step, eager, with autocast for bf16."""
    step = Step()
    loss_of = loss_function(example)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as fake:
        module = example.module.train()
        for part in module.modules():
            for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
                if tensor is not None:
                    value = fake.from_tensor(tensor.detach())
                    is_weight = name in part._parameters
                    (part._parameters if is_weight else part._buffers)[name] = (
                        torch.nn.Parameter(value, requires_grad=tensor.requires_grad) if is_weight else value
                    )
        inputs = [fake.from_tensor(t) for t in example.inputs.values()]
        labels = fake.from_tensor(example.labels)
        optimizer = torch.optim.AdamW(module.parameters(), fused=True)

        def train():
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                output = module(*inputs)
                loss = loss_of(getattr(output, "logits", output), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        train()  # makes the moments
        with Counting(step):
            train()
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a benchmark's title")
    parser.add_argument("--precision", default="float32", help="float32, bf16, or both with a comma")
    options = parser.parse_args()
    import zoo

    print("| step | kernels | PyTorch's | modelled ms | PyTorch's | in products | most of the rest |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for title, (network, sizes) in BENCHMARKS.items():
        if options.only not in title:
            continue
        for precision in options.precision.split(","):
            made = ours(getattr(zoo, network)(**sizes), precision)
            theirs = eager(getattr(zoo, network)(**sizes), precision)
            rest = ", ".join(f"{op} {1e3 * s:.2g} ms" for op, s in made.others.most_common(3))
            print(f"| {title}, {precision} | {made.kernels} | {theirs.kernels} | {1e3 * made.seconds:.3g} "
                         f"| {1e3 * theirs.seconds:.3g} | {made.products / made.seconds:.0%} | {rest} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
