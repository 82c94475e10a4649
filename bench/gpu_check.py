"""What scripts/gpu_check runs: each stage ends in a row of results.json and results.md, whatever the others do.

    python3 bench/gpu_check.py --command ONNX_TRAIN --tests GPU_TESTS --out FOLDER [--on-host] [--only STAGE,...]
        [--filter GTEST_FILTER] [--precisions bf16,...] [--peers bf16,...] [--no-peers] [--before FILE] [--seconds S]
        [--minutes M]

Stages: machine, digits, gpt, tests, ranks, mlp, gpt2, masked_lm, resnet18, dlrm, lstm, counters, memcheck, racecheck.
While the tests run, the networks are exported and PyTorch's are compiled, each in a process of its own. Steps are timed
after that, one network at a time, with nothing else on the GPU, and with all choices made (ONNX_TRAIN_TIMED_CHOICES=60),
as later runs of the same network have them. nodes.json has the time of each node by network and
precision, kernels.json the same by kernel; kernels.md has these beside those of the file that --before names
(docs/gpu_kernels.json).
"""

import argparse
import collections
import csv
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
START = time.monotonic()
# A network of models/networks.py and its sizes: step times against PyTorch's.
BENCHMARKS = {
    "gpt2": dict(batch=16, width=768, heads=12, blocks=12, tokens=1024, vocabulary=50257, attention="sdpa"),
    "masked_lm": dict(batch=64, width=768, heads=12, blocks=12, tokens=128, vocabulary=30522, attention="sdpa"),
    "resnet18": dict(batch=256),
    "mlp": dict(batch=128, sizes=(784, 512, 512, 10)),
    "dlrm": dict(batch=2048, tables=26, rows=10000, bottom=(13, 512, 256, 64, 16), top=(512, 256)),
    "lstm": dict(batch=32, width=256, layers=2, tokens=64, vocabulary=2000),
}  # fmt: skip
FITTED = "gpt2", "mlp"  # whose `fit` is timed, too
# The optimizer's model is built for two precisions; TF32 is an option of the run.
PRECISIONS = {"bf16": ("bf16", []), "float32": ("float32", []), "tf32": ("float32", ["--tf32"])}
# Of ncu: time, registers, occupancy and the share of the memory's bandwidth.
COUNTERS = {
    "ms": "gpu__time_duration.sum", "registers": "launch__registers_per_thread",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "bandwidth": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}  # fmt: skip


class Network(threading.Thread):
    """The worker process of a network (gpu_peer.py), and the training models that are made of what it exports."""

    def __init__(self, check, name, folder):
        super().__init__(daemon=True)
        self.check, self.name_of_network, self.folder = check, name, Path(folder)
        self.answers, self.error, self.built, self.is_ready = queue.Queue(), None, False, False
        self.start()

    def run(self):
        try:
            options = {"network": self.name_of_network, "sizes": BENCHMARKS[self.name_of_network],
                       "folder": str(self.folder), "precisions": self.check.options.peers}  # fmt: skip
            log = open(self.check.options.out / f"peer_{self.name_of_network}.log", "w")
            self.process = subprocess.Popen([sys.executable, ROOT / "bench/gpu_peer.py", json.dumps(options)], text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)  # fmt: skip
            self.exported = json.loads(self.process.stdout.readline())
            for precision in dict(PRECISIONS.values()):
                self.check.command("build", self.folder / "m.onnx", "-o", self.folder / f"{precision}.onnx", "--loss",
                                   self.exported["loss"], "--optimizer", "adamw(lr=1e-4,weight_decay=0.01)", "--decay", "*",
                                   "--precision", precision)  # fmt: skip
            self.built = True
            for line in self.process.stdout:
                if line.startswith("{"):
                    self.answers.put(json.loads(line))
        except Exception as error:  # noqa: BLE001  (its stage reports it)
            self.error = error
        self.answers.put(None)

    def answer(self):
        found = self.answers.get(timeout=self.check.left())
        if found is None:
            raise self.error or RuntimeError(f"peer_{self.name_of_network}.log says why the worker ended")
        return found

    def ask(self, precision, seconds):
        self.process.stdin.write(f"{precision} {seconds}\n")
        self.process.stdin.flush()
        return self.answer()


class Check:
    def __init__(self, options):
        self.options = options
        self.deadline = START + 60 * options.minutes
        self.rows = []
        self.nodes = {}
        self.lock = threading.Lock()

    def left(self):
        return max(1, self.deadline - time.monotonic())

    def wants(self, name):
        return not self.options.only or name in self.options.only

    def run(self, command, timeout, **variables):
        """The exit status and what the command printed; a command that takes too long has the status 124."""
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ | variables,
                                  timeout=min(timeout, self.left()))  # fmt: skip
        except FileNotFoundError as missing:
            return 127, str(missing)
        except subprocess.TimeoutExpired as late:
            return 124, (late.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout + done.stderr

    def command(self, *arguments, timeout=150):
        status, output = self.run([self.options.command, *arguments], timeout)
        if status != 0:
            raise RuntimeError(f"onnx-train {arguments[0]}: {output.strip().splitlines()[-1:] or status}")
        return output

    def stage(self, name, work):
        """Runs work() -> {what: value}. An exception is a result, too."""
        if not self.wants(name.split()[0]):
            return
        start = time.monotonic()
        try:
            results = {"ok": True} | work()
        except Exception as error:  # noqa: BLE001  (the other stages go on)
            results = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        results["seconds"] = round(time.monotonic() - start, 1)
        with self.lock:
            self.rows.append({"stage": name} | results)
            print(json.dumps(self.rows[-1]), flush=True)
            self.write()

    def write(self):
        out = self.options.out
        (out / "results.json").write_text(json.dumps(self.rows, indent=1))
        lines = [f"Measured {time.strftime('%Y-%m-%d')} by scripts/gpu_check.", "", "| stage | result |", "| --- | --- |"]
        for row in self.rows:
            cells = "; ".join(f"{k}: {v}" for k, v in row.items() if k != "stage")
            lines.append(f"| {row['stage']} | {cells[:1500].replace('|', '/')} |")
        (out / "results.md").write_text("\n".join(lines) + "\n")
        (out / "nodes.json").write_text(json.dumps(self.nodes))
        kernels = {n: {p: by_kernel(rows) for p, rows in found.items()} for n, found in self.nodes.items()}
        (out / "kernels.json").write_text(json.dumps(kernels, indent=1))
        (out / "kernels.md").write_text(table_of_kernels(kernels, self.options.before))

    # ---- Stages

    def machine(self):
        status, smi = self.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 20)
        return {"gpu": smi.strip() if status == 0 else "none", "devices": self.command("devices").strip()}

    def tests(self):
        """The operator cases, sessions and trainings of the unit tests, shared among processes."""
        shards = 2 if self.options.on_host else 12
        filters = "Cuda.*:CudaAttention*:*CudaGenerated*:All/OpCases.*:Session*:Trainer*:Checkpoint*:Initialization*"
        filters += ":*MergeUpdates*:MergeLookups*:*CudaCollectives*"
        left_out = "*Allocat*" + (":*ConvGradWeight*" if self.options.on_host else "")
        chosen = self.options.filter or f"{filters}-{left_out}"

        def shard(i):
            with tempfile.TemporaryDirectory() as folder:
                status, output = self.run([self.options.tests, f"--gtest_filter={chosen}"], 120,
                                          ONNX_TRAIN_TEST_DEVICE="cuda", GTEST_TOTAL_SHARDS=str(shards),
                                          GTEST_SHARD_INDEX=str(i), TEST_TMPDIR=folder + "/")  # fmt: skip
            return status, output

        with ThreadPoolExecutor(shards) as pool:
            ended = list(pool.map(shard, range(shards)))
        text = "".join(output for _, output in ended)
        # The test in which a process was killed is the last that it has begun.
        ended_in = [re.findall(r"\[ RUN      \] (\S+)", output)[-1:] for status, output in ended if status not in (0, 1)]
        (self.options.out / "tests.log").write_text(text[-2000000:])
        failed = sorted(set(re.findall(r"\[  FAILED  \] (\S+?)[, (\n]", text)))
        skipped = sorted(set(re.findall(r"\[  SKIPPED \] (\S+)", text)))  # tests.log says why
        passed = sum(map(int, re.findall(r"\[  PASSED  \] (\d+) tests", text)))
        return {"ok": all(status == 0 for status, _ in ended), "passed": passed, "statuses": [s for s, _ in ended],
                "ended in": ended_in, "failed": failed[:60], "skipped": skipped, "number failed": len(failed)}  # fmt: skip

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

    def ranks(self):
        """NCCL: one rank in a captured graph, and a training of as many ranks as there are GPUs against one that accumulates."""
        status, output = self.run([self.options.tests, "--gtest_filter=*CudaCollectives*"], 60, ONNX_TRAIN_TEST_DEVICE="cuda")
        (self.options.out / "ranks.log").write_text(output)
        passed = sum(map(int, re.findall(r"\[  PASSED  \] (\d+) test", output)))
        skipped = re.findall(r"Skipped\n(.*)", output)[:1]
        row = {"ok": status == 0 and passed > 0 and not skipped, "tests of one rank": passed, "skipped": skipped}
        row["GPUs"] = gpus = len(re.findall(r"^cuda:\d+", self.command("devices"), re.MULTILINE))
        if gpus < 2:
            return row
        losses = {}
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "train.onnx"
            self.command("build", ROOT / "models/digits_cnn.onnx", "-o", model, "--loss", "cross_entropy", "--accumulate")
            several = ["--devices", ",".join(f"cuda:{i}" for i in range(gpus))]
            for kind, options in {"one": ["--device", "cuda"], "ranks": several, "zero 1": [*several, "--zero", "1"]}.items():
                out = Path(folder) / kind
                self.command("fit", model, "--data", ROOT / "models/data/digits_train.npz", "--batch-size", 4, "--steps", 3,
                             "--accumulate", 2 * gpus, "--seed", 1, "--out", out, *options)  # fmt: skip
                lines = (out / "metrics.jsonl").read_text().splitlines()
                losses[kind] = np.array([json.loads(line)["loss"] for line in lines])
        errors = {kind: float(np.max(np.abs(found / losses["one"] - 1))) for kind, found in losses.items() if kind != "one"}
        return row | {"ok": row["ok"] and max(errors.values()) < 1e-4, "error against one GPU": errors}

    def sanitizer(self, tool):
        filters = "Cuda.*:All/OpCases.Holds/*MatMul*:All/OpCases.Holds/*Softmax*:All/OpCases.Holds/*GatherGrad*"
        status, output = self.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", self.options.tests,
                                   "--gtest_brief=1", f"--gtest_filter={self.options.filter or filters}"], 60,
                                  ONNX_TRAIN_TEST_DEVICE="cuda")  # fmt: skip
        (self.options.out / f"{tool}.log").write_text(output[-100000:])
        return {"ok": status == 0, "status": status, "summary": output.strip().splitlines()[-1:]}

    def ready(self, network):
        """Waits for the models of a network, and for PyTorch's."""
        while not network.built:
            if network.error or self.left() <= 1:
                raise network.error or RuntimeError("no time was left")
            time.sleep(0.1)
        if self.options.peers and not network.is_ready:
            network.is_ready = "ready" in network.answer()
            if not network.is_ready:
                raise RuntimeError("the worker did not get ready")

    def benchmark(self, network, precision):
        """Milliseconds a step: ours, PyTorch eager, and torch.compile with CUDA graphs."""
        self.ready(network)
        model, options = PRECISIONS[precision]
        text = self.command("bench", network.folder / f"{model}.onnx", "--data", network.folder / "d.npz", "--batch-size",
                            network.exported["batch"], "--seconds", self.options.seconds, "--device", "cuda", "--json",
                            "--profile", *options)  # fmt: skip
        found = json.loads(text)
        self.nodes.setdefault(network.name_of_network, {})[precision] = [
            [n["kernel"], n["form"], n["name"], round(n["ms"], 5), round(n["roofline_ms"], 5)] for n in found["nodes"]
        ]
        row = {"ours": round(found["median_ms"], 3), "bound": round(found["roofline_ms"], 3),
               "memory": f"{found['peak_memory_bytes'] / 1e9:.2f} GB"}  # fmt: skip
        row["idle"] = round(1 - found["nodes_ms"] / found["median_ms"], 3)
        if precision == "bf16" and network.name_of_network in FITTED:
            row["fit"] = self.step_of_fit(network, model, row["ours"])
            row["idle in fit"] = round(1 - found["nodes_ms"] / row["fit"], 3)
        if precision in self.options.peers:
            row |= network.ask(precision, self.options.seconds)
            best = min((row[k] for k in ("eager", "compile") if isinstance(row[k], float)), default=None)
            row["ratio"] = best and round(best / row["ours"], 3)
        return row

    def step_of_fit(self, network, model, expected):
        """Milliseconds of a step of `fit`, with its data pipeline, in the middle."""
        with np.load(network.folder / "d.npz") as data:  # eight batches, so that few steps end an epoch
            np.savez(network.folder / "fit.npz", **{k: np.concatenate([v] * 8) for k, v in data.items()})
        steps = int(np.clip(1000 * self.options.seconds / expected, 32, 2000))
        self.command("fit", network.folder / f"{model}.onnx", "--data", network.folder / "fit.npz", "--steps", steps, "--out",
                     network.folder / "fit", "--batch-size", network.exported["batch"], "--overwrite", "--device", "cuda")  # fmt: skip
        lines = (network.folder / "fit/metrics.jsonl").read_text().splitlines()
        return round(float(np.median([json.loads(line)["ms"] for line in lines[steps // 2 :]])), 3)

    def counters(self, network):
        """What ncu counts of the kernels of a step in bf16: the ten that lose most of the memory's bandwidth."""
        path = self.options.out / "counters.csv"
        status, output = self.run(["ncu", "--metrics", ",".join(COUNTERS.values()), "--clock-control", "none", "--csv",
                                   "--log-file", path, self.options.command, "bench", network.folder / "bf16.onnx", "--data",
                                   network.folder / "d.npz", "--batch-size", network.exported["batch"], "--seconds", 0.001,
                                   "--device", "cuda", "--lowering", "-replay"], 100)  # fmt: skip
        text = path.read_text() if path.exists() else ""
        values = collections.defaultdict(dict)  # by launch
        for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
            key = (re.sub(r"void |<unnamed>::|\(.*", "", row["Kernel Name"])[:60], row["ID"])
            values[key][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        path.unlink(missing_ok=True)
        longest = {}  # by kernel; a rehearsal's launches stop at once
        for (kernel, _), found in values.items():
            if len(found) == len(COUNTERS):
                row = {k: found[metric] for k, metric in COUNTERS.items()}
                row["ms"] /= 1e6
                if row["ms"] > longest.get(kernel, row)["ms"] or kernel not in longest:
                    longest[kernel] = row
        worst = sorted(longest, key=lambda k: -longest[k]["ms"] * (100 - longest[k]["bandwidth"]))
        return {"ok": status == 0, "status": status, "said": output.strip()[-200:] if status else "",
                "kernels": {k: {n: round(v, 4) for n, v in longest[k].items()} for k in worst[:14]}}  # fmt: skip


def by_kernel(nodes):
    """Of nodes (kernel, form, name, milliseconds, bound): their number, time and bound by kernel, the largest loss first."""
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for kernel, _, _, ms, bound in nodes:
        sums[kernel] = [round(a + b, 5) for a, b in zip(sums[kernel], (1, ms, bound))]
    return dict(sorted(sums.items(), key=lambda item: item[1][2] - item[1][1]))


def table_of_kernels(kernels, before):
    """The kernels of each step that lose most: number of nodes, time, bound, and the time before."""
    old = json.loads(before.read_text()) if before and before.exists() else {}
    lines = ["| step | kernel | count | ms | bound, ms | before, ms |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for network, precisions in kernels.items():
        for precision, found in precisions.items():
            earlier = old.get(network, {}).get(precision, {})
            total = [sum(row[i] for row in found.values()) for i in range(3)]
            for kernel, row in [("all", total), *list(found.items())[:12]]:
                was = sum(r[1] for r in earlier.values()) if kernel == "all" else earlier.get(kernel, [0, 0])[1]
                cells = [f"{network} {precision}" if kernel == "all" else "", kernel, str(row[0]), f"{row[1]:.3f}",
                         f"{row[2]:.3f}", f"{was:.3f}" if was else ""]  # fmt: skip
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--command", required=True, type=Path)
    parser.add_argument("--tests", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--on-host", action="store_true")
    parser.add_argument("--only", type=names, help="names of stages")
    parser.add_argument("--filter", help="the tests to run, as googletest's filter")
    parser.add_argument("--precisions", type=names, default=list(PRECISIONS))
    parser.add_argument("--peers", type=names, default=list(PRECISIONS), help="the precisions that PyTorch is timed in")
    parser.add_argument("--no-peers", dest="peers", action="store_const", const=[], help="without PyTorch's times")
    parser.add_argument("--before", type=Path, default=ROOT / "docs/gpu_kernels.json", help="an earlier kernels.json")
    parser.add_argument("--seconds", type=float, default=1, help="for each step that is timed [1]")
    parser.add_argument("--minutes", type=float, default=7, help="no stage goes on after that [7]")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("ONNX_TRAIN_TIMED_CHOICES", "60")
    check = Check(options)
    check.stage("machine", check.machine)
    with tempfile.TemporaryDirectory() as folder:
        networks = {}
        for name in BENCHMARKS if not options.on_host else ():
            if check.wants(name) or (name == "gpt2" and check.wants("counters")):
                (Path(folder) / name).mkdir()
                networks[name] = Network(check, name, Path(folder) / name)
        steps = (20, 20) if not options.on_host else (3, 2)
        with ThreadPoolExecutor(3) as pool:
            pool.submit(check.stage, "digits", lambda: check.training("digits", steps[0], 16))
            pool.submit(check.stage, "gpt", lambda: check.training("gpt", steps[1], 2))
            pool.submit(check.stage, "tests", check.tests)
            pool.submit(check.stage, "ranks", check.ranks)
        if options.peers:  # the GPU is for what is timed alone, once every worker waits
            while any(n.is_alive() and n.answers.empty() for n in networks.values()) and check.left() > 1:
                time.sleep(0.1)
        else:
            for network in networks.values():
                network.join(check.left())
        for precision in options.precisions:
            for name, network in networks.items():
                if check.wants(name):
                    check.stage(f"{name} {precision}", lambda n=network, p=precision: check.benchmark(n, p))
        if "gpt2" in networks:
            check.stage("counters", lambda: check.counters(networks["gpt2"]))
        for network in networks.values():
            network.process.kill()
    if not options.on_host:
        for tool in "memcheck", "racecheck":
            check.stage(tool, lambda tool=tool: check.sanitizer(tool))
    return 0 if all(row["ok"] for row in check.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
