"""A call of the system that fails, once, whichever it is: of a training that writes its checkpoints and its metrics, and
of one that goes on with a run. The command then ends with one line, or goes on as if nothing had been; last.onnx is the
old one or the new one, whole; and a further --resume ends with the bytes of a run that nothing disturbed.

tests/command/failing_calls.cc, which the command loads, makes the calls fail. The tests try some of them, and

    python tests/python/runs/test_failing_calls.py

tries each, as an input-output error, as a full disk, and as one that transfers half of what it can.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))
import tool  # noqa: E402

LIBRARY = tool.BUILD / "tests" / "libfailing_calls.so"
FILES = ("last.onnx", "best.onnx", "epochs.jsonl")
SAMPLE = 12  # kinds of calls of a command that the test tries, about
CALLS = {  # those that can fail so; all can with an input-output error
    "ENOSPC": ["open", "fopen", "mkostemp", "write", "fsync", "ftruncate", "close", "rename", "link", "mkdir"],
    "short": ["read", "pread", "write"],
}


class Trial:
    """A small run, in a folder of its own, that is tried again and again."""

    def __init__(self, folder, refers=False):
        """`refers`: the checkpoints refer to frozen weights in the training model."""
        self.folder, self.run = folder, folder / "run"
        rng = np.random.default_rng(0)
        data = tool.save(folder / "data.npz", {"x": rng.standard_normal((40, 4)).astype("f4"),
                                               "labels": rng.integers(0, 3, 40)})  # fmt: skip
        model = with_a_frozen_table(folder / "frozen.onnx") if refers else tool.ROOT / "tests/fixtures/mlp.onnx"
        tool.run("build", model, "-o", folder / "train.onnx", *(("--freeze", "table") if refers else ()))
        self.arguments = ["fit", folder / "train.onnx", "--data", data, "--eval-data", data, "--steps", 10, "--batch-size", 8,
                          "--schedule", "cosine", "--checkpoint-every", 5, "--out", self.run, *(("--checkpoint-base", "refer") if refers else ())]  # fmt: skip
        self.known = set()  # hashes of checkpoints that have been found whole

    def fit(self, *more, number=-1, how="EIO", log=None):
        """The exit status, what was said on standard error, and what was printed."""
        environment = {"LD_PRELOAD": LIBRARY, "FAILING_CALLS_BELOW": self.run, "FAILING_CALLS_NUMBER": number,
                       "FAILING_CALLS_AS": how, "FAILING_CALLS_LOG": log or ""}  # fmt: skip
        done = subprocess.run(
            [tool.COMMAND, *map(str, [*self.arguments, *more])], capture_output=True, text=True, timeout=tool.PATIENCE,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | {key: str(value) for key, value in environment.items()},
        )  # fmt: skip
        return done.returncode, done.stderr, done.stdout

    def contents(self):
        """All that a run must have in the end, without the milliseconds of its steps."""
        rows = (self.run / "metrics.csv").read_text().splitlines()
        return [(self.run / name).read_bytes() for name in FILES] + [[row.split(",")[:5] for row in rows]]

    def start(self, base=None):
        shutil.rmtree(self.run, ignore_errors=True)
        if base:
            shutil.copytree(base, self.run)

    def calls(self, *more, base=None):
        """The calls of a run that nothing disturbs, as "NAME PATH"."""
        self.start(base)
        log = self.folder / "calls"
        log.unlink(missing_ok=True)
        assert self.fit(*more, log=log)[0] == 0
        return [line.split(" ", 1)[1] for line in log.read_text().splitlines()]

    def is_whole(self, checkpoint):
        digest = hashlib.sha256(checkpoint.read_bytes()).digest()
        if digest not in self.known:
            tool.run("show", checkpoint)  # which compares its checksum
            self.known.add(digest)

    def attempt(self, number, how, expected, *more, base=None):
        """"" if all is well although call `number` fails, else what is not."""
        self.start(base)
        status, errors, printed = self.fit(*more, number=number, how=how)
        said = [line for line in errors.splitlines() if not line.startswith("onnx-train: note: ")]
        if status not in (0, 1) or len(said) != status or (how == "short" and status):
            return f"exit status {status}: {errors}"
        if base and status == 0 and "resumed from last.onnx" not in printed:
            return f"began anew: {printed}"
        if (self.run / "last.onnx").exists():
            self.is_whole(self.run / "last.onnx")
        if status == 1:
            again, errors, _ = self.fit("--resume")
            if again != 0:
                return f"cannot be resumed: {errors}"
            left = [path.name for path in self.run.iterdir() if path.name.startswith(".")]
            if left:
                return f"leaves {left}"
        different = [name for name, a, b in zip([*FILES, "metrics.csv"], self.contents(), expected) if a != b]
        return f"exit status {status}, then other bytes in {different}" if different else ""


def interrupted(trial, calls):
    """A folder of a run whose last checkpoint could not be put into place."""
    last = max(i for i, call in enumerate(calls) if call == f"rename {trial.run}/last.onnx")
    trial.start()
    assert trial.fit(number=last)[0] == 1
    base = trial.folder / "interrupted"
    shutil.copytree(trial.run, base)
    return base


def with_a_frozen_table(path):
    """x -> logits by way of a table of 4 KiB."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=shape).astype("f4"), name) for name, shape in (("table", (4, 256)), ("head", (256, 3)))]
    nodes = [helper.make_node("MatMul", ["x", "table"], ["h"]), helper.make_node("MatMul", ["h", "head"], ["logits"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in (("x", 4), ("logits", 3)))
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def try_calls(folder, kinds, most, report=lambda text: None, refers=False):
    """What is not well, and how many calls were tried: of each kind of failure about `most`, or all."""
    trial = Trial(folder, refers)
    calls = trial.calls()
    expected = trial.contents()
    base = interrupted(trial, calls)
    faults, tried = [], 0
    for more, base in (((), None), (("--resume",), base)):
        names = calls if base is None else trial.calls(*more, base=base)
        command = " ".join(["fit", *more])
        report(f"{command}: {len(names)} calls")
        for how in kinds:
            numbers = [i for i, name in enumerate(names) if name.split()[0] in CALLS.get(how, [name.split()[0]])]
            if most:  # one of each kind, and some of these: of those that write the last, of those that read the first
                kinds_of_calls = {re.sub(r"\.\w{6}( \(deleted\))?$", "", names[i]): i for i in numbers[:: -1 if base else 1]}
                numbers = list(kinds_of_calls.values())[:: max(1, len(kinds_of_calls) // most)]
            for number in numbers:
                tried += 1
                fault = trial.attempt(number, how, expected, *more, base=base)
                if fault:
                    faults.append(f"{command}, call {number}, {names[number]}, {how}: {fault}")
                    report(faults[-1])
    return faults, tried


@pytest.mark.parametrize("refers", [False, True], ids=["whole", "refers"])
def test_a_call_that_fails_loses_nothing(tmp_path, refers):
    faults, tried = try_calls(tmp_path, ("EIO",), SAMPLE, refers=refers)
    assert not faults, "\n".join(faults)
    assert tried >= SAMPLE


if __name__ == "__main__":
    faults = 0
    for refers in False, True:
        with tempfile.TemporaryDirectory() as temporary:
            found, tried = try_calls(Path(temporary), ("EIO", "ENOSPC", "short"), 0, lambda text: print(text, flush=True), refers)
        print(f"{tried} calls failed, {len(found)} of them with a fault")
        faults += len(found)
    sys.exit(bool(faults))
