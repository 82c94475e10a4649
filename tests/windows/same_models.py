"""Compares the command of build-windows, under wine, with that of build: what it says, its status and the bytes that it
writes, on the repository's models, on networks that PyTorch exports, and on the forward models of the operators' cases, each
with its first float input as a weight. scripts/windows --test runs it.

Usage: python tests/windows/same_models.py [FOLDER]"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "models"), str(ROOT / "tests" / "python")]

import networks  # noqa: E402
import reference  # noqa: E402
from export import export  # noqa: E402

LINUX = [str(ROOT / "build" / "onnx-train")]
WINDOWS = ["wine", str(ROOT / "build-windows" / "onnx-train.exe")]
ENVIRONMENT = {**os.environ, "COLUMNS": "120", "WINEDEBUG": "-all", "OMP_NUM_THREADS": "1"}
# In turn: what a training model may have beside gradients.
BUILDS = [
    [],
    ["--optimizer", "adamw(weight_decay=0.05)", "--init", "kaiming", "--seed", "7"],
    ["--optimizer", "sgd(momentum=0.9)", "--accumulate", "--clip", "1"],
    ["--optimizer", "lamb", "--precision", "bf16"],
    ["--optimizer", "adafactor", "--ema", "0.99"],
]


def export_networks(folder):
    """(name, path, loss) of each network, by both of PyTorch's exporters where they take it."""
    for name, make in networks.EXAMPLES.items():
        for double in (False, True):
            example = reference.to_double(make()) if double else make()
            path = folder / f"{name}{'_double' if double else ''}.onnx"
            exporter = "torchscript" if double and not name.startswith("gpt2") else "dynamo"
            export(example.module, example.inputs, path, exporter, example.optimize)
            yield path, example.loss


def case_models(folder):
    """The forward models of the operators' cases, with a weight."""
    environment = {**os.environ, "OP_CASES_FOLDER": str(folder)}
    subprocess.run([ROOT / "build" / "tests" / "unit_tests", "--gtest_filter=All/OpCases*", "--gtest_brief=1"],
                   env=environment, check=True)  # fmt: skip
    for path in sorted(folder.glob("*_forward.onnx")):
        model = onnx.load(path)
        values = {t.name: t for t in onnx.load(path.with_suffix(".data.onnx")).graph.initializer}
        for value in model.graph.input:
            if value.type.tensor_type.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
                model.graph.initializer.append(values[value.name])
                model.graph.input.remove(value)
                onnx.save(model, path)
                yield path
                break


def run(command, folder, arguments):
    done = subprocess.run([*command, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True)
    return done.returncode, done.stdout, done.stderr


class Comparison:
    """Runs both commands, each in a folder of its own, and counts."""

    def __init__(self, folder):
        self.folders = {"linux": folder / "linux", "windows": folder / "windows"}
        for own in self.folders.values():
            own.mkdir(parents=True)
        self.same, self.refused, self.differences = 0, 0, []

    def compare(self, job):
        name, arguments, written = job
        linux = run(LINUX, self.folders["linux"], arguments)
        windows = run(WINDOWS, self.folders["windows"], arguments)
        files = [[own / file for own in self.folders.values()] for file in written]
        bytes_of = [[path.read_bytes() if path.exists() else None for path in pair] for pair in files]
        what = [part for part, a, b in zip(("status", "output", "errors"), linux, windows) if a != b]
        what += [file for file, (a, b) in zip(written, bytes_of) if a != b]
        for path in (path for pair in files for path in pair if not what):
            path.unlink(missing_ok=True)
        return name, what, linux, windows

    def run(self, title, jobs):
        same = refused = 0
        with ThreadPoolExecutor(2) as pool:
            for name, what, linux, windows in pool.map(self.compare, jobs):
                if what:
                    self.differences.append(name)
                    print(f"{name}: not the same: {', '.join(what)}\n  {linux}\n  {windows}", flush=True)
                elif linux[0] == 0:
                    same += 1
                else:
                    refused += 1
        print(f"{title}: {same} the same, {refused} refused with the same message", flush=True)
        return same


def main(folder):
    models, cases = folder / "models", folder / "cases"
    models.mkdir(parents=True)
    cases.mkdir()
    comparison = Comparison(folder)
    subprocess.run([*WINDOWS, "--version"], env=ENVIRONMENT, check=True)  # makes wine's folder, which two at once do not

    forward = [(path, None) for path in sorted((ROOT / "models").glob("*.onnx"))]
    forward += [(ROOT / "models" / "losses" / "yolo_64.onnx", None)] + list(export_networks(models))
    jobs = []
    for number, (path, loss) in enumerate(forward):
        for more in (BUILDS[0], BUILDS[1 + number % (len(BUILDS) - 1)]):
            out = f"{path.stem}{len(jobs)}.onnx"
            loss_words = ["--loss", loss] if loss else []
            dtype = ["--dtype", "float64"] if path.stem.endswith("_double") and "bf16" not in more else []
            jobs.append((f"build {path.name} {' '.join(more)}",
                         ["build", str(path), "-o", out, "--force", *loss_words, *dtype, *more], [out]))  # fmt: skip
    built = comparison.run(f"build of {len(forward)} models, twice each", jobs)

    digits = str(ROOT / "models" / "digits_cnn.onnx")
    for own, command in zip(comparison.folders.values(), (LINUX, WINDOWS)):
        run(command, own, ["build", digits, "-o", "train.onnx", "--force"])
    comparison.run("show, flatten, export, explain", [
        ("show", ["show", digits], []),
        ("show train", ["show", "train.onnx", "--entry", "step"], []),
        ("flatten", ["flatten", "train.onnx", "-o", "step.onnx"], ["step.onnx"]),
        ("flatten evaluate", ["flatten", "train.onnx", "--entry", "evaluate", "-o", "e.onnx"], ["e.onnx"]),
        ("export", ["export", "train.onnx", "-o", "model.onnx"], ["model.onnx"]),
        ("export npz", ["export", "train.onnx", "-o", "weights.npz"], ["weights.npz"]),
        ("export int8", ["export", "train.onnx", "-o", "int8.onnx", "--dtype", "int8"], ["int8.onnx"]),
        ("export safetensors", ["export", "train.onnx", "-o", "w.safetensors"], ["w.safetensors"]),
        ("explain", ["explain", "OT1001"], []),
        ("no file", ["build", "absent.onnx", "-o", "x.onnx"], ["x.onnx"]),
        ("a folder", ["show", "."], []),
        ("no model", ["show", str(ROOT / "README.md")], []),
        ("no folder", ["build", digits, "-o", "absent/x.onnx", "--force"], []),
        ("passes", ["build", digits, "-o", "p.onnx", "--force", "--verify-passes"], ["p.onnx"]),
    ])  # fmt: skip
    status, said, errors = run(WINDOWS, folder, ["check", digits])
    if status != 0 or b"It can be trained." not in said:
        comparison.differences.append("check")
        print("check:", status, said, errors)
    for name in ("fit", "eval", "predict", "sample", "grad", "bench", "verify", "compile", "scale", "opt"):
        status, said, errors = run(WINDOWS, folder, [name, "model.onnx"])
        if status != 2 or said or errors.count(b"\n") != 1 or b"makes models and runs none" not in errors:
            comparison.differences.append(name)
            print(f"{name}:", status, said, errors)

    made = list(case_models(cases))
    jobs = [(path.stem, ["build", str(path), "-o", path.name, "--force", "--loss", "mse"], [path.name])
            for path in made]  # fmt: skip
    of_cases = comparison.run(f"build of {len(made)} operators' cases", jobs)
    print(f"{len(comparison.differences)} differences")
    return 0 if not comparison.differences and built >= 30 and of_cases >= 100 else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1]).resolve()))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
