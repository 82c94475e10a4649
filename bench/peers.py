"""Whole training steps against PyTorch eager: time and peak memory, side by side on the same machine.

    .deps/venv/bin/python bench/peers.py --write docs/performance.md

Each workload runs in two processes, pinned to the same two cores with two threads each. They take turns of a few
seconds, one stopped while the other runs, so that whatever else the machine does meets both. Figures are medians of
all steps after the first few, and each process's peak resident memory: for PyTorch what it holds after its imports is
subtracted, for onnx-train nothing.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = ROOT / "build" / "onnx-train"
CORES = sorted(os.sched_getaffinity(0))[: int(os.environ.get("PEERS_THREADS", 2))]
WARM_UP = 5  # steps that do not count
TURN = 3.0  # seconds
RATE = 1e-4

sys.path.insert(0, str(ROOT / "models"))

WORKLOADS = {
    "MLP 784-512-512-10, batch 128": ("mlp", dict(batch=128, sizes=(784, 512, 512, 10))),
    "ResNet-18 for CIFAR, batch 32": ("resnet18", dict(batch=32)),
    "GPT-2, 2 blocks 768 wide, 12 heads, 256 tokens, batch 2, vocabulary 8,192": (
        "gpt2",
        dict(batch=2, width=768, heads=12, blocks=2, tokens=256, vocabulary=8192, attention="sdpa"),
    ),
}


def peak_memory(pid):
    """MiB of resident memory at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmHWM")


def pytorch_worker(name, sizes):
    """Trains until it is killed; prints the memory after imports, then a line per step as `bench` does."""
    import torch
    import zoo

    torch.set_num_threads(len(CORES))
    if name in ("bert", "gpt2"):
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401  (an import, not part of the model's memory)
    print(json.dumps({"memory": peak_memory(os.getpid())}), flush=True)
    example = getattr(zoo, name)(**sizes)
    module, inputs, labels = example.module.train(), list(example.inputs.values()), example.labels
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    while True:
        start = time.perf_counter()
        logits = module(*inputs)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(json.dumps({"ms": 1e3 * (time.perf_counter() - start), "loss": value}), flush=True)


class Contestant:
    """A process that trains and prints a JSON object per step. Stopped except while it has its turn."""

    def __init__(self, arguments, steps_file):
        self.steps_file = steps_file
        environment = os.environ | {"OMP_NUM_THREADS": str(len(CORES))}
        with open(steps_file, "w") as file:
            self.process = subprocess.Popen(
                arguments, env=environment, stdout=file, preexec_fn=lambda: os.sched_setaffinity(0, CORES)
            )

    def lines(self):
        lines = [json.loads(line) for line in self.steps_file.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        return [line for line in lines if "ms" in line]

    def wait_for_steps(self, count, seconds=300):
        deadline = time.monotonic() + seconds
        while len(self.lines()) < count:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.process.args[0]} ended with status {self.process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.process.args[0]} made no {count} steps in {seconds} s")
            time.sleep(0.1)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def finish(self):
        """Returns the median step in milliseconds, the number of steps and the peak memory in MiB."""
        memory = peak_memory(self.process.pid)
        self.process.kill()
        self.process.wait()
        times = [line["ms"] for line in self.lines()][WARM_UP:]
        return statistics.median(times), len(times), memory


def start_pytorch(name, sizes, folder):
    arguments = [sys.executable, __file__, "--worker", json.dumps([name, sizes])]
    return Contestant(arguments, folder / "pytorch.jsonl")


def start_ours(name, sizes, folder):
    import numpy as np
    import zoo
    from export import export

    example = getattr(zoo, name)(**sizes)
    forward, training, data = folder / "forward.onnx", folder / "train.onnx", folder / "data.npz"
    export(example.module, example.inputs, forward, optimize=example.optimize)
    np.savez(data, labels=example.labels.numpy(), **{k: v.numpy() for k, v in example.inputs.items()})
    subprocess.run([COMMAND, "build", forward, "-o", training, "--loss", "cross_entropy", "--optimizer", "adamw"],
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    arguments = [COMMAND, "bench", training, "--data", data, "--batch-size", str(len(example.labels)),
                 "--seconds", "1e9", "--json"]  # fmt: skip
    return Contestant(arguments, folder / "ours.jsonl")


def compare(name, sizes, seconds):
    with tempfile.TemporaryDirectory() as folder:
        contestants = []
        for start in start_pytorch, start_ours:
            contestant = start(name, sizes, Path(folder))
            contestants.append(contestant)
            contestant.wait_for_steps(WARM_UP)
            contestant.signal(signal.SIGSTOP)
        for turn in range(2 * max(1, round(seconds / TURN))):
            contestant = contestants[turn % 2]
            contestant.signal(signal.SIGCONT)
            time.sleep(TURN)
            contestant.signal(signal.SIGSTOP)
        base = json.loads(contestants[0].steps_file.read_text().splitlines()[0])["memory"]
        (their_time, their_steps, their_peak), (our_time, our_steps, our_peak) = (c.finish() for c in contestants)
    return {
        "theirs": their_time, "ours": our_time, "their_steps": their_steps, "our_steps": our_steps,
        "their_memory": their_peak - base, "our_memory": our_peak,
    }  # fmt: skip


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def table(results):
    import torch

    lines = [
        f"{cpu_name()}, {len(CORES)} threads, float32, AdamW; PyTorch {torch.__version__} eager.",
        "",
        "| workload | PyTorch ms | ours ms | time ratio | PyTorch MiB | ours MiB | memory ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, r in results.items():
        lines.append(
            f"| {name} | {r['theirs']:.1f} | {r['ours']:.1f} | **{r['ours'] / r['theirs']:.2f}** "
            f"| {r['their_memory']:.0f} | {r['our_memory']:.0f} | **{r['our_memory'] / r['their_memory']:.2f}** |"
        )
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- bench/peers.py: begin -->\n", "<!-- bench/peers.py: end -->\n"


def write_between_marks(path, text):
    """Puts `text` where the document has the two marks; makes the document when there is none."""
    old = path.read_text() if path.exists() else f"# Performance\n\n{BEGIN}{END}"
    before, rest = old.split(BEGIN)
    path.write_text(before + BEGIN + text + END + rest.split(END)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--seconds", type=float, default=30, help="time for each contestant and workload")
    parser.add_argument("--write", type=Path, help="document whose table to replace")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return pytorch_worker(*json.loads(arguments.worker))
    results = {}
    for workload, (name, sizes) in WORKLOADS.items():
        if arguments.only.lower() in workload.lower():
            results[workload] = compare(name, sizes, arguments.seconds)
    text = table(results)
    print(text)
    if arguments.write:
        write_between_marks(arguments.write, text)


if __name__ == "__main__":
    main()
