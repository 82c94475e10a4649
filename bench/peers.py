"""Whole training steps against PyTorch, JAX and ONNX Runtime: time, memory, and the arithmetic bound.

    bench/install_contestants ort-training
    .deps/venv/bin/python bench/peers.py --write docs/performance.md
    .deps/venv/bin/python bench/peers.py --contestants ours --before OLD_BUILD/onnx-train

Every contestant trains the same exported network on the same batch in a process of its own, all pinned to the same
cores with as many threads. They take turns of a few seconds, all but one stopped, so that whatever else the machine
does meets all of them. A step counts when it lies wholly within a turn, behind the first few. PyTorch uses its fused
AdamW, its fastest; ONNX Runtime runs our training step, flattened to a plain model, and is a figure, not the bar. JAX and
ONNX Runtime Training train the networks that they have (peers_contestants.py); docs/performance.md says how.

Memory is the peak resident set of the whole run, less what the process held once its libraries were loaded, less the
weights, the two moments and the batch, which every contestant has to hold.
"""

import argparse
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import peers_contestants
from peers_table import tables, write_between_marks
from peers_workloads import COMMAND, WORKLOADS, inherent_bytes, loss_function, make_files, takes_precision

CORES = sorted(os.sched_getaffinity(0))[: int(os.environ.get("PEERS_THREADS", 2))]
WARM_UP = 5  # steps that do not count
TURN, STEPS_IN_A_TURN, LONGEST_TURN = 3.0, 2, 60.0  # seconds; as many whole steps if that is longer; but no longer
LONGEST_START = 900  # seconds until a contestant has to be warm; torch.compile takes minutes
# How far apart the losses of the first step may be, relatively.
TOLERANCE = {"float32": 1e-4, "gemm-bf16": 2e-2, "bf16": 2e-2}


@dataclass
class Result:
    """What one contestant did with one workload. Times in milliseconds."""

    error: str = ""
    times: list = field(default_factory=list)
    memory: float = 0  # bytes beyond weights, moments and batch
    losses: list = field(default_factory=list)  # of the warm-up


def pin_and_die_with_parent():
    """Between fork and exec: a contestant stopped out of its turn must not outlive a comparison that is killed."""
    os.sched_setaffinity(0, CORES)
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Contestant:
    """A process that trains and prints a JSON object per step. Stopped except while it has its turn."""

    def __init__(self, arguments, folder, kind):
        self.log, self.errors = folder / f"{kind}.jsonl", folder / f"{kind}.txt"
        self.turns = []  # (begin, end) of the monotonic clock
        environment = os.environ | {"OMP_NUM_THREADS": str(len(CORES))}
        with open(self.log, "w") as log, open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                arguments, env=environment, stdout=log, stderr=errors,
                preexec_fn=pin_and_die_with_parent, start_new_session=True,
            )  # fmt: skip

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line[-1] == "\n"]

    def steps(self):
        return [line for line in self.lines() if "ms" in line]

    def warm_up(self):
        """Returns why it cannot take part, or nothing."""
        deadline = time.monotonic() + LONGEST_START
        while len(self.steps()) <= WARM_UP:
            if self.process.poll() is not None:
                said = [line["error"] for line in self.lines() if "error" in line]
                errors = self.errors.read_text().strip().splitlines() or [""]
                return said[-1] if said else f"ended with status {self.process.returncode}: {errors[-1]}"
            if time.monotonic() > deadline:
                self.finish()
                return f"not warm after {LONGEST_START} s"
            time.sleep(0.1)
        self.signal(signal.SIGSTOP)
        return ""

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def take_turn(self):
        """A few seconds, and longer where steps are: the step that a turn cuts in two does not count."""
        begin, before = time.monotonic(), len(self.steps())
        self.signal(signal.SIGCONT)
        time.sleep(TURN)
        while len(self.steps()) - before < STEPS_IN_A_TURN + 1 and time.monotonic() - begin < LONGEST_TURN:
            time.sleep(0.05)
        self.turns.append((begin, time.monotonic()))
        self.signal(signal.SIGSTOP)

    def peak_bytes(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
        raise RuntimeError(f"process {self.process.pid} has no VmHWM")

    def result(self, inherent):
        steps, base = self.steps(), self.lines()[0]["resident"]
        times = [
            step["ms"] for step in steps[WARM_UP:]
            if any(begin <= step["end"] - 1e-3 * step["ms"] and step["end"] <= end for begin, end in self.turns)
        ]  # fmt: skip
        losses = [step["loss"] for step in steps[:WARM_UP]]
        error = "" if times else f"no whole step in a turn; the last took {steps[-1]['ms']:.0f} ms"
        return Result(error, times, self.peak_bytes() - base - inherent, losses)

    def finish(self):
        self.signal(signal.SIGKILL)
        self.process.wait()


def measure_bound(workload, files):
    """FLOPs of the step's products and convolutions, and FLOP/s of a large product, as `bench` counts and measures."""
    result = subprocess.run(
        [COMMAND, "bench", files.training, "--data", files.data, "--batch-size", str(workload.sizes["batch"]),
         "--seconds", "1", "--json"], check=True, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(len(CORES))},
        preexec_fn=lambda: os.sched_setaffinity(0, CORES))  # fmt: skip
    report = json.loads(result.stdout)
    return {"flops": report["flops"], "bound": report["bound_ms"], "peak": report["peak_gflops"]}


def evaluation_losses(workload, example, files):
    """Of both, without dropout: what can be compared where the losses of training are random."""
    import torch

    with torch.no_grad():
        theirs = loss_function(example)(example.module.eval()(*example.inputs.values()), example.labels).item()
    printed = subprocess.run(
        [COMMAND, "eval", files.training, "--data", files.data, "--batch-size", str(workload.sizes["batch"]), "--json"],
        check=True, capture_output=True, text=True).stdout  # fmt: skip
    return theirs, json.loads(printed)["loss"]


def relative(loss, reference):
    return abs(loss - reference) / abs(reference)


def check_evaluation(workload, precision, example, files):
    """With dropout the masks of all differ: only our loss of evaluation is compared."""
    theirs, ours = evaluation_losses(workload, example, files)
    print(f"  evaluation loss: PyTorch {theirs:.6f}, ours {ours:.6f}, apart {relative(ours, theirs):.1e}")
    assert relative(ours, theirs) <= TOLERANCE[precision], f"{workload.title}: we do not train what PyTorch trains"


def check_losses(workload, precision, results):
    """Everybody trains what PyTorch trains: the same first loss, before any update, to TOLERANCE. A contestant that does not
    loses its times. Later losses are only printed: AdamW's first updates are nearly the signs of the gradients, and rounding
    decides the signs of tiny ones."""
    theirs = results["eager"].losses
    for kind in [kind for kind, result in results.items() if kind != "eager" and result.losses]:
        losses = results[kind].losses
        apart, later = (relative(losses[i], theirs[i]) for i in (0, -1))
        print(f"  {kind}: first loss {losses[0]:.6f}, PyTorch {theirs[0]:.6f}, apart {apart:.1e}; "
              f"at step {WARM_UP} {losses[-1]:.6f}, {theirs[-1]:.6f}, apart {later:.1e}", flush=True)  # fmt: skip
        if apart > TOLERANCE[precision]:
            assert kind != "ours", f"{workload.title}: we do not train what PyTorch trains"
            results[kind] = Result(f"its first loss is {losses[0]:.6f}, PyTorch's {theirs[0]:.6f}")


def compare(workload, precision, options):
    """Returns contestant -> Result, and the arithmetic bound."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        example = workload.example()
        inherent = inherent_bytes(example)
        files = make_files(workload, example, precision, folder)
        bounds = [measure_bound(workload, files)]
        running, results = {}, {}
        try:
            for kind in options.contestants + ["before"] * (options.before is not None):
                if not peers_contestants.trains(kind, workload, precision):
                    print(f"  {kind} does not take part: it has no {precision} version of this network", flush=True)
                    continue
                try:
                    command = peers_contestants.command_of(
                        kind, workload, example, precision, files, folder, len(CORES), options
                    )  # fmt: skip
                except Exception as failure:  # of an exporter; what a peer cannot do is a finding
                    error = f"{type(failure).__name__}: {failure}".splitlines()[0]
                else:
                    running[kind] = Contestant(command, folder, kind)
                    error = running[kind].warm_up()
                if error:
                    print(f"  {kind} does not take part: {error}", flush=True)
                    results[kind] = Result(error)
                    running.pop(kind, None)
            for _ in range(max(1, round(options.seconds / TURN))):
                for contestant in running.values():
                    contestant.take_turn()
            results |= {kind: contestant.result(inherent) for kind, contestant in running.items()}
            bounds.append(measure_bound(workload, files))
        finally:
            for contestant in running.values():
                contestant.finish()
        for kind, result in results.items():
            if result.times:
                print(f"  {kind}: {sorted(result.times)[len(result.times) // 2]:.2f} ms, {len(result.times)} steps")
        before = results.pop("before", None)
        if before and before.times:
            time_ratio = statistics.median(results["ours"].times) / statistics.median(before.times)
            memory_ratio = results["ours"].memory / before.memory
            print(f"  ours takes {time_ratio:.3f} of the time of before, {memory_ratio:.3f} of its memory")
        if workload.dropout:
            check_evaluation(workload, precision, example, files)
        elif "eager" in running:
            check_losses(workload, precision, results)
    return results, min(bounds, key=lambda bound: bound["bound"]) | {"inherent": inherent}


def compare_or_say_why_not(workload, precision, options):
    """One workload that fails does not take the others' results with it."""
    try:
        return compare(workload, precision, options)
    except (AssertionError, RuntimeError, TypeError, subprocess.CalledProcessError) as error:
        return f"failed: {error}"


def names(text):
    return [name for name in text.split(",") if name]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a workload's title")
    parser.add_argument("--precision", type=names, default=["float32", "bf16"],
                        help="float32, bf16, gemm-bf16: a table for each [float32,bf16]")  # fmt: skip
    installed, known = peers_contestants.installed(), peers_contestants.ALL
    parser.add_argument("--contestants", type=names, default=installed,
                        help=f"some of {','.join(known)} [those that are installed]")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30, help="time for each contestant and workload [30]")
    parser.add_argument("--before", type=Path, help="the command of another build, which takes turns with ours")
    parser.add_argument("--plain-adamw", action="store_true", help="PyTorch's AdamW without fused=True, its default")
    parser.add_argument("--write", type=Path, help="document whose tables to replace")
    options = parser.parse_args()
    for name in options.precision:
        if name not in TOLERANCE:
            parser.error(f"no precision '{name}'; there are {', '.join(TOLERANCE)}")
    for name in options.contestants:
        if name not in known:
            parser.error(f"no contestant '{name}'; there are {', '.join(known)}")
        if name not in installed:
            parser.error(f"'{name}' is not installed: bench/install_contestants {name}")
    return options


def main():
    options = parse_arguments()
    measured = {}
    for precision in options.precision:
        if precision != "float32" and not takes_precision():
            print(f"{precision}: left out, this onnx-train's build has no --precision", flush=True)
            measured[precision] = None
            continue
        rows = measured[precision] = {}
        for workload in WORKLOADS:
            if options.only.lower() not in workload.title.lower():
                continue
            print(f"{workload.title}, {precision}", flush=True)
            if not workload.exists():
                rows[workload.title] = f"left out: models/networks.py has no '{workload.network}'"
            else:
                rows[workload.title] = compare_or_say_why_not(workload, precision, options)
            if isinstance(rows[workload.title], str):
                print(f"  {rows[workload.title]}", flush=True)
    text = tables(measured, len(CORES), options.plain_adamw)
    print("\n" + text)
    if options.write:
        write_between_marks(options.write, text)
    return any(isinstance(row, str) for rows in measured.values() if rows for row in rows.values())


if __name__ == "__main__":
    sys.exit(main())
