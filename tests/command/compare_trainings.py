"""Trains a CNN and a GPT with two builds of the command, and compares them: the models that `build` writes must be equal
to the byte, the losses of 20 steps to 1e-5 of the loss.

    python tests/command/compare_trainings.py build/onnx-train -- qemu-aarch64-static -L ROOT build-arm64/onnx-train
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"
STEPS = 20
MOST = 1e-5
# A step of AdamW is of full size where a gradient is almost zero, so that rounding grows: the rates are small.
TRAININGS = {
    "digits_cnn": ["--loss cross_entropy --optimizer adamw", "digits_train.npz", "--batch-size 32 --lr 0.0003"],
    "gpt": ["--clip 1 --optimizer adamw(weight_decay=0.1)", "devils_dictionary.txt", "--batch-size 1 --lr 0.0001 --warmup 20"],
}


def losses(command, name, folder):
    build, data, fit = TRAININGS[name]
    folder.mkdir()
    model, run = folder / "train.onnx", folder / "run"
    for arguments in (["build", MODELS / f"{name}.onnx", "-o", model, *build.split()],
                      ["fit", model, "--data", MODELS / "data" / data, "--steps", STEPS, "--step-every", 1, "--out", run, *fit.split()]):  # fmt: skip
        subprocess.run([*command, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(run / "metrics.csv") as file:
        return model.read_bytes(), [float(row["loss"]) for row in csv.DictReader(file)]


def main():
    at = sys.argv.index("--")
    commands, failures = (sys.argv[1:at], sys.argv[at + 1 :]), []
    for name in TRAININGS:
        with tempfile.TemporaryDirectory() as folder:
            (model, here), (other_model, there) = (losses(c, name, Path(folder) / str(i)) for i, c in enumerate(commands))
        assert len(here) == len(there) == STEPS, (here, there)
        worst = max(abs(a - b) / abs(a) for a, b in zip(here, there))
        same = "the same" if model == other_model else "another"
        print(f"{name}: {same} training model; {STEPS} steps, losses {here[0]:.6f} to {here[-1]:.6f}, apart by {worst:.1e} at most")
        if not worst <= MOST:
            failures.append(f"{name}: losses are apart by {worst:.1e}: {here} and {there}")
        if model != other_model:
            failures.append(f"{name}: `build` writes another training model")
    print("\n".join(failures))
    return 1 if failures else 0


sys.exit(main())
