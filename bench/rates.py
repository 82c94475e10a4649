"""The rate that `fit --lr auto` finds, against a grid of rates: the table of docs/automatic.md.

    .deps/venv/bin/python bench/rates.py [--command build/onnx-train]

Each recipe is trained once with the rate found and once with each rate of the grid, by AdamW with a constant rate. Printed
are the losses of the evaluation data at the end, and the factor between the rate found and the best of the grid.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"


def write_regression(folder):
    """A network of two hidden layers of 64, and data: tanh(x A) b of 8 normal numbers and 16 tangents, with noise."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((8, 16)) / np.sqrt(8), rng.standard_normal((16, 1))
    for name, count in ("train", 2000), ("test", 1000):
        x = rng.standard_normal((count, 8))
        y = np.tanh(x @ a) @ b + 0.3 * rng.standard_normal((count, 1))
        np.savez(folder / f"{name}.npz", x=x.astype("f4"), labels=y.astype("f4"))
    nodes, weights, value, sizes = [], [], "x", [8, 64, 64, 1]
    for i, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
        drawn = rng.uniform(-1, 1, (rows, columns)) / np.sqrt(rows)
        weights += [numpy_helper.from_array(drawn.astype("f4"), f"w{i}"),
                    numpy_helper.from_array(np.zeros(columns, "f4"), f"b{i}")]  # fmt: skip
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"y{i}"]))
        value = f"y{i}"
        if columns > 1:
            nodes.append(helper.make_node("Relu", [value], [f"h{i}"]))
            value = f"h{i}"
    graph = helper.make_graph(nodes, "regression", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
                              [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", 1])], weights)  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "regression.onnx").write_bytes(model.SerializeToString())


def recipes(folder):
    """Name, arguments of fit, and the grid."""
    write_regression(folder)
    data = MODELS / "data"
    return [
        ("digits", [MODELS / "digits_cnn.onnx", "--data", data / "digits_train.npz", "--eval-data", data / "digits_test.npz",
                    "--epochs", 3, "--batch-size", 32], [0.0003, 0.001, 0.003, 0.01, 0.03]),
        ("gpt", [MODELS / "gpt.onnx", "--data", data / "devils_dictionary.txt", "--val-split", 0.05,
                 "--steps", 80, "--batch-size", 8], [0.0001, 0.0003, 0.001, 0.003, 0.01]),
        ("regression", [folder / "regression.onnx", "--data", folder / "train.npz", "--eval-data", folder / "test.npz",
                        "--loss", "mse", "--epochs", 10, "--batch-size", 32], [0.001, 0.003, 0.01, 0.03, 0.1]),
    ]  # fmt: skip


def train(command, arguments, rate, out):
    """The rate that was used, and the last loss of the evaluation data."""
    subprocess.run([command, "fit", *map(str, arguments), "--lr", str(rate), "--out", out, "--overwrite"], check=True,
                   capture_output=True)  # fmt: skip
    last = json.loads((out / "epochs.jsonl").read_text().splitlines()[-1])
    return json.loads((out / "options.json").read_text())["lr"], last["eval_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=Path, default=ROOT / "build/onnx-train")
    command = parser.parse_args().command.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for recipe, arguments, grid in recipes(folder):
            found, loss = train(command, arguments, "auto", folder / "run")
            losses = {rate: train(command, arguments, rate, folder / "run")[1] for rate in grid}
            best = min(losses, key=losses.get)
            tried = ", ".join(f"{rate}: {value:.3g}" for rate, value in losses.items())
            print(f"{recipe}: found {found:.2g} with loss {loss:.3g}; grid {tried}; factor {max(found / best, best / found):.2f}")


if __name__ == "__main__":
    main()
