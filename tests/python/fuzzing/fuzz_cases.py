"""What fuzz.py hands to the command: a case is a folder of broken or hostile files, and command lines that meet them."""

import random
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import data_mutations
import hostile_shapes
import mutations
import numpy as np
import onnx
import training_mutations


@dataclass
class Case:
    kind: str  # of mutation
    commands: list  # of arguments
    kept: list = field(default_factory=list)  # files that a command which fails must leave as they are


@dataclass
class Seed:
    """A good model, and 12 samples for it."""

    forward: Path
    arrays: dict
    loss: str = "cross_entropy"
    training: list = field(default_factory=list)  # paths: training models and a checkpoint


class Seeds:
    """What cases are made of, made when a case first asks for it. run(arguments) runs the command, expecting success."""

    def __init__(self, run, root, folder):
        self.run, self.root, self.folder = run, root, folder

    def make(self, kinds):
        """Now, what cases of these kinds are made of."""
        return [self.operators if kind == "operators" else self.models for kind in kinds]

    @cached_property
    def models(self):
        """Good models that are then broken, by name."""
        return make_models(self.run, self.root, self.folder)

    @cached_property
    def operators(self):
        """Models of one node, by operator."""
        return hostile_shapes.seeds()

    def all(self):
        return list(self.models.values())

    def trainable(self):
        return [seed for seed in self.models.values() if seed.training]


def some_arrays(name):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 12)
    return {
        "attention": {"tokens": rng.integers(0, 16, (12, 8)), "labels": rng.integers(0, 16, (12, 8))},
        "branch": {"x": rng.standard_normal((12, 4)).astype("f4"), "c": np.array(True), "labels": labels},
        "recurrent": {"x": rng.standard_normal((12, 4)).astype("f4"), "ids": rng.integers(0, 8, (12, 5)), "labels": labels},
        "digits_cnn": {"image": rng.uniform(0, 1, (12, 1, 8, 8)).astype("f4"), "labels": labels},
        "pictures": {"x": rng.uniform(0, 1, (12, 3, 32, 32)).astype("f4"), "labels": labels},
        "scan": {"x": rng.standard_normal((12, 5, 4)).astype("f4"), "labels": labels},
        "recurrences": {"x": rng.standard_normal((12, 5, 6)).astype("f4"), "lens": rng.integers(0, 6, 12).astype("i4"),
                        "h": rng.standard_normal((12, 1, 4)).astype("f4"), "c": rng.standard_normal((12, 1, 4)).astype("f4"),
                        "labels": labels},
        "shapes": {"x": rng.standard_normal((12, 4, 6)).astype("f4"), "labels": labels},
        "indexing": {"x": rng.standard_normal((12, 6)).astype("f4"), "ids": rng.integers(0, 6, (12, 3)), "labels": labels},
        "blocks": {"x": rng.standard_normal((12, 4, 6)).astype("f4"), "labels": labels},
        "windows": {"x": rng.standard_normal((12, 2, 9, 9)).astype("f4"), "labels": labels},
    }[name]


def make_models(run, root, folder):
    seeds = {}
    for name, model in zip([*mutations.SEEDS, "digits_cnn"], mutations.seed_models(root)):
        seed = Seed(folder / f"{name}.onnx", some_arrays(name))
        seed.loss = "cross_entropy(logits, labels, axis=2)" if name == "attention" else seed.loss
        onnx.save(model, seed.forward)
        np.savez(folder / f"{name}.npz", **seed.arrays)
        seeds[name] = seed
        if name in ("branch", "scan"):
            continue  # control flow has no gradient
        for i, options in enumerate([["adamw"], ["sgd(momentum=0.9)", "--precision", "bf16", "--loss-scale", "dynamic"],
                                     ["adam", "--accumulate", "--clip", "1"]]):  # fmt: skip
            path = folder / f"{name}_{i}.onnx"
            run(["build", seed.forward, "-o", path, "--loss", seed.loss, "--optimizer", *options])
            seed.training.append(path)
        fit = ["fit", seed.training[0], "--data", data_of(seed), "--steps", "2", "--batch-size", "4"]
        run([*fit, "--out", folder / name])
        seed.training.append(folder / name / "last.onnx")
    return seeds


def data_of(seed):
    return seed.forward.with_suffix(".npz")


def sizes(rng):
    return rng.choice(["1B", "1KB", "20KiB", "100KiB", "1MB", "1GiB"])


# ---- forward models


def forward(number, seeds, folder):
    rng = random.Random(number)
    seed = rng.choice(seeds.all())
    path, kind = mutations.write(number, [onnx.load(seed.forward)], folder)
    out = folder / "out.onnx"
    others = [
        ["build", path, "-o", out, "--loss", seed.loss, "--precision", "bf16", "--optimizer", "sgd(momentum=0.9)"],
        ["build", path, "-o", out, "--accumulate", "--init", "kaiming", "--batch", "4"],
        ["grad", path, "--inputs", data_of(seed), "--loss", seed.loss, "-o", folder / "out.npz"],
        ["predict", path, "--inputs", data_of(seed), "-o", folder / "out.npz"],
        ["show", path],
        ["show", path, "--plan", "--arena", "--memory", sizes(rng), "--dump-lowering", folder / "dump"],
        ["show", path, "--plan", "--profile"],
        ["export", path, "-o", out],
        ["opt", path, "-o", folder / "passes.html", "--loss", seed.loss],
        ["flatten", path, "--entry", rng.choice(["predict", "step"]), "-o", out],
    ]
    commands = [["check", path], ["build", path, "-o", out, "--loss", seed.loss], *rng.sample(others, 3)]
    return Case(kind, commands, [path, out])


# ---- training models and checkpoints


def training(number, seeds, folder):
    rng = random.Random(number)
    seed = rng.choice(seeds.trainable())
    path, kind = training_mutations.write(number, onnx.load(rng.choice(seed.training)), folder)
    out, data = folder / "out.onnx", data_of(seed)
    run, broken_run = folder / "run", folder / "broken run"
    broken_run.mkdir()
    shutil.copy(path, broken_run / "last.onnx")
    fit = ["--data", data, "--batch-size", "4", "--steps", "4", "--json"]
    others = [
        ["fit", path, *fit, "--out", run, "--eval-data", data, "--memory", sizes(rng), "--checkpoint-every", "1"],
        ["fit", path, *fit, "--out", run, "--dtype", "float64", "--no-lowering"],
        ["fit", path, *fit, "--out", run, "--check-memory"],
        ["bench", path, "--data", data, "--batch-size", "4", "--seconds", "0.01", "--each-step", "--memory", sizes(rng)],
        ["bench", path, "--data", data, "--entry", rng.choice(["evaluate", "accumulate", "apply", "predict"]), "--each-step",
         "--seconds", "0.01"],
        ["show", path, "--plan", "--arena", "--batch", "4", "--dump-lowering", folder / "dump", "--memory", sizes(rng)],
        ["show", path, "--plan", "--profile", "--batch", "3"],
        ["show", path],
        ["flatten", path, "--entry", rng.choice(["step", "evaluate", "predict", "accumulate", "apply", "initialize"]), "-o", out],
        ["export", path, "-o", out],
        ["eval", path, "--data", data],
        ["predict", path, "--inputs", data, "-o", folder / "out.npz"],
        ["verify", path, "--batch", "2"],
        ["verify", path, "--batch", "2", "--passes", "--entry", rng.choice(["step", "evaluate", "predict"])],
        ["check", path],
        ["build", path, "-o", out, "--loss", seed.loss],
    ]  # fmt: skip
    commands = [
        ["fit", path, *fit, "--out", run, "--seed", "3"],
        ["fit", seed.training[0], *fit, "--out", broken_run, "--resume"],
        *rng.sample(others, 3),
    ]
    return Case(kind, commands, [path, out])


# ---- data


def reading(rng):
    """Options that say how data are read, and which samples are taken."""
    choices = [["--missing", "mean"], ["--missing", "drop"], ["--val-split", "0.3"], ["--class-balance"], ["--drop-last"],
               ["--folds", "3", "--fold", "2"], ["--limit", "5"], ["--skip", "3"], ["--overfit-batches", "1"], ["--block-size", "8"],
               ["--document-end", "0"], ["--packing", "bfd"], ["--packing", "none"], ["--stream"], ["--group-by-length"], ["--columns", "x=x1,x0"], ["--best", "accuracy"]]  # fmt: skip
    return [option for options in rng.sample(choices, rng.choice([0, 1, 2])) for option in options]


def data(number, seeds, folder):
    rng = random.Random(number)
    seed = rng.choice(seeds.trainable())
    path, kind = data_mutations.write(number, seed.arrays, folder)
    model, out = rng.choice(seed.training), folder / "out.npz"
    commands = [
        ["fit", model, "--data", path, "--batch-size", "4", "--steps", "3", "--out", folder / "run", *reading(rng)],
        ["fit", model, "--data", data_of(seed), "--eval-data", path, "--steps", "3", "--epochs", "1", "--out", folder / "run2"],
        rng.choice([["eval", model, "--data", path, "--scale", rng.choice(["0.1", "nan", "-1"])],
                    ["bench", model, "--data", path, "--seconds", "0.01", "--each-step"],
                    ["predict", model, "--inputs", path, "-o", out, "--batch-size", "5"],
                    ["grad", seed.forward, "--inputs", path, "--loss", seed.loss, "-o", out],
                    ["verify", model, "--inputs", path, "--batch", "3"]]),
    ]  # fmt: skip
    files = [f for f in (folder / "data").rglob("*") if f.is_file() and not f.is_symlink()]
    return Case(kind, commands, [*files, out])


# ---- command lines

NUMBERS = ["-1", "0", "1", "4", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "4294967297", "1e30",
           "nan", "inf", "-inf", "1e400", "0x10", "", " ", "1 2", "-0.0", "1e-320", "3.5", "x" * 10000]  # fmt: skip
TEXTS = ["", " ", "x", "*", "**", "[", "@", "@/dev/zero", "@/missing", "a,b,,", "(" * 10000, "é" * 100, "\n", "-", "--", "%s%n"]
EXPRESSIONS = ["", "cross_entropy(", "1e400*mse", "nan*cross_entropy", "cross_entropy + ", "(" * 100000, "mse(nobody, x)",
               "cross_entropy(logits, labels, axis=99)", "0*cross_entropy", "cross_entropy" + " + cross_entropy" * 500,
               "sgd(momentum=nan)", "sgd(lr=-1)", "adamw(beta1=1,beta2=1)", "adam(eps=0)", "sgd(momentum=0.9",
               "adamw(beta1=2)", "sgd(" + "momentum=0.9," * 1000 + ")", "sgd(nesterov=1)", "adamw(lr=1e400)"]  # fmt: skip
STEPS = ["", ",", "resize(8), crop(8)", "resize(0)", "resize(16384, 16384)", "resize(1e9)", "crop(nan)", "normalize(imagenet)",
         "normalize(mean=(), std=())", "normalize(mean=(1, 2), std=(0, 1))", "scale(1/0)", "flip, mixup(1), cutmix(1)",
         "jitter(1, 1, 1, 1), rotate(180), erase(1)", "randaugment(30, 30)", "pad_crop(4096)", "x: ; y:", "hwc, chw, bgr, grey",
         "random_resized_crop(scale=(1e-9, 1e-9))", "(" * 10000, "flip, " * 10000]  # fmt: skip
OPTIONS = {
    "fit": {"--preprocess": STEPS, "--augment": STEPS, "--steps": NUMBERS, "--epochs": NUMBERS, "--batch-size": NUMBERS, "--accumulate": NUMBERS, "--lr": NUMBERS,
            "--warmup": NUMBERS, "--final-lr": NUMBERS, "--step-every": NUMBERS, "--step-factor": NUMBERS,
            "--clip": NUMBERS, "--seed": NUMBERS, "--scale": NUMBERS, "--early-stop": NUMBERS,
            "--checkpoint-every": NUMBERS, "--checkpoint-shards": ["on", "off", "auto", "x"], "--checkpoint-base": ["auto", "refer", "whole", "x"],
            "--base-model": [*TEXTS, "/dev/zero", "/"], "--threads": NUMBERS, "--memory": [*NUMBERS, "1XB", "-1MB", "nanMB", "1e30GB"],
            "--time-limit": [*NUMBERS, "1ms", "nanh", "infh", "0s", "1e-9s", "1e300h"], "--lowering": TEXTS,
            "--schedule": ["linear", "cosine", "step", "one_cycle(pct_start=0)", "wsd(decay=1e-300)", "restarts(T_0=1)",
                           "plateau(factor=0)", "table('/dev/zero')", "(" * 10000, "x"],
            "--dtype": ["float64", "x"],
            "--block-size": NUMBERS, "--document-end": NUMBERS, "--packing": ["none", "bfd", "bfd_split", "wrapped", "x"], "--shuffle-buffer": NUMBERS, "--limit": NUMBERS, "--skip": NUMBERS, "--val-split": NUMBERS,
            "--folds": NUMBERS, "--fold": NUMBERS, "--overfit-batches": NUMBERS, "--best": [*TEXTS, "accuracy"],
            "--tokenizer": [*TEXTS, "/dev/zero", "/"], "--columns": [*TEXTS, "x=x0", "x=x0,x0,,"], "--map": [*TEXTS, "x0=x", "labels=labels"]},
    "bench": {"--batch-size": NUMBERS, "--top": NUMBERS, "--threads": NUMBERS, "--entry": TEXTS, "--memory": NUMBERS,
              "--trace": ["/", "", "/missing/x"]},
    "show": {"--batch": NUMBERS, "--dim": ["", "=", "N", "N=", "=3", "N=-1", "N=9223372036854775807", "N=x", "N=3,M=4"],
             "--entry": TEXTS, "--threads": NUMBERS, "--memory": NUMBERS, "--lowering": TEXTS},
    "build": {"--loss": EXPRESSIONS, "--optimizer": EXPRESSIONS, "--train": TEXTS, "--freeze": TEXTS, "--decay": TEXTS,
              "--clip": NUMBERS, "--batch": [*NUMBERS, "dynamic"], "--seed": NUMBERS,
              "--loss-scale": [*NUMBERS, "dynamic"], "--init": ["kaiming", "gpt2", "x"]},
    "eval": {"--batch-size": NUMBERS, "--scale": NUMBERS, "--threads": NUMBERS},
    "predict": {"--batch-size": NUMBERS, "--scale": NUMBERS},
    "verify": {"--batch": NUMBERS, "--tolerance": NUMBERS, "--step": NUMBERS, "--seed": NUMBERS},
}  # fmt: skip


def places(folder):
    """Where nothing can be written."""
    (folder / "file").write_text("a file")
    (folder / "taken").mkdir()
    (folder / "taken" / "last.onnx").mkdir(parents=True)
    (folder / "taken.onnx").mkdir()
    return [folder / "file" / "x", folder / "taken", folder / "taken.onnx", "/proc/x", "/proc/self/x/y", folder / ("x" * 300), "",
            folder / "missing" / "x.onnx"]  # fmt: skip


def command_line(number, seeds, folder):
    rng = random.Random(number)
    seed = rng.choice(seeds.trainable())
    command = rng.choice(["fit", "fit", "fit", "bench", "show", "build", "build", "eval", "predict", "verify"])
    out = folder / "out.onnx"
    model = seed.forward if command == "build" else rng.choice(seed.training)
    required = {
        "fit": ["--data", data_of(seed), "--out", folder / "run"],
        "bench": ["--data", data_of(seed), "--seconds", "0.01"],
        "show": [rng.choice(["--plan", "--arena"])],
        "build": ["-o", out],
        "eval": ["--data", data_of(seed)],
        "predict": ["--inputs", data_of(seed), "-o", folder / "out.npz"],
        "verify": [],
    }[command]
    if rng.random() < 0.2:
        required = [rng.choice(places(folder)) if str(a).startswith(str(folder)) else a for a in required]
    chosen = rng.sample(list(OPTIONS[command]), min(len(OPTIONS[command]), rng.choice([1, 1, 2, 3])))
    if command == "fit" and "--steps" in chosen:  # any number of steps may be asked for, and takes its time
        chosen = [name for name in chosen if name != "--time-limit"]
        required += ["--time-limit", "1s"]
    elif command == "fit" and ("--time-limit" in chosen or rng.random() < 0.9):
        required += ["--steps", "2"]
    options = [f"{name}={rng.choice(OPTIONS[command][name])}" for name in chosen]
    return Case(command, [[command, model, *required, *options]], [out])


# ---- little room


def full_disk(number, seeds, folder):
    """Files of at most some bytes, as with ulimit -f; fuzz.py sets the limit that it finds in the folder's name."""
    rng = random.Random(number)
    seed = rng.choice(seeds.trainable())
    out, run = folder / "out.onnx", folder / "run"
    out.write_text("here before")
    training, samples = rng.choice(seed.training), data_of(seed)
    commands = [
        ["build", seed.forward, "-o", out, "--loss", seed.loss],
        ["fit", training, "--data", samples, "--batch-size", "4", "--steps", "3", "--checkpoint-every", "1", "--out", run],
        ["predict", training, "--inputs", samples, "-o", out],
        ["export", training, "-o", out],
        ["flatten", training, "--entry", "predict", "-o", out],
        ["show", training, "--plan", "--dump-lowering", folder / "dump"],
    ]
    return Case("full_disk", commands, [out])


# ---- operators


def operators(number, seeds, folder):
    """A model of one node that no exporter writes."""
    rng = random.Random(number)
    path, samples, kind = hostile_shapes.write(number // len(KINDS), seeds.operators, folder)
    out = folder / "out.onnx"
    others = [
        ["check", path],
        ["predict", path, "--inputs", samples, "-o", folder / "out.npz"],
        ["show", path, "--plan", "--batch", rng.choice(["1", "2", "3"]), "--dim", "batch=2"],
        ["build", path, "-o", out, "--loss", "mse"],
    ]
    commands = [["show", path, "--plan", "--profile", "--check-memory", "--batch", "2"], rng.choice(others)]
    return Case(kind, commands, [path, out])


KINDS = {"forward": forward, "operators": operators, "training": training, "data": data, "command_line": command_line, "full_disk": full_disk}
