"""What scripts/gpu_check runs, in the order of what a wrong answer would cost.

    python3 bench/gpu/check.py --command ONNX_TRAIN --tests GPU_TESTS --out FOLDER [--on-host] [--only STAGE,...]
        [--filter GTEST_FILTER] [--precisions bf16,...] [--peers bf16,...] [--no-peers] [--before FILE] [--seconds S]
        [--minutes M]

    machine     the device
    tests       operator cases, sessions and trainings in 12 processes; who dies is named, and the others go on
    deaths      each test in which a process died: alone 20 times, and after those before it under memcheck
    memcheck, racecheck   what never ran on a device, under compute-sanitizer
    losses      twelve networks and the forms of FORMS against the CPU
    digits, gpt captured steps against node by node, in bits
    ranks       NCCL: one rank captured, all GPUs that there are
    NETWORK PRECISION     a step beside PyTorch's; which forms were chosen
    forms       what each form of FORMS gains against the rule
    qwen 0.5b, qwen 1.5b  LoRA and all weights in bf16: tokens a second
    counters    ncu on the kernels of GPT-2 that lose most

While the first seven run, the networks that are timed are exported and PyTorch's are compiled, each in a process of its own.
Steps are timed after that, one network at a time, with nothing else on the GPU, and with all choices made
(ONNX_TRAIN_TIMED_CHOICES=60), as later runs of the same network have them. A stage ends when its own time is over (`SECONDS`).
What has passed is not run again when FOLDER has an earlier results.json of the same binaries: another day goes on from there.
nodes.json has the time of each node by network and precision, kernels.json the same by kernel; kernels.md has these beside
those of the file that --before names (docs/gpu_kernels.json).
"""

import argparse
import collections
import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from googletest import DEVICE_TESTS, GoogleTest
from network import Network
from stages import Stages, replace
from tables import COUNTERS, by_kernel, slowest_kernels, table_of_kernels

ROOT = Path(__file__).parents[2]
# The most that a stage may take on a device, of the seven minutes that there are.
SECONDS = {
    "machine": 20, "tests": 120, "deaths": 60, "memcheck": 90, "racecheck": 90, "losses": 100, "digits": 60, "gpt": 60, "ranks": 60,
    "step": 40, "forms": 60, "qwen": 60, "counters": 100,
}  # fmt: skip
# A network of models/networks.py and its sizes: step times against PyTorch's.
BENCHMARKS = {
    "gpt2": dict(batch=16, width=768, heads=12, blocks=12, tokens=1024, vocabulary=50257, attention="sdpa"),
    "masked_lm": dict(batch=64, width=768, heads=12, blocks=12, tokens=128, vocabulary=30522, attention="sdpa"),
    "resnet18": dict(batch=256),
    "mlp": dict(batch=128, sizes=(784, 512, 512, 10)),
    "dlrm": dict(batch=2048, tables=26, rows=10000, bottom=(13, 512, 256, 64, 16), top=(512, 256)),
    "lstm": dict(batch=32, width=256, layers=2, tokens=64, vocabulary=2000),
}  # fmt: skip
# The same on the host, where a step must take a second.
SMALL = {
    "gpt2": dict(batch=2, width=16, heads=2, blocks=1, tokens=8, vocabulary=32, attention="sdpa"),
    "lstm": dict(batch=2, width=8, layers=1, tokens=4, vocabulary=20),
}
# Whose losses are compared with the CPU's: as models/networks.py makes them for tests, and one whose logits come in chunks.
COMPARED = ["mlp", "cnn", "resnet18", "mobilenet", "unet", "masked_lm", "gpt2", "llama", "dlrm", "lstm", "gru", "waves"]
CHUNKED = {"gpt2_chunked": ("gpt2", dict(batch=4, width=64, heads=4, blocks=2, tokens=512, vocabulary=5000, attention="sdpa"))}
FITTED = "gpt2", "mlp"  # whose `fit` is timed, too
# The optimizer's model is built for two precisions; TF32 is an option of the run.
PRECISIONS = {"bf16": ("bf16", []), "float32": ("float32", []), "tf32": ("float32", ["--tf32"])}
# What no device has shown to gain: network, precision, and the options or variables with it and without it.
FORMS = {
    "recurrent layers in one kernel": ("lstm", "bf16", {"ONNX_TRAIN_TIMED_CHOICES": "form=1"}, {"ONNX_TRAIN_TIMED_CHOICES": "off"}),
    "logits in chunks": ("gpt2", "bf16", [], ["--lowering", "-linear_cross_entropy"]),
    "attention of cuDNN that is not deterministic": ("gpt2", "bf16", ["--deterministic", "off"], []),
    "products of 8 bits": ("gpt2", "fp8", [], ("gpt2", "bf16")),
    "attention and products in TF32": ("gpt2", "float32", ["--tf32"], []),
    "images channels last in TF32": ("resnet18", "float32", ["--tf32"], ["--tf32", "--lowering", "-channels_last"]),
    "moments in the host's memory": ("gpt2", "bf16", ["--offload", "optimizer"], []),
}
# The most that a loss may differ from the CPU's in the same precision, relatively, within ten steps.
TOLERANCES = {"float32": 1e-4, "tf32": 1e-2, "bf16": 3e-2, "fp8": 1e-1}
# Kernels that have run on the host alone, with the variables by which they are chosen.
NEVER_RAN = [
    ("Cuda.*:CudaAttention*:*CudaGenerated*:All/OpCases.Holds/*MatMul*:All/OpCases.Holds/*Softmax*:All/OpCases.Holds/*GatherGrad*", {}),
    ("All/OpCases.Holds/*LinearCrossEntropy*:All/OpCases.Holds/*LabelScores*:All/OpCases.Holds/*Quantize*:All/OpCases.Holds/*8bit*", {}),
    ("All/OpCases.Holds/*LSTM*:All/OpCases.Holds/*GRU*:All/OpCases.Holds/*RNN*", {"ONNX_TRAIN_TIMED_CHOICES": "form=1"}),
]  # fmt: skip


class Check:
    """The stages' work. Each gives what its row says; `self.stages` runs them."""

    def __init__(self, options):
        self.options = options
        self.stages = Stages(options.out, options.minutes, options.only, (options.command, options.tests))
        self.sizes = SMALL if options.on_host else BENCHMARKS
        self.nodes = {}
        self.deaths = []
        self.networks = {}
        self.scratch = None  # a folder that does not travel back

    def command(self, *arguments, **variables):
        status, output = self.stages.run([self.options.command, *arguments], **variables)
        if status != 0:
            raise RuntimeError(f"onnx-train {arguments[0]}: {output.strip().splitlines()[-1:] or status}")
        return output

    def googletest(self):
        return GoogleTest(self.stages.run, self.options.tests, ONNX_TRAIN_TEST_DEVICE="cuda")

    # ---- Stages

    def machine(self):
        status, smi = self.stages.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 20)
        return {"gpu": smi.strip() if status == 0 else "none", "devices": self.command("devices").strip()}

    def tests(self):
        """The operator cases, sessions and trainings of the unit tests, shared among processes."""
        left_out = "*Allocat*" + (":*ConvGradWeight*" if self.options.on_host else "")
        program = self.googletest()
        found = program.run_shared(program.names(self.options.filter or f"{DEVICE_TESTS}-{left_out}"), self.options.processes,
                                   self.stages.left())  # fmt: skip
        replace(self.options.out / "tests.log", found.log[-4000000:])
        self.deaths = found.deaths
        replace(self.options.out / "deaths.json", json.dumps([vars(death) for death in found.deaths], indent=1))
        return {"ok": not found.failed and not found.deaths and bool(found.passed), "passed": len(found.passed),
                "failed": found.failed[:60], "number failed": len(found.failed), "skipped": found.skipped,
                "died in": [(death.test, death.status) for death in found.deaths], "not run": len(found.not_run)}  # fmt: skip

    def after_deaths(self):
        """Whether a test dies alone, or because of those before it; memcheck says where."""
        if not self.deaths:
            return {"deaths": 0}
        program = self.googletest()
        rows = {}
        with ThreadPoolExecutor(self.options.processes) as pool:
            for death in self.deaths[:4]:
                alone = list(pool.map(lambda i, test=death.test: program.run_once([test], 30)[0], range(20)))
                status, output = program.run_once([*death.before[-40:], death.test], 60, self.sanitizer_tool("memcheck"))
                replace(self.options.out / f"death_{len(rows)}.log", output[-400000:])
                rows[death.test] = {"alone": f"{sum(s not in (0, 1) for s in alone)} of 20 died", "memcheck": status,
                                    "says": output.strip().splitlines()[-1:]}  # fmt: skip
        return {"ok": False, "deaths": rows}

    def sanitizer_tool(self, tool):
        """compute-sanitizer; on the host, whose machine checks by itself, the tests run without it."""
        return () if self.options.on_host else ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9")

    def sanitizer(self, tool):
        program = self.googletest()

        def run(part):
            chosen, variables = part
            names = program.names(self.options.filter or chosen)
            if self.options.on_host:
                names = names[:3]
            return len(names), *program.run_once(names, self.stages.left(), self.sanitizer_tool(tool), **variables)

        with ThreadPoolExecutor(len(NEVER_RAN)) as pool:
            found = list(pool.map(run, NEVER_RAN))
        replace(self.options.out / f"{tool}.log", "".join(output[-200000:] for _, _, output in found))
        return {"ok": all(status == 0 for _, status, _ in found), "tests": [n for n, _, _ in found],
                "statuses": [status for _, status, _ in found],
                "says": [output.strip().splitlines()[-1:] for _, _, output in found]}  # fmt: skip

    def losses(self):
        """Ten steps on CUDA against the CPU in the same precision: the largest relative difference of a loss."""
        chosen = COMPARED[:2] if self.options.on_host else COMPARED
        folder = Path(self.scratch) / "losses"
        folder.mkdir()
        wanted = {name: (name, {}) for name in chosen} | ({} if self.options.on_host else CHUNKED)
        status, output = self.stages.run([sys.executable, ROOT / "bench/gpu/peer.py", json.dumps({"networks": wanted, "folder": str(folder)})])
        if status != 0:
            raise RuntimeError(f"peer.py: {output.strip().splitlines()[-1:]}")
        exported = {row["name"]: row for row in map(json.loads, re.findall(r"^\{.*", output, re.MULTILINE))}

        def compared(name, kind, options=(), **variables):
            precision = "float32" if kind == "tf32" else kind
            place = folder / name
            model = place / f"{kind}_{len(options)}_{len(variables)}.onnx"
            self.command("build", place / "m.onnx", "-o", model, "--loss", exported[name]["loss"], "--precision", precision)
            found = {}
            for device in "cpu", "cuda":
                out = place / f"{device}_{model.stem}"
                self.command("fit", model, "--data", place / "d.npz", "--steps", 10 if not self.options.on_host else 2, "--batch-size",
                             exported[name]["batch"], "--no-shuffle", "--out", out, "--device", device,
                             *(options if device == "cuda" else ()), **variables)  # fmt: skip
                found[device] = np.array([json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()])
            error = float(np.max(np.abs(found["cuda"] / found["cpu"] - 1)))
            return error, error <= TOLERANCES[kind]

        work = [(name, kind, (), {}) for name in exported for kind in ("float32", "bf16")]
        if not self.options.on_host:
            work += [(name, "tf32", ("--tf32",), {}) for name in ("gpt2", "resnet18", "llama")]
            work += [(name, "float32", (), {"ONNX_TRAIN_TIMED_CHOICES": "form=1"}) for name in ("lstm", "gru")]
            work += [("gpt2", "fp8", (), {}), ("gpt2", "bf16", ("--deterministic", "off"), {}),
                     ("mlp", "float32", ("--offload", "optimizer"), {})]  # fmt: skip
        with ThreadPoolExecutor(self.options.processes) as pool:
            running = {(n, k, *o, *v.values()): pool.submit(compared, n, k, o, **v) for n, k, o, v in work}
            rows, good = {}, True
            for key, result in running.items():
                try:
                    error, holds = result.result()
                    rows[" ".join(key)] = f"{error:.1e}" + ("" if holds else " TOO MUCH")
                    good &= holds
                except Exception as error:  # noqa: BLE001  (the other networks count)
                    rows[" ".join(key)], good = str(error)[:200], False
        return {"ok": good} | rows

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
        program = self.googletest()
        found = program.run_all(program.names("*CudaCollectives*"), self.stages.left())
        replace(self.options.out / "ranks.log", found.log)
        row = {"ok": bool(found.passed) and not (found.failed or found.deaths or found.skipped), "tests of one rank": len(found.passed),
               "skipped": re.findall(r"Skipped\n(.*)", found.log)[:1]}  # fmt: skip
        row["GPUs"] = gpus = len(re.findall(r"^cuda:\d+", self.command("devices"), re.MULTILINE))
        if gpus < 2 or self.options.on_host:
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

    def bench(self, network, precision, options=(), seconds=None, **variables):
        """What `bench --json --profile` says of a step."""
        text = self.command("bench", network.model(precision), "--data", network.folder / "d.npz", "--batch-size",
                            network.exported["batch"], "--seconds", seconds or self.options.seconds, "--device", "cuda", "--json",
                            "--profile", *options, **variables)  # fmt: skip
        return json.loads(text)

    def step(self, network, precision):
        """Milliseconds a step: ours, PyTorch eager, and torch.compile with CUDA graphs."""
        model, options = PRECISIONS[precision]
        found = self.bench(network, model, options)
        self.nodes.setdefault(network.name_of_network, {})[precision] = [
            [n["kernel"], n["form"], n["name"], round(n["ms"], 5), round(n["roofline_ms"], 5)] for n in found["nodes"]
        ]
        self.write_nodes()
        forms = collections.Counter(f"{n['kernel']} {n['form']}" for n in found["nodes"] if n["form"])
        row = {"ours": round(found["median_ms"], 3), "bound": round(found["roofline_ms"], 3),
               "memory": f"{found['peak_memory_bytes'] / 1e9:.2f} GB", "forms": dict(forms.most_common(12))}  # fmt: skip
        row["idle"] = round(1 - found["nodes_ms"] / found["median_ms"], 3)
        if precision == "bf16" and network.name_of_network in FITTED:
            row["fit"] = self.step_of_fit(network, model, row["ours"])
            row["idle in fit"] = round(1 - found["nodes_ms"] / row["fit"], 3)
        if precision in self.options.peers:
            row |= network.ask(precision, self.options.seconds)
            best = min((row[k] for k in ("eager", "compile") if isinstance(row[k], float)), default=None)
            row["ratio"] = best and round(best / row["ours"], 3)
        return row

    def write_nodes(self):
        replace(self.options.out / "nodes.json", json.dumps(self.nodes))
        kernels = {n: {p: by_kernel(rows) for p, rows in found.items()} for n, found in self.nodes.items()}
        replace(self.options.out / "kernels.json", json.dumps(kernels, indent=1))
        replace(self.options.out / "kernels.md", table_of_kernels(kernels, self.options.before))

    def step_of_fit(self, network, model, expected):
        """Milliseconds of a step of `fit`, with its data pipeline, in the middle."""
        with np.load(network.folder / "d.npz") as data:  # eight batches, so that few steps end an epoch
            np.savez(network.folder / "fit.npz", **{k: np.concatenate([v] * 8) for k, v in data.items()})
        steps = int(np.clip(1000 * self.options.seconds / expected, 4 if self.options.on_host else 32, 2000))
        self.command("fit", network.model(model), "--data", network.folder / "fit.npz", "--steps", steps, "--out",
                     network.folder / "fit", "--batch-size", network.exported["batch"], "--overwrite", "--device", "cuda")  # fmt: skip
        lines = (network.folder / "fit/metrics.jsonl").read_text().splitlines()
        return round(float(np.median([json.loads(line)["ms"] for line in lines[steps // 2 :]])), 3)

    def forms(self):
        """What each form gains against the rule: two rounds in turn, the faster step of each; above 1 it gains."""
        rows, good = {}, True
        for form, (name, precision, chosen, rule) in FORMS.items():
            if name not in self.networks:
                continue
            try:
                times, memory = {True: [], False: []}, {}
                for _ in range(2):
                    for is_chosen, how in (True, chosen), (False, rule):
                        of = how[1] if isinstance(how, tuple) else precision
                        found = self.bench(self.networks[name], of, how if isinstance(how, list) else (), self.options.seconds / 2,
                                           **(how if isinstance(how, dict) else {}))  # fmt: skip
                        times[is_chosen].append(found["median_ms"])
                        memory[is_chosen] = found["peak_memory_bytes"]
                rows[form] = {"with": round(min(times[True]), 3), "without": round(min(times[False]), 3),
                              "gain": round(min(times[False]) / min(times[True]), 3),
                              "memory": round(memory[True] / memory[False], 3)}  # fmt: skip
            except Exception as error:  # noqa: BLE001  (the other forms count)
                rows[form], good = str(error)[:200], False
        return {"ok": good and bool(rows)} | rows

    def qwen(self, shape):
        """A Qwen2.5 of random weights in bf16, blocks of 512 tokens: LoRA and all weights."""
        small = ["--layers", 1, "--vocabulary", 64, "--width", 32, "--inner", 32, "--heads", 2, "--kv-heads", 1, "--block-size", 8]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            status, output = self.stages.run([sys.executable, ROOT / "bench/qwen/shape.py", folder / "m.onnx", "--shape", shape, "--type",
                                              "bf16", *(small if self.options.on_host else ())])  # fmt: skip
            if status != 0:
                raise RuntimeError(f"shape.py: {output.strip().splitlines()[-1:]}")
            rows = {}
            for kind, options in {"LoRA": ["--lora", "rank=8,alpha=16"], "all weights": []}.items():
                model = folder / f"{kind}.onnx"
                self.command("build", folder / "m.onnx", "-o", model, "--precision", "bf16", "--optimizer", "adamw", *options)
                batch = 1 if self.options.on_host else 8
                found = json.loads(self.command("bench", model, "--data", folder / "m.npz", "--batch-size", batch, "--seconds",
                                                self.options.seconds, "--device", "cuda", "--json"))  # fmt: skip
                tokens = batch * (8 if self.options.on_host else 512)
                rows[kind] = {"ms": round(found["median_ms"], 2), "tokens a second": round(1000 * tokens / found["median_ms"]),
                              "of the bound": round(found["roofline_ms"] / found["median_ms"], 3),
                              "memory": f"{found['peak_memory_bytes'] / 1e9:.2f} GB"}  # fmt: skip
                model.unlink()
        return rows

    def counters(self, network):
        """What ncu counts of the kernels of a step in bf16: the ten that lose most of the memory's bandwidth."""
        path = self.options.out / "counters.csv"
        command = [self.options.command, "bench", network.model("bf16"), "--data", network.folder / "d.npz", "--batch-size",
                   network.exported["batch"], "--seconds", 0.001, "--device", "cuda", "--lowering", "-replay"]  # fmt: skip
        if self.options.on_host:  # where ncu has nothing to count
            status, output = self.stages.run(command)
            return {"ok": status == 0, "said": output.strip()[-200:] if status else ""}
        status, output = self.stages.run(["ncu", "--metrics", ",".join(COUNTERS.values()), "--clock-control", "none", "--csv", "--log-file",
                                          path, *command])  # fmt: skip
        kernels = slowest_kernels(path.read_text() if path.exists() else "")
        path.unlink(missing_ok=True)
        return {"ok": status == 0 and bool(kernels), "status": status, "said": output.strip()[-200:] if status else "",
                "kernels": kernels}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--command", required=True, type=Path)
    parser.add_argument("--tests", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--on-host", action="store_true", help="try the stages on a machine without a GPU, in small sizes")
    parser.add_argument("--only", type=names, help="names of stages")
    parser.add_argument("--filter", help="the tests to run, as googletest's filter")
    parser.add_argument("--precisions", type=names, default=list(PRECISIONS))
    parser.add_argument("--peers", type=names, default=list(PRECISIONS), help="the precisions that PyTorch is timed in")
    parser.add_argument("--no-peers", dest="peers", action="store_const", const=[], help="without PyTorch's times")
    parser.add_argument("--before", type=Path, default=ROOT / "docs/gpu_kernels.json", help="an earlier kernels.json")
    parser.add_argument("--seconds", type=float, default=1, help="for each step that is timed [1]")
    parser.add_argument("--minutes", type=float, default=7, help="no stage goes on after that [7]")
    options = parser.parse_args()
    options.processes = 2 if options.on_host else 12
    if options.on_host:  # which has no PyTorch for its device, and takes as long as a step takes
        options.peers, options.seconds = [], 0.001
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("ONNX_TRAIN_TIMED_CHOICES", "off" if options.on_host else "60")
    check = Check(options)
    stages = check.stages

    def stage(name, work, kind=None):
        stages.stage(name, SECONDS[kind or name] * (10 if options.on_host else 1), work)

    stage("machine", check.machine)
    wanted = {name for name in check.sizes if any(stages.is_wanted(f"{name} {p}") for p in options.precisions)}
    wanted |= {name for name, *_ in FORMS.values() if stages.is_wanted("forms") and name in check.sizes}
    wanted |= {"gpt2"} if stages.is_wanted("counters") else set()
    with tempfile.TemporaryDirectory() as folder:
        check.scratch = folder
        for name in check.sizes:
            if name in wanted:
                (Path(folder) / name).mkdir()
                check.networks[name] = Network(check, name, Path(folder) / name)
        steps = 2 if options.on_host else 20
        with ThreadPoolExecutor(2 if options.on_host else 6) as pool:
            tests = pool.submit(stage, "tests", check.tests)
            pool.submit(lambda: (tests.result(), stage("deaths", check.after_deaths)))
            for tool in "memcheck", "racecheck":
                pool.submit(stage, tool, lambda tool=tool: check.sanitizer(tool))
            pool.submit(stage, "losses", check.losses)
            pool.submit(stage, "digits", lambda: check.training("digits", steps, 2 if options.on_host else 16))
            pool.submit(stage, "gpt", lambda: check.training("gpt", steps, 1 if options.on_host else 2))
            pool.submit(stage, "ranks", check.ranks)
        if options.peers:  # the GPU is for what is timed alone, once every worker waits
            while any(n.is_alive() and n.answers.empty() for n in check.networks.values()) and stages.left() > 1:
                time.sleep(0.1)
        for precision in options.precisions:
            for name, network in check.networks.items():
                stage(f"{name} {precision}", lambda n=network, p=precision: check.step(n, p), "step")
        stage("forms", check.forms)
        for shape in ("0.5b",) if options.on_host else ("0.5b", "1.5b"):
            stage(f"qwen {shape}", lambda shape=shape: check.qwen(shape), "qwen")
        stage("counters", lambda: check.counters(check.networks["gpt2"]))
        for network in check.networks.values():
            if network.process:
                network.process.kill()
    for name, reason in stages.left_out.items():
        print(f"{name}: left out: {reason}")
    return 0 if all(row["ok"] for row in stages.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
