"""Steps that others have published, of large models on H100s, beside what `onnx-train scale` predicts for the same shape and batch.

    python bench/published_steps.py [build/onnx-train] [--tflops 495] [--only WORD]

Prints the rows of the table in docs/scaling.md. "fitted": the rate of one GPU is what the least number of GPUs of a model
needs to take the published time, so that the other rows say how well the network is modelled, and not the GPU. The models have
no weights (llama_shape.py, gpt_shape.py), and nothing computes: a model of 70 billion takes a minute or two for each of its rows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

PEAK = 990e12  # operations a second of an H100 SXM in bfloat16, without sparsity
# Eight GPUs of a machine by NVLink 4, and eight links of 400 Gbit/s to other machines.
NETWORK = "--ranks-per-machine 8 --bandwidth 450 --machine-bandwidth 400 --latency 20 --nccl".split()
BENCH = Path(__file__).resolve().parent


@dataclass
class Run:
    """A model, the texts of a GPU in a step, and tokens a second of each GPU by the number of GPUs; None: nobody has published one."""

    model: str
    script: str
    shape: dict
    texts: int
    options: str
    published: dict
    source: str
    micro: int = 0  # texts of a batch [all of a step]
    weights: int = field(default=0, init=False)

    @property
    def context(self):
        return self.shape["context"]

    def operations(self):
        """Of a token: 6 for each weight, and attention counted whole (Korthikanti et al. 2022), as those who publish MFU count."""
        return 6 * self.weights + 12 * self.shape["layers"] * self.shape["width"] * self.context


def llama(width=4096, layers=32, inner=14336, heads=32, kv=8, vocabulary=128256, context=8192):
    return {"layers": layers, "width": width, "inner": inner, "heads": heads, "kv-heads": kv, "vocabulary": vocabulary, "context": context}


def gpt(layers, width, heads):
    return {"layers": layers, "width": width, "heads": heads, "vocabulary": 50368, "context": 2048}


RUNS = [
    Run("Llama 3.1 8B", "llama_shape.py", llama(), 2, "--zero 3", {8: 6667, 128: 6514, 512: None}, "torchtitan"),
    Run("MPT 7B", "gpt_shape.py", gpt(32, 4096, 32), 6, "--zero 3", {8: 10643, 64: None, 512: None}, "llm-foundry"),
    *(Run("MPT 7B, four batches", "gpt_shape.py", gpt(32, 4096, 32), 24, f"--zero 1 --reduction {reduction}",
          {8: None, 64: None, 512: None}, "", micro=6) for reduction in ("exact", "fast")),
    Run("MPT 13B", "gpt_shape.py", gpt(40, 5120, 40), 2, "--zero 3", {8: 4792, 16: 4767, 32: 4811, 64: 4800}, "llm-foundry"),
    Run("MPT 70B", "gpt_shape.py", gpt(80, 8192, 64), 32, "--zero 3", {64: 1039, 512: None}, "llm-foundry", micro=8),
    Run("Llama 2 70B", "llama_shape.py", llama(8192, 80, 28672, 64, 8, 32000, 4096), 4, "--pipeline 8", {64: None, 512: None}, "",
        micro=1),
]  # fmt: skip


def scale(command, folder, run, numbers, *speed):
    """What is predicted for each number of GPUs: they share one call where each has one batch in a step."""
    micro = run.micro or run.texts
    calls = [[gpus] for gpus in numbers] if run.micro else [numbers]
    lines = []
    for gpus in calls:
        batches = ["--accumulate", str(gpus[0] * run.texts // micro)] if run.micro else []
        done = subprocess.run(
            [command, "scale", folder / "model.onnx", "--data", folder / "model.npz", "--batch-size", str(micro), "--precision",
             "bf16", "--ranks", ",".join(map(str, gpus)), *batches, *run.options.split(), *NETWORK, "--json", *map(str, speed)],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stderr)
        lines += done.stdout.splitlines()
    return dict(zip(numbers, map(json.loads, lines)))


def fitted(command, folder, run, first, step):
    """What is predicted where one GPU has the rate at which the least number of GPUs, `first`, takes `step` ms."""
    rate = 495
    for _ in range(2):
        last = scale(command, folder, run, [first], "--tflops", rate)[first]
        rate *= last["compute_ms"] / max(step - last["waiting_ms"], 0.1 * step)
    return scale(command, folder, run, list(run.published), "--tflops", rate)


def rows(command, run, tflops):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [word for key, value in run.shape.items() for word in (f"--{key}", str(value))]
        made = subprocess.run([sys.executable, BENCH / run.script, folder / "model.onnx", *words], capture_output=True, text=True)
        if made.returncode:
            sys.exit(made.stderr)
        (folder / "model.weights").unlink(missing_ok=True)
        run.weights = int(float(made.stdout.split()[-3]) * 1e6)
        tokens = run.texts * run.context
        predicted = scale(command, folder, run, list(run.published), "--tflops", tflops)
        known = {gpus: 1e3 * tokens / rate for gpus, rate in run.published.items() if rate}
        fit = fitted(command, folder, run, min(known), known[min(known)]) if len(known) > 1 else {}

    def mfu(ms):
        return f"{100 * run.operations() * tokens / (1e-3 * ms * PEAK):.1f}%"

    for gpus, row in predicted.items():
        step, ms = known.get(gpus), row["step_ms"]
        cells = [run.model, gpus, f"`{run.options}`", f"{run.texts} x {run.context:,}", f"{ms:,.0f}", f"{row['waiting_ms']:,.0f}", mfu(ms),
                 f"{row['state_bytes'] / 2**30:.1f}"]  # fmt: skip
        cells += [f"{step:,.0f}", mfu(step), f"{ms / step:.2f}"] if step else [""] * 3
        cells += [f"{fit[gpus]['step_ms'] / step:.2f}" if fit and step else "", run.source if step else ""]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default=BENCH.parent / "build" / "onnx-train")
    parser.add_argument("--tflops", type=float, default=495)
    parser.add_argument("--only", default="", help="the models whose name has this word")
    a = parser.parse_args()
    for run in RUNS:
        if a.only in run.model:
            rows(a.command, run, a.tflops)


if __name__ == "__main__":
    main()
