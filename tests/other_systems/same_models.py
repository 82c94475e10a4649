"""Models on both systems (same.py): the repository's, networks that PyTorch exports, and the forward models of the operators'
cases, each with its first float input as a weight. scripts/windows --test and scripts/test --arm command run it, for each fourth
case of an operator.

Usage: python tests/other_systems/same_models.py [EVERY] [-- COMMAND...]"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import onnx

from same import IS_WINE, ROOT, Case, Comparison

sys.path[:0] = [str(ROOT / "models"), str(ROOT / "tests" / "python")]

import networks  # noqa: E402
import reference  # noqa: E402
from export import export  # noqa: E402

# In turn: what a training model may have beside gradients.
BUILDS = [
    [],
    ["--optimizer", "adamw(weight_decay=0.05)", "--init", "kaiming", "--seed", "7"],
    ["--optimizer", "sgd(momentum=0.9)", "--accumulate", "--clip", "1"],
    ["--optimizer", "lamb", "--precision", "bf16"],
    ["--optimizer", "adafactor", "--ema", "0.99"],
    ["--optimizer", "lion", "--clip-value", "0.5", "--precision", "fp16"],
    ["--optimizer", "muon", "--init", "xavier", "--seed", "3"],
    ["--optimizer", "adamw8bit(min_8bit_size=64)", "--lora", "rank=2"],
    ["--optimizer", "schedule_free", "--qat", "int8"],
    ["--optimizer", "adan", "--precision", "fp8", "--swa", "10"],
]


def export_networks(folder):
    """(path, loss) of each network, by both of PyTorch's exporters where they take it, every third with external data.
    Those that are there already, and no older than their sources, stay."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = max((ROOT / "models" / name).stat().st_mtime for name in ("networks.py", "export.py"))
    for number, (name, make) in enumerate(networks.EXAMPLES.items()):
        for double in (False, True):
            example = reference.to_double(make()) if double else make()
            path = folder / f"{name}{'_double' if double else ''}.onnx"
            if path.exists() and path.stat().st_mtime > changed:
                yield path, example.loss
                continue
            exporter = "torchscript" if double and not name.startswith("gpt2") else "dynamo"
            export(example.module, example.inputs, path, exporter, example.optimize)
            if number % 3 == 0:
                onnx.save(onnx.load(path), path, save_as_external_data=True, location=f"{path.stem}.weights")
            yield path, example.loss


def models_cases():
    forward = [(path, None) for path in sorted((ROOT / "models").glob("*.onnx"))]
    forward += [(ROOT / "models" / "losses" / "yolo_64.onnx", None), *export_networks(ROOT / "build" / "other_systems")]
    for number, (path, loss) in enumerate(forward):
        for more in (BUILDS[0], BUILDS[1 + number % (len(BUILDS) - 1)]):
            loss_words = ["--loss", loss] if loss else []
            dtype = ["--dtype", "float64"] if path.stem.endswith("_double") and "--precision" not in more else []
            yield Case(f"{path.name} {' '.join(more)}", [
                ["check", path, *loss_words],
                ["build", path, "-o", "train.onnx", *loss_words, *dtype, *more],
                ["show", "train.onnx", "--entry", "step"],
                ["flatten", "train.onnx", "-o", "step.onnx"],
                ["export", "train.onnx", "-o", "model.onnx"],
            ])  # fmt: skip


def case_models(folder, every):
    """The forward models of the operators' cases, with a weight: of each operator the first and each so many after it."""
    environment = {**os.environ, "OP_CASES_FOLDER": str(folder)}
    subprocess.run([ROOT / "build" / "tests" / "unit_tests", "--gtest_filter=All/OpCases*", "--gtest_brief=1"],
                   env=environment, check=True)  # fmt: skip
    seen = Counter()
    for path in sorted(folder.glob("*_forward.onnx")):
        operator = path.name.rsplit("_", 2)[0]
        seen[operator] += 1
        if (seen[operator] - 1) % every != 0:
            continue
        model = onnx.load(path)
        values = {t.name: t for t in onnx.load(path.with_suffix(".data.onnx")).graph.initializer}
        for value in model.graph.input:
            if value.type.tensor_type.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
                model.graph.initializer.append(values[value.name])
                model.graph.input.remove(value)
                onnx.save(model, path)
                yield path
                break


def main(folder, every):
    cases = folder / "cases"
    cases.mkdir(parents=True)
    comparison = Comparison(folder)
    built = comparison.run("models", list(models_cases()))
    digits = ROOT / "models" / "digits_cnn.onnx"
    exports = [["weights.npz"], ["int8.onnx", "--dtype", "int8"], ["w.safetensors"], ["half.onnx", "--dtype", "float16"]]
    trained = sorted(path for path in (ROOT / "tests" / "fixtures" / "onnxruntime").iterdir() if path.is_dir())
    comparison.run("other commands", [
        *(Case(f"import-ort {path.name}", [["import-ort", path, "-o", "train.onnx"]]) for path in trained),
        Case("export", [["build", digits, "-o", "train.onnx"], *(["export", "train.onnx", "-o", *e] for e in exports)]),
        Case("evaluate", [["build", digits, "-o", "train.onnx"],
                          ["flatten", "train.onnx", "--entry", "evaluate", "-o", "evaluate.onnx"]]),
        Case("passes", [["build", digits, "-o", "train.onnx", "--verify-passes"]]),
        Case("explain", [["explain"], ["explain", "OT1001"], ["explain", "OT9999"]]),
        Case("help", [[name, "--help"] for name in ("check", "build", "show", "flatten", "export", "import-ort")]),
    ])  # fmt: skip
    if IS_WINE:
        comparison.run_refused(["fit", "eval", "predict", "sample", "grad", "bench", "verify", "compile", "scale", "opt"])
    made = list(case_models(cases, every))
    of_cases = comparison.run("operators' cases", [Case(path.stem, [["build", path, "-o", "train.onnx", "--loss", "mse"]])
                                                   for path in made])  # fmt: skip
    return comparison.summary() or (0 if built >= 60 and of_cases >= 100 else 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary), int(sys.argv[1]) if sys.argv[1:] and sys.argv[1] != "--" else 4))
