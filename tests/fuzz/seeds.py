"""Inputs from which libFuzzer starts, a folder a harness: what the repository's tests, models and mutations hold, small
files alone. Nothing of it is committed but corpus/, which the unit tests read."""

import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/python/fuzzing"))
import data_mutations  # noqa: E402
import fuzz_cases  # noqa: E402
import mutations  # noqa: E402
import numpy as np  # noqa: E402
import training_mutations  # noqa: E402

ROUNDS = 60  # of each writer of broken data
ARRAYS = {
    "x": np.arange(6, dtype="f4").reshape(3, 2),
    "labels": np.array([0, 1, 1]),
}
OPTION_TEXTS = """
0.7*cross_entropy(logits, labels, label_smoothing=0.1) + 0.3*mse('/aux/out', target)
cross_entropy(axis=2, weight=[1, 2, 0.5]) - 2*"out ""1\"""
adamw(betas=(0.9, 0.95), weight_decay=1e-2)
sgd(lr=0.1, momentum=0.9, nesterov=true)
lora(rank=4, alpha=8, rslora, targets=q,v)
one_cycle(pct_start=0.3, div_factor=25)
restarts(T_0=10, T_mult=2)
wsd(decay=0.2, shape=sqrt)
table(rates.csv)
accuracy>=0.95
top_k(k=5)
flip, vflip, shift(1)
resize(256), crop(224, 224), scale(1/255), normalize(mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2])
random_resized_crop(scale=[0.1, 1]), mixup(0.2), erase(0.5)
0,255,65535
["cat", "dog"]
1.5GiB
90m
"""


class Seeds:
    def __init__(self, folder, command):
        self.folder, self.command = Path(folder), command
        self.limits = {}  # bytes of an input, by harness

    def add(self, harness, data, prefix=b""):
        folder = self.folder / harness
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(list(folder.iterdir())):04}").write_bytes(prefix + data)

    def add_files(self, harness, paths):
        for path in paths:
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 65536:
                self.add(harness, path.read_bytes())

    def run(self, arguments):
        subprocess.run([self.command, *map(str, arguments)], check=True, capture_output=True)


def add_models(seeds, folder):
    models = [model for model in mutations.seed_models(ROOT) if model.ByteSize() < 1 << 15]
    for model in [*models, onnx.load(ROOT / "tests/fixtures/mlp.onnx")]:
        seeds.add("model", model.SerializeToString())
    for number in range(ROUNDS):
        path, _ = mutations.write(number, models, folder / str(number))
        seeds.add_files("model", [path])
    for location in ("w", "./sub/w", "v", "empty", "link", "../w", "/dev/zero", "sub"):
        for offset, length in (("0", "16"), ("4", "8"), ("18446744073709551615", "16")):
            model = onnx.parser.parse_model(
                '<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> '
                "{ y = Add(x, w) }")  # fmt: skip
            tensor = model.graph.initializer[0]
            tensor.ClearField("float_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=value)
            seeds.add("external_data", model.SerializeToString())


def add_training_models(seeds, folder):
    forward, train, run = folder / "mlp.onnx", folder / "train.onnx", folder / "run"
    shutil.copy(ROOT / "tests/fixtures/mlp.onnx", forward)
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.standard_normal((12, 4)).astype("f4"), labels=rng.integers(0, 3, 12))
    paths = []
    for optimizer in ("sgd", "adamw"):
        for more in ([], ["--accumulate"]):
            paths.append(folder / f"{optimizer}{len(more)}.onnx")
            seeds.run(["build", forward, "-o", paths[-1], "--optimizer", optimizer, *more])
    seeds.run(["build", forward, "-o", train])
    seeds.run(["fit", train, "--data", folder / "data.npz", "--eval-data", folder / "data.npz", "--steps", "3",
               "--batch-size", "4", "--out", run])  # fmt: skip
    paths.append(run / "last.onnx")
    seeds.add_files("training_model", paths)
    for number in range(ROUNDS):
        path, _ = training_mutations.write(number, onnx.load(paths[number % len(paths)]), folder / str(number))
        seeds.add_files("training_model", [path])
    seeds.add_files("options", [run / "options.json"])
    seeds.add_files("run_files", [run / name for name in ("metrics.csv", "metrics.jsonl", "epochs.jsonl", "evaluation.json",
                                                          "options.json")])  # fmt: skip


def add_texts(seeds):
    seeds.add_files("text_graph", sorted((ROOT / "tests/golden").glob("*.txt")))
    for text in mutations.SEEDS.values():
        seeds.add("text_graph", text.strip().encode())
    for line in OPTION_TEXTS.strip().splitlines():
        seeds.add("option_texts", line.encode())
    values = {"lr": 1e-3, "optimizer": "adamw(betas=(0.9, 0.95))", "batch-size": 8, "accumulate": True, "train": ["a", "b*"],
              "schedule": "cosine", "time-limit": "15m", "derived": {"checked data": ["1"]}, "memory": "2GiB"}  # fmt: skip
    seeds.add("options", json.dumps(values).encode())
    seeds.add("options", b"lr: 1e-3\noptimizer: adamw\ntrain: [a, 'b*']\naccumulate: true\nderived: {a: {b: c}}\n# end\n")
    seeds.add("options", b"lr: &x 1\nseed: *x\nschedule: |\n  cosine\n? - a\n: b\n--- !!map {a: b}\n...\n")
    for harness in "tokenizer", "chat_template":
        seeds.add_files(harness, sorted((ROOT / "tests/fuzz/corpus" / harness).iterdir()))
    boxes = {"images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8}],
             "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 2.5, 3], "iscrowd": 0, "area": 7.5}],
             "categories": [{"id": 3, "name": "cat"}]}  # fmt: skip
    seeds.add("coco", json.dumps(boxes).encode())


def add_runs_of_onnxruntime(seeds):
    seeds.add_files("onnxruntime_training", sorted((ROOT / "tests/fixtures/onnxruntime").rglob("*")))


def add_data(seeds, folder):
    writers = {"npz": data_mutations.write_npz, "csv": data_mutations.write_csv, "libsvm": data_mutations.write_libsvm, "idx": data_mutations.write_idx,
               "safetensors": data_mutations.write_safetensors, "tokens": data_mutations.write_tokens}  # fmt: skip
    for harness, write in writers.items():
        for number in range(ROUNDS):
            own = folder / f"{harness}{number}"
            own.mkdir()
            write(ARRAYS, own, random.Random(number))
            seeds.add_files(harness, sorted(own.rglob("*")))
    seeds.add_files("npz", [ROOT / "tests/fixtures/stored.npz", ROOT / "tests/fixtures/compressed.npz"])
    seeds.add("csv", b'path,class\na.png,cat\n"b,""c.png",dog\n')
    seeds.add("csv", b"path,cat,dog\na.png,0,1\nb.png,1,0\n")
    seeds.add("csv", b"text,label\nhello,good\n\"two\nlines\",bad\n")
    for number in range(ROUNDS):
        rng = random.Random(number)
        seeds.add("pictures", data_mutations.picture(rng))
        seeds.add("npy", data_mutations.with_header(data_mutations.npy(ARRAYS["x"]), rng.choice(data_mutations.HEADERS)))
    for dtype in ("f2", "f4", "f8", "i1", "i8", "u2", "bool"):
        seeds.add("npy", data_mutations.npy(np.asfortranarray(ARRAYS["x"].astype(dtype))))
    seeds.add("npy", data_mutations.npy(np.float32(3)))


def add_queries(seeds):
    validate, set_value, get, add, check = 0, 1, 3, 4, 5  # runtime/distribution/store.h

    def text(value):
        return struct.pack("<Q", len(value)) + value

    def query(kind, *parts):
        return bytes([kind]) + b"".join(parts)

    hello = query(validate, struct.pack("<I", 0x3C85F7CE))
    one = query(set_value, text(b"rank/1"), text(b"2 10.0.0.1"))
    count = query(add, text(b"count"), struct.pack("<q", -1))
    seeds.add("store_queries", hello + one + query(get, text(b"rank/1")) + query(get, text(b"rank/2")))
    seeds.add("store_queries", hello + count + count + query(get, text(b"count")))
    seeds.add("store_queries", one + query(check, struct.pack("<Q", 2), text(b"rank/1"), text(b"rank/0")))
    seeds.add("store_queries", query(check, struct.pack("<Q", 2**62), text(b"rank/1")))
    seeds.add("store_queries", query(get, struct.pack("<Q", 2**62)))


def make(folder, command):
    """Writes the seeds into `folder`, one folder for each harness; `command` is a build of onnx-train."""
    seeds = Seeds(folder, command)
    with tempfile.TemporaryDirectory(prefix="seeds") as working:
        working = Path(working)
        for name in ("models", "training", "data"):
            (working / name).mkdir()
        add_models(seeds, working / "models")
        add_training_models(seeds, working / "training")
        add_data(seeds, working / "data")
    add_texts(seeds)
    add_queries(seeds)
    add_runs_of_onnxruntime(seeds)


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2])
