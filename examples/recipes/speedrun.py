"""What docs/recipes/speedrun.md starts from, pictures/ and speed.onnx; and, as a program, all of its commands on CIFAR-10:

    python examples/recipes/speedrun.py cifar-10-batches-bin
    python examples/recipes/speedrun.py new_folder --made --widths 16,32,32 --epochs 6 --batch-size 50
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import same
import speed_networks
import torch

SIZE, CLASSES = 32, 10


def shape(label, u, v):
    """Where a shape of class `label` is, by the coordinates from its middle, to the right and down, relative to its
    size."""
    distance, stem = np.hypot(u, v), u < -0.4
    return [
        v > u,
        v < -u,
        stem | (v > 0.4),
        stem | (v < -0.4),
        (u < 0) & (distance < 0.95),
        (distance < 1) & (distance > 0.6) & ((u < 0.3) | (abs(v) > 0.5)),
        stem | (abs(v) < 0.18) | (abs(v) > 0.6),
        abs(u + v) < 0.4,
        stem | (abs(v) < 0.25),
        stem | ((v > -0.2) & ((v < 0.2) | (u > 0.4))),
    ][label] & (np.maximum(abs(u), abs(v)) < 0.95)


def made(count, seed, mirrored):
    """(pixels uint8[count,3,32,32], labels): a shape somewhere on a cloudy ground, lighter or darker than it in each
    colour, so that no colour and no pixel says which shape it is, and no linear model can. `mirrored`: the part of the
    shapes that is mirrored, and of the same class; another turned upside down may be one of another class."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE]
    labels = np.arange(count) % CLASSES
    pixels = np.empty((count, 3, SIZE, SIZE), np.uint8)
    for i, label in enumerate(labels):
        (row, column), size = random.uniform(12, 20, 2), random.uniform(7, 10)
        side = -1 if random.random() < mirrored else 1
        inside = shape(label, side * (x - column) / size, (y - row) / size)
        contrast = random.uniform(30, 70, (3, 1, 1)) * random.choice([-1, 1], (3, 1, 1))
        clouds = np.kron(random.normal(0, 18, (3, 8, 8)), np.ones((4, 4)))
        noise = random.normal(0, 4, (3, SIZE, SIZE))
        pixels[i] = np.clip(random.uniform(90, 166, (3, 1, 1)) + contrast * inside + clouds + noise, 0, 255)
    return pixels, labels.astype(np.uint8)


def write_made(folder, training=1000, test=500):
    """A folder as CIFAR-10's binary version is one. In the training's pictures all shapes look to one side, in the
    test's half of them look to the other: a network must see mirror images to know these."""
    Path(folder).mkdir(exist_ok=True)
    for name, count, mirrored in ("data_batch_1.bin", training, 0), ("test_batch.bin", test, 0.5):
        pixels, labels = made(count, len(name), mirrored)
        records = np.concatenate([labels[:, None], pixels.reshape(count, -1)], 1)
        Path(folder, name).write_bytes(records.tobytes())


def make(folder="pictures", widths=(16, 32, 32)):
    """What the page starts from: the pictures, and speed.onnx."""
    write_made(folder)
    return speed_networks.make(folder, "speed.onnx", widths=widths)


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for filters as matrices, in their own type: PyTorch's takes no filters, and rounds to bfloat16."""

    def __init__(self, params, lr, momentum, weight_decay):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                gradient, mu = weight.grad.flatten(1), group["momentum"]
                buffer = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(gradient))
                buffer.lerp_(gradient, 1 - mu)
                x = gradient.lerp(buffer, mu)
                rows, columns = x.shape
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                update = self.orthogonal(x.T).T if rows > columns else self.orthogonal(x)
                weight.sub_(update.reshape(weight.shape), alpha=group["lr"] * max(1, rows / columns) ** 0.5)

    @staticmethod
    def orthogonal(x, steps=5, epsilon=1e-7):
        x = x / x.norm().clamp(min=epsilon)
        for _ in range(steps):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x


# ---- The run

BUILD = ["--loss", "cross_entropy(label_smoothing=0.2)", "--freeze", "whiten.weight,*.norm?.weight", "--ema", "0.8"]
OPTIMIZER = "muon(lr=0.1, momentum=0.6, weight_decay=0.1, adamw_lr=0.03)"
HEAD = "head.weight: use_muon=false, lr=2x"
FIT = ["--preprocess", "normalize(cifar10)", "--augment", "flip, pad_crop(2)", "--schedule", "linear", "--best",
       "accuracy", "--tta", "flip"]  # fmt: skip


def command():
    """The command: on the path, or built in this checkout."""
    here = os.environ["PATH"] + os.pathsep + str(Path(__file__).resolve().parents[2] / "build")
    found = shutil.which("onnx-train", path=here)
    return found or sys.exit("there is no onnx-train, on the path or in build/")


def run(*arguments):
    print("$", shlex.join(["onnx-train", *map(str, arguments)]), flush=True)
    subprocess.run([command(), *map(str, arguments)], check=True)


def main():
    parser = argparse.ArgumentParser(description="Trains until 94% of the test pictures are right, and says how long.")
    parser.add_argument("folder", help="with CIFAR-10's binary files, data_batch_1.bin and others")
    parser.add_argument("--made", action="store_true", help="first write made pictures to the folder, which is new")
    parser.add_argument("--network", choices=speed_networks.NETWORKS, default="airbench94")
    parser.add_argument("--widths", default="64,256,256", help="of the three groups [64,256,256]")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--target", type=float, default=0.94, help="the accuracy to stop at [0.94]")
    parser.add_argument("--precision", default="auto", help="as build takes it [auto]")
    parser.add_argument("--out", default="speedrun", help="the folder of the model and its run [speedrun]")
    a = parser.parse_args()

    if a.made and Path(a.folder).exists():
        sys.exit(f"{a.folder} exists; --made takes the name of a new folder")
    if a.made:
        write_made(a.folder)
    if not Path(a.folder, "data_batch_1.bin").exists():
        sys.exit(f"{a.folder} has no data_batch_1.bin: give the folder of CIFAR-10's binary version, or add --made")
    out = Path(a.out)
    out.mkdir(exist_ok=True)
    forward, training = out / "speed.onnx", out / "train.onnx"
    speed_networks.make(a.folder, forward, a.network, widths=tuple(map(int, a.widths.split(","))))
    run("build", forward, "-o", training, "--optimizer", OPTIMIZER, "--group", HEAD, "--precision", a.precision, *BUILD)
    files = Path(a.folder).glob("data_batch_*.bin")
    samples = sum(file.stat().st_size for file in files) // (1 + 3 * SIZE * SIZE)
    warmup = max(1, a.epochs * samples // a.batch_size // 5)  # a fifth of all steps
    start = time.monotonic()
    run("fit", training, "--data", a.folder, "--eval-data", a.folder, "--epochs", a.epochs, "--batch-size",
        a.batch_size, "--warmup", warmup, "--stop-at", f"accuracy>={a.target}", "--out", out / "run", "--overwrite",
        *FIT)  # fmt: skip
    print(f"fit took {time.monotonic() - start:.1f} s", flush=True)
    run("eval", out / "run" / "best.onnx", "--data", a.folder, "--tta", "flip, shift(1)")


if __name__ == "__main__":
    main()
