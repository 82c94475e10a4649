"""Steps of plain SGD on recommendation models with large tables: ours with and without sparse updates, and PyTorch with
dense and with sparse gradients.

    .deps/venv/bin/python bench/large_tables.py

Prints a table. Contestants take turns in processes of their own, `--rounds` times; what counts is the median step of
each one's best round.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers_workloads import COMMAND, Workload, loss_function

CORES = sorted(os.sched_getaffinity(0))[:2]
RATE = 0.01
WORKLOADS = [
    Workload("26 tables of 10,000 x 16", "dlrm",
             dict(batch=2048, tables=26, rows=10_000, bottom=(13, 512, 256, 64, 16), top=(512, 256))),
    Workload("26 tables of 100,000 x 16", "dlrm",
             dict(batch=2048, tables=26, rows=100_000, bottom=(13, 512, 256, 64, 16), top=(512, 256))),
    Workload("one table of 10,000,000 x 8", "dlrm",
             dict(batch=2048, tables=1, rows=10_000_000, bottom=(13, 512, 256, 64, 8), top=(512, 256))),
]  # fmt: skip


def make_files(workload, folder):
    import numpy as np
    from export import export

    example = workload.example()
    export(example.module, example.inputs, folder / "forward.onnx", optimize=example.optimize)
    np.savez(folder / "data.npz", labels=example.labels.numpy(), **{k: v.numpy() for k, v in example.inputs.items()})
    subprocess.run([COMMAND, "build", folder / "forward.onnx", "-o", folder / "train.onnx", "--loss", example.loss,
                    "--optimizer", f"sgd(lr={RATE})"], check=True, capture_output=True)  # fmt: skip
    (folder / "forward.onnx").unlink()


def run(*command):
    os.environ["OMP_NUM_THREADS"] = str(len(CORES))
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def ours(folder, batch, seconds, *options):
    result = run(COMMAND, "bench", folder / "train.onnx", "--data", folder / "data.npz", "--batch-size", str(batch),
                 "--seconds", str(seconds), "--json", *options)  # fmt: skip
    return result["median_ms"], result["arena_bytes"]


def pytorch(workload, seconds, sparse):
    result = run(sys.executable, __file__, "--pytorch", str(WORKLOADS.index(workload)), "--seconds", str(seconds),
                 *["--sparse"] * sparse)  # fmt: skip
    return result["median_ms"], None


def train_in_pytorch(workload, seconds, sparse):
    """This process is a contestant."""
    import torch
    from torch import nn

    torch.set_num_threads(len(CORES))
    example = workload.example()
    for module in example.module.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = sparse
    inputs, compute_loss = list(example.inputs.values()), loss_function(example)
    optimizer = torch.optim.SGD(example.module.parameters(), lr=RATE)
    times, end = [], None
    while end is None or time.monotonic() < end or len(times) < 5:
        start = time.perf_counter()
        loss = compute_loss(example.module(*inputs), example.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
        if end is None and len(times) == 3:  # warm
            times, end = [], time.monotonic() + seconds
    print(json.dumps({"median_ms": sorted(times)[len(times) // 2]}))


def compare(workload, rounds, seconds):
    batch = workload.sizes["batch"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(workload, folder)
        contestants = [
            lambda: pytorch(workload, seconds, False),
            lambda: pytorch(workload, seconds, True),
            lambda: ours(folder, batch, seconds, "--lowering", "-sparse_updates"),
            lambda: ours(folder, batch, seconds),
        ]
        results = [[contestant() for contestant in contestants] for _ in range(rounds)]
    best = [min(turns) for turns in zip(*results)]
    dense_arena, sparse_arena = best[2][1] / 2**20, best[3][1] / 2**20
    milliseconds = [f"{ms:.3g}" for ms, _ in best]
    print(f"| {workload.title} |", " | ".join([*milliseconds, f"{dense_arena:.4g}", f"{sparse_arena:.4g}"]), "|",
          flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=5, help="of one turn")
    parser.add_argument("--only", default="", help="workloads whose title contains this")
    parser.add_argument("--pytorch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sparse", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, CORES)
    if options.pytorch is not None:
        return train_in_pytorch(WORKLOADS[options.pytorch], options.seconds, options.sparse)
    print("| step, ms | PyTorch, dense | PyTorch, sparse | ours, dense | ours | arena, dense, MiB | arena, MiB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for workload in WORKLOADS:
        if options.only in workload.title:
            compare(workload, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
