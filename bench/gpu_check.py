"""What scripts/gpu_check runs: each stage ends in a row of results.json and results.md, whatever the others do.

    python3 bench/gpu_check.py --command ONNX_TRAIN --tests GPU_TESTS --out FOLDER [--on-host] [--only STAGE,...]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "models"))
DEADLINE = time.monotonic() + 530
# A network of models/zoo.py, its sizes, and the loss: step times against PyTorch's.
BENCHMARKS = {
    "MLP 784-512-512-10, batch 128": ("mlp", dict(batch=128, sizes=(784, 512, 512, 10))),
    "GPT-2 124M, 16 x 1,024 tokens": (
        "gpt2", dict(batch=16, width=768, heads=12, blocks=12, tokens=1024, vocabulary=50257, attention="sdpa")),
    "BERT-base, 64 x 128 tokens": (
        "masked_lm", dict(batch=64, width=768, heads=12, blocks=12, tokens=128, vocabulary=30522, attention="sdpa")),
    "ResNet-18 for CIFAR, batch 256": ("resnet18", dict(batch=256)),
    "DLRM, 26 tables of 10,000 x 16, batch 2,048": (
        "dlrm", dict(batch=2048, tables=26, rows=10000, bottom=(13, 512, 256, 64, 16), top=(512, 256))),
    "LSTM, 2 layers of 256, 64 steps, batch 32": ("lstm", dict(batch=32, width=256, layers=2, tokens=64, vocabulary=2000)),
}  # fmt: skip


class Check:
    def __init__(self, options):
        self.options = options
        self.rows = []

    def run(self, command, timeout, **variables):
        """The exit status and what the command printed; a command that takes too long has the status 124."""
        left = max(1, min(timeout, DEADLINE - time.monotonic()))
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=left,
                                  env=os.environ | variables)  # fmt: skip
        except FileNotFoundError as missing:
            return 127, str(missing)
        except subprocess.TimeoutExpired as late:
            return 124, (late.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout + done.stderr

    def command(self, *arguments, timeout=120):
        status, output = self.run([self.options.command, *arguments], timeout)
        if status != 0:
            raise RuntimeError(f"onnx-train {arguments[0]}: {output.strip().splitlines()[-1:] or status}")
        return output

    def stage(self, name, work):
        """Runs work() -> {what: value}. An exception is a result, too."""
        if self.options.only and name not in self.options.only:
            return
        start = time.monotonic()
        try:
            results = {"ok": True} | work()
        except Exception as error:  # noqa: BLE001  (the other stages go on)
            results = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        results["seconds"] = round(time.monotonic() - start, 1)
        self.rows.append({"stage": name} | results)
        print(json.dumps(self.rows[-1]), flush=True)
        self.write()

    def write(self):
        (self.options.out / "results.json").write_text(json.dumps(self.rows, indent=1))
        lines = [f"Measured {time.strftime('%Y-%m-%d')} by scripts/gpu_check.", "", "| stage | result |", "| --- | --- |"]
        for row in self.rows:
            cells = "; ".join(f"{k}: {v}" for k, v in row.items() if k != "stage")
            lines.append(f"| {row['stage']} | {cells[:1500].replace('|', '/')} |")
        (self.options.out / "results.md").write_text("\n".join(lines) + "\n")

    # ---- Stages

    def machine(self):
        status, smi = self.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 20)
        return {"gpu": smi.strip() if status == 0 else "none", "devices": self.command("devices").strip()}

    def tests(self):
        """The operator cases, sessions and trainings of the unit tests, shared among processes."""
        shards = 2 if self.options.on_host else 12
        filters = "Cuda.*:CudaAttention*:*CudaGenerated*:All/OpCases.*:Session*:Trainer*:Checkpoint*:Initialization*"
        filters += ":*MergeUpdates*:MergeLookups*"
        left_out = "*Allocat*" + (":*ConvGradWeight*" if self.options.on_host else "")

        def shard(i):
            with tempfile.TemporaryDirectory() as folder:
                status, output = self.run([self.options.tests, "--gtest_brief=1", f"--gtest_filter={filters}-{left_out}"], 240,
                                          ONNX_TRAIN_TEST_DEVICE="cuda", GTEST_TOTAL_SHARDS=str(shards),
                                          GTEST_SHARD_INDEX=str(i), TEST_TMPDIR=folder + "/")  # fmt: skip
            (self.options.out / f"tests_{i}.log").write_text(output[-200000:])
            return status, output

        with ThreadPoolExecutor(shards) as pool:
            ended = list(pool.map(shard, range(shards)))
        text = "".join(output for _, output in ended)
        failed = sorted(set(re.findall(r"\[  FAILED  \] (\S+?)[, (\n]", text)))
        passed = sum(map(int, re.findall(r"\[  PASSED  \] (\d+) tests", text)))
        return {"ok": all(status == 0 for status, _ in ended), "passed": passed, "statuses": [s for s, _ in ended],
                "failed": failed[:60], "number failed": len(failed)}  # fmt: skip

    def training(self, name, steps, batch):
        """Losses on CUDA, captured and node by node, against the CPU's."""
        with tempfile.TemporaryDirectory() as name_of_folder:
            folder = Path(name_of_folder)
            data = ROOT / "models/data/digits_train.npz"
            if name == "gpt":
                text = np.frombuffer((ROOT / "models/data/devils_dictionary.txt").read_bytes()[: 129 * 64], np.uint8)
                tokens = (text % 128).astype(np.int64).reshape(64, 129)
                data = folder / "gpt.npz"
                np.savez(data, tokens=tokens[:, :128], labels=tokens[:, 1:])
            model = folder / "train.onnx"
            self.command("build", ROOT / "models" / ("gpt.onnx" if name == "gpt" else "digits_cnn.onnx"), "-o", model)
            losses = {}
            for kind, options in {"cpu": [], "cuda": ["--device", "cuda"], "again": ["--device", "cuda"],
                                  "node by node": ["--device", "cuda", "--lowering", "-replay"]}.items():  # fmt: skip
                self.command("fit", model, "--data", data, "--steps", steps, "--batch-size", batch, "--seed", 1, "--out",
                             folder / kind, *options)  # fmt: skip
                lines = (folder / kind / "metrics.jsonl").read_text().splitlines()
                losses[kind] = np.array([json.loads(line)["loss"] for line in lines])
        same_again = bool((losses["cuda"] == losses["again"]).all())
        error = float(np.max(np.abs(losses["cuda"] - losses["cpu"]) / np.abs(losses["cpu"])))
        return {"ok": error < 1e-4 and same_again, "error against the CPU": error,
                "first and last loss": [float(losses["cuda"][0]), float(losses["cuda"][-1])],
                "same bits again": same_again,
                "same bits node by node": bool((losses["cuda"] == losses["node by node"]).all())}  # fmt: skip

    def sanitizer(self, tool):
        filters = "Cuda.*:All/OpCases.Holds/*MatMul*:All/OpCases.Holds/*Softmax*:All/OpCases.Holds/*GatherGrad*"
        status, output = self.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", self.options.tests,
                                   "--gtest_brief=1", f"--gtest_filter={filters}"], 60, ONNX_TRAIN_TEST_DEVICE="cuda")  # fmt: skip
        (self.options.out / f"{tool}.log").write_text(output[-100000:])
        return {"ok": status == 0, "status": status, "summary": output.strip().splitlines()[-1:]}

    def benchmark(self, network, sizes):
        """Milliseconds a step of float32 tensors: ours, PyTorch eager, and torch.compile with CUDA graphs; each as it is by
        default, and with TF32 for all products. PyTorch's default is TF32 for convolutions alone; ours is none. With TF32
        PyTorch has images with their channels last, where it is at its best."""
        import torch
        import zoo
        from export import export

        example = zoo.EXAMPLES[network](**sizes) if network in zoo.EXAMPLES else getattr(zoo, network)(**sizes)
        with tempfile.TemporaryDirectory() as name_of_folder:
            folder = Path(name_of_folder)
            export(example.module, example.inputs, folder / "m.onnx", optimize=example.optimize)
            np.savez(folder / "d.npz", labels=example.labels.numpy(), **{k: v.numpy() for k, v in example.inputs.items()})
            self.command("build", folder / "m.onnx", "-o", folder / "t.onnx", "--loss", example.loss, "--optimizer",
                         "adamw(lr=1e-4,weight_decay=0.01)", "--decay", "*")  # fmt: skip
            batch = len(example.labels)
            results = {}
            for name, options in {"ours": [], "ours, TF32": ["--tf32"]}.items():
                text = self.command("bench", folder / "t.onnx", "--data", folder / "d.npz", "--batch-size", batch, "--seconds",
                                    2, "--device", "cuda", "--json", "--profile", *options)  # fmt: skip
                (self.options.out / f"bench_{network}{'_tf32' if options else ''}.json").write_text(text)
                results[name] = round(json.loads(text)["median_ms"], 3)
        for tf32, suffix in (False, ""), (True, ", TF32"):
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32, True
            for kind in "eager", "compile":
                if time.monotonic() > DEADLINE - 60:
                    results[kind + suffix] = "no time was left"
                    continue
                try:
                    results[kind + suffix] = self.pytorch(example, kind == "compile", tf32)
                except Exception as error:  # noqa: BLE001
                    results[kind + suffix] = f"{type(error).__name__}: {error}"[:200]
        return results

    @staticmethod
    def pytorch(example, compiled, channels_last):
        import torch
        from torch.nn import functional

        torch._dynamo.reset()
        device = torch.device("cuda")
        module = example.module.to(device).train()
        inputs, labels = [v.to(device) for v in example.inputs.values()], example.labels.to(device)
        if channels_last and any(v.ndim == 4 for v in inputs):
            module = module.to(memory_format=torch.channels_last)
            inputs = [v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for v in inputs]
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

        def loss_of(*inputs):
            logits = module(*inputs)
            if example.loss == "bce_with_logits":
                return functional.binary_cross_entropy_with_logits(logits, labels)
            return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

        forward = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of

        def step():
            optimizer.zero_grad(set_to_none=True)
            forward(*inputs).backward()
            optimizer.step()

        for _ in range(5):
            step()
        torch.cuda.synchronize()
        times = []
        end = time.monotonic() + 2
        while time.monotonic() < end:
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        return round(float(np.median(times)), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", required=True, type=Path)
    parser.add_argument("--tests", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--on-host", action="store_true")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of stages")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    check = Check(options)
    check.stage("machine", check.machine)
    check.stage("digits", lambda: check.training("digits", 20 if not options.on_host else 3, 16))
    check.stage("gpt", lambda: check.training("gpt", 20 if not options.on_host else 2, 2))
    check.stage("tests", check.tests)
    if not options.on_host:
        for title, (network, sizes) in BENCHMARKS.items():
            check.stage(title, lambda network=network, sizes=sizes: check.benchmark(network, sizes))
        for tool in "memcheck", "racecheck":
            check.stage(tool, lambda tool=tool: check.sanitizer(tool))
    return 0 if all(row["ok"] for row in check.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
