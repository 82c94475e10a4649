"""Random models, trained with every lowering pass, without, in little memory, with two threads: the same training.

    python tests/python/fuzzing/fuzz_lowering.py --count 1000 --keep failures
    python tests/python/fuzzing/fuzz_lowering.py --first 4711 --count 1 --keep failures     # one again

Model `number` is the same on every run: it comes from a generator seeded with it. A model that fails stays in the
folder given by --keep, as forward.onnx, the training models, data.npz, and what was wrong.

What must be equal in bits is compared so. Where sums may run in another order, float32 is held to 1e-6 of each tensor's
norm, as in test_lowering.py, or, where rounding itself makes more of a difference, to how far the plan without lowering
is from a precision that rounds less (float64 for float32, float32 for bfloat16). float64 is held to 1e-11, so that a
wrong plan cannot pass for rounding. A value that is zero by mathematics is noise in both: what is smaller than the
gradient's norm by 1e-6 (1e-11) is not compared.
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import fuzz
import numpy as np
import onnx
import random_blocks
from onnx import numpy_helper
from random_graph import RandomGraph, Rejected

sys.path.append(str(Path(__file__).parents[1]))
import tool  # noqa: E402
from lowering import is_exact, passes  # noqa: E402

TOLERANCE = {"float32": 1e-6, "float64": 1e-11}
MORE_THAN_ROUNDING = 8  # times as far from the truth as the plan without lowering
# Adam with a large epsilon: with a small one it makes full steps of gradients that are nothing but rounding.
OPTIMIZERS = ["sgd", "sgd(momentum=0.9)", "sgd(momentum=0.9,nesterov=1)", "adamw(eps=0.01,weight_decay=0.01)", "adam(eps=0.01)"]
RATE = 2**-7
SECONDS = 60
PROGRESS = 50  # models from a line to the next


class Failure(Exception):
    """The command did what it must not."""


class NotFinite(Failure):
    """A training run that stopped at a loss or a gradient that is no number."""


# ---- models ---------------------------------------------------------------------------------------------------------


def add_inputs(graph, rng):
    batch, batches = graph.batch, 2

    def images(*sizes):
        return graph.input("x", graph.random(batches * batch, *sizes))

    kind = rng.randrange(4)
    channels = rng.choice([1, 2, 3, 4, 8, 16])
    if kind == 0:
        graph.live.append(images(rng.choice([1, 4, 16, 33])))
    elif kind == 1:
        graph.live.append(images(rng.choice([1, 3, 5, 8]), rng.choice([1, 4, 8, 16])))
    elif kind == 2:
        graph.live.append(images(channels, rng.choice([3, 4, 6, 8, 9]), rng.choice([1, 4, 6, 8])))
    else:
        graph.live.append(images(channels, rng.choice([4, 7, 12])))
    if rng.random() < 0.4:
        ids = np.random.default_rng(rng.randrange(2**32)).integers(0, 16, (batches * batch, rng.choice([1, 3, 5, 8])))
        graph.input("ids", ids)
        graph.grow(random_blocks.embedding)


def random_model(number):
    """(model, data, loss) of a training problem of two batches."""
    rng = random.Random(number)
    while True:
        graph = RandomGraph(rng, batch=rng.choice([1, 2, 3, 4, 4, 8, 8, 17]))
        add_inputs(graph, rng)
        wanted, favourites = rng.randint(2, 16), rng.sample(random_blocks.BLOCKS, 6)
        for _ in range(4 * wanted):
            blocks = favourites if rng.random() < 0.5 else random_blocks.BLOCKS
            wanted -= graph.grow(rng.choice(blocks))
            if wanted == 0:
                break
        classes = rng.choice([1, 2, 5, 10])
        try:
            graph.finish(classes)
            model = graph.model(classes, symbolic=rng.random() < 0.5)
        except (Rejected, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        return (model, *problem(graph, rng, classes))


def problem(graph, rng, classes):
    draw = np.random.default_rng(rng.randrange(2**32))
    samples = 2 * graph.batch
    loss = rng.choice(["cross_entropy", "cross_entropy", "mse(logits, target)", "bce_with_logits(logits, target)"])
    if loss == "cross_entropy":
        return graph.data | {"labels": draw.integers(0, classes, samples)}, loss
    return graph.data | {"target": draw.uniform(0, 1, (samples, classes)).astype(np.float32)}, loss


# ---- the command ----------------------------------------------------------------------------------------------------


def command(*arguments, threads=1):
    """Exit status and messages. A crash is a Failure."""
    process = tool.start(*arguments, threads=threads)
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Failure(f"{' '.join(map(str, arguments))}: ran for more than {SECONDS} s")
    text = fuzz.misbehaviour(process.returncode, errors)
    if text:
        raise Failure(f"{' '.join(map(str, arguments))}: {text}")
    return process.returncode, output + errors


class Problem:
    """A model, its data and how it is trained, in a folder."""

    def __init__(self, number, folder):
        self.folder, self.rng = folder, random.Random(-number)
        model, data, self.loss = random_model(number)
        self.batch = len(next(iter(data.values()))) // 2
        onnx.save(model, folder / "forward.onnx")
        self.data = tool.save(folder / "data.npz", data)
        self.optimizer = self.rng.choice(OPTIMIZERS)
        self.extra = [["--clip", "0.5"], ["--loss-scale", "dynamic"], [], [], []][self.rng.randrange(5)]
        self.guard = ["--check-memory"] if self.rng.random() < 0.7 else []
        self.runs = 0

    def build(self, precision):
        """What is in the way, or ""."""
        arguments = ["build", self.folder / "forward.onnx", "-o", self.folder / f"{precision}.onnx", "--loss", self.loss,
                     "--optimizer", self.optimizer, "--precision", precision, *self.extra]  # fmt: skip
        status, text = command(*arguments, "--freeze", "const*")
        if status and "--freeze" in text:
            status, text = command(*arguments)
        return text.strip() if status else ""

    def fit(self, precision, *options, threads=1):
        """Two steps: losses, norms and the tensors of the checkpoint by name."""
        out = self.folder / "run"
        model = "float32" if precision == "float64" else precision
        arguments = ["fit", self.folder / f"{model}.onnx", "--data", self.data, "--steps", 2, "--batch-size", self.batch,
                     "--lr", RATE, "--no-shuffle", "--out", out, "--overwrite", *self.guard, *options]  # fmt: skip
        if precision == "float64":
            arguments += ["--dtype", "float64"]
        status, text = command(*arguments, threads=threads)
        self.runs += 1
        if status:
            kind = NotFinite if "holds an earlier state" in text else Failure
            raise kind(f"{' '.join(map(str, arguments))}: {text}")
        tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(out / "last.onnx").graph.initializer}
        lines = tool.metrics(out)
        return tensors | {key: np.array([line[key] for line in lines], float) for key in ("loss", "grad_norm")}

    def least_memory(self, precision):
        """Bytes of the smallest plan, or None where nothing can be saved."""
        status, text = command("show", self.folder / f"{precision}.onnx", "--plan", "--batch", self.batch, "--memory", "1B")
        needed = re.search(r"activations need ([0-9.]+) MB at the least", text)
        if not status or not needed:
            return None
        return round(1e6 * float(needed[1])) + 100000


# ---- comparisons ----------------------------------------------------------------------------------------------------


def distance(a, b):
    """Of finite elements; infinite where others are elsewhere."""
    a, b = np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf
    return np.linalg.norm(a[finite] - b[finite])


def norm(a):
    a = np.ravel(a).astype(np.float64)
    return np.linalg.norm(a[np.isfinite(a)])


def check_equal(results, expected, variant):
    for name, value in expected.items():
        same = np.array_equal(results[name], value, equal_nan=value.dtype.kind == "f")
        if not same and name != "grad_norm":
            raise Failure(f"{variant}: {name} differs by {distance(results[name], value) / max(norm(value), 1e-300):.1e}")


def check_close(results, expected, tolerance, variant, truth=None):
    """Whether rounding alone explains what is more than `tolerance`: `truth` rounds less."""
    rounding = False
    floor = norm(expected["grad_norm"]) * RATE
    for name, value in expected.items():
        if value.dtype.kind != "f":
            check_equal({name: results[name]}, {name: value}, variant)
            continue
        error, size = distance(results[name], value), max(norm(value), floor)
        if error <= tolerance * size:
            continue
        if truth is None or not distance(results[name], truth[name]) <= MORE_THAN_ROUNDING * distance(value, truth[name]):
            raise Failure(f"{variant}: {name} differs by {error / max(size, 1e-300):.1e}")
        rounding = True
    return rounding


# ---- one model ------------------------------------------------------------------------------------------------------


def check_precision(problem, precision, truth, counts):
    """All variants of one precision against the plan without lowering, and against each other."""
    plain = problem.fit(precision, "--no-lowering")
    lowered = problem.fit(precision)
    tolerance = TOLERANCE.get(precision, 1e-6)

    def close(results, variant):
        counts["more than the tolerance, by rounding"] += check_close(results, plain, tolerance, variant, truth)

    close(lowered, f"{precision}, lowering")
    names = passes()
    for name in problem.rng.sample(names, problem.rng.randint(0, 2)):
        variant, results = f"{precision}, without {name}", problem.fit(precision, "--lowering", f"-{name}")
        check_equal(results, lowered, variant) if is_exact(name) else close(results, variant)
    if precision == "float64":
        return
    if problem.rng.random() < 0.3:
        close(problem.fit(precision, threads=2), f"{precision}, two threads")
    least = problem.least_memory(precision)
    if least:
        check_equal(problem.fit(precision, "--memory", least), lowered, f"{precision}, {least} bytes")


def check(number, folder, counts):
    problem = Problem(number, folder)
    obstacle = problem.build("float32")
    if obstacle:
        counts["not built: " + re.sub(r"'[^']*'|\b[vwx]\d+|\d+", "_", obstacle)[:110]] += 1
        return
    try:
        exact = problem.fit("float64", "--no-lowering")
    except NotFinite:  # by mathematics: the statistics of an empty batch, say
        counts["stopped: not finite"] += 1
        return
    if not all(np.all(np.isfinite(v)) for v in exact.values() if v.dtype.kind == "f"):
        counts["not finite"] += 1
    check_precision(problem, "float64", None, counts)
    check_precision(problem, "float32", exact, counts)
    if not problem.build("bf16"):
        check_precision(problem, "bf16", problem.fit("float32", "--no-lowering"), counts)
    counts["trained"] += 1
    counts["runs"] += problem.runs


def culprits(number, folder, complaint):
    """Passes without which it does not happen."""
    precision = complaint.split(",")[0]
    if precision not in ("float32", "float64", "bf16"):
        return []
    problem = Problem(number, folder)
    problem.build("float32"), problem.build("bf16")
    found = []
    for name in passes():
        try:
            results, plain = (problem.fit(precision, *o) for o in (["--lowering", f"-{name}"], ["--no-lowering"]))
            check_close(results, plain, TOLERANCE.get(precision, 1e-6), "")
            found.append(name)
        except Failure:
            pass
    return found


def run(first, count, keep=None, seconds=float("inf"), report=print):
    """Tries models; returns complaints by number and what was counted."""
    complaints, counts, end = {}, Counter(), time.monotonic() + seconds
    for number in range(first, first + count):
        if time.monotonic() > end:
            break
        if number > first and (number - first) % PROGRESS == 0:
            report(f"{number - first} models, {len(complaints)} fail")
        folder = Path(tempfile.mkdtemp(prefix="fuzz"))
        try:
            counts["models"] += 1
            check(number, folder, counts)
        except Failure as failure:
            complaints[number] = str(failure)
            report(f"{number}: {failure}")
            if keep:
                text = f"{failure}\n\nnot without: {', '.join(culprits(number, folder, str(failure)))}\n"
                (folder / "wrong.txt").write_text(text)
                report(text.splitlines()[-1])
                shutil.copytree(folder, Path(keep) / str(number), dirs_exist_ok=True)
        finally:
            shutil.rmtree(folder)
    return complaints, counts


def parser_of(description, count, seconds, keep):
    """The command line of a fuzzer of random models: how many are tried, what two options do."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--first", type=int, default=0, help="number of the first model, its seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help=seconds)
    parser.add_argument("--keep", type=Path, help=keep)
    return parser


def try_models(run, arguments):
    """Runs, prints what was found, and ends the process with a status of 1 for a failure."""
    complaints, counts = run(arguments.first, arguments.count, arguments.keep, arguments.seconds,
                             lambda text: print(text, flush=True))  # fmt: skip
    print(f"{len(complaints)} of {counts['models']} random models (from {arguments.first} on) fail")
    for what, times in sorted(counts.items()):
        print(f"{times:8} {what}")
    sys.exit(bool(complaints))


def main():
    try_models(run, parser_of(__doc__, 100, "start no model after these", "folder for what fails").parse_args())


if __name__ == "__main__":
    main()
