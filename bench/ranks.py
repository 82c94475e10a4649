"""What `onnx-train scale` says of a step on 2 and 4 processes of this machine, beside what they take.

    cmake --build build --target exchange_bench
    python bench/ranks.py [--build build] [--rounds 3]

The network of the model is this machine's loopback, measured by processes that do nothing else (bench/exchange.cc): what
an exchange, and each byte, takes of a rank that computes as much between exchanges. The rank's computing is measured while
as many processes as there will be ranks compute the same, since they share cores, caches and memory. Neither is taken from
the trainings of the last columns. The three alternate. A column is the median over the rounds, the last one that of the
rounds' own ratios.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "models" / "data"


def run_together(commands, environments=None):
    """What each prints, of commands that run at the same time."""
    environments = environments or [{}] * len(commands)
    running = [subprocess.Popen([*map(str, command)], env={**os.environ, **extra}, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT) for command, extra in zip(commands, environments)]  # fmt: skip
    printed = [process.communicate()[0] for process in running]
    if any(process.returncode != 0 for process in running):
        raise SystemExit("".join(printed))
    return printed


def run(*command):
    return run_together([command])[0]


def exchanges(build, ranks, microseconds):
    """Microseconds that an exchange takes of a rank, and nanoseconds that a byte takes."""
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.randrange(20000, 32000))}
    printed = run_together([[build / "bench" / "exchange_bench", microseconds]] * ranks,
                           [{**common, "RANK": str(rank)} for rank in range(ranks)])  # fmt: skip
    alone, meanwhile, at_once, byte = map(float, "".join(printed).split())
    return (meanwhile + at_once) / 2, byte


def measured(build, model, data, batch, ranks, folder):
    """Milliseconds of a step in the middle."""
    run(build / "onnx-train", "fit", model, "--data", data, "--batch-size", batch, "--accumulate", ranks, "--steps", 100,
        "--threads", 1, "--out", folder, "--overwrite", "--devices", ",".join(["cpu"] * ranks))  # fmt: skip
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(step["ms"] for step in steps[10:])


def modelled(build, model, data, batch, ranks):
    """Microseconds that an exchange takes, and milliseconds that a rank computes and that its step takes."""
    cores = min(ranks, os.cpu_count())

    def scale(*network):
        command = [build / "onnx-train", "scale", model, "--data", data, "--batch-size", batch, "--ranks", ranks, "--json",
                   "--threads", 1, "--seconds", 1, "--latency", 0, "--bandwidth", 1000, *network]  # fmt: skip
        found = [json.loads(printed) for printed in run_together([command] * cores)]
        return [statistics.median(each[key] for each in found) for key in ("compute_ms", "waiting_ms", "exchanges")]

    computes, _, count = scale()
    overhead, byte = exchanges(build, ranks, 1e3 * computes / count)
    computes, waits, _ = scale("--overhead", overhead, "--copy-bandwidth", 1 / max(byte, 1e-3))
    computes *= ranks / cores  # they take turns on the cores
    return overhead, computes, computes + waits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    print(f"{os.cpu_count()} cores\n")
    print("| network | batch | processes | an exchange takes, us | computes, ms | modelled, ms | measured, ms | modelled / measured |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        text = folder / "text.npz"
        run("python3", ROOT / "models" / "text.py", DATA / "devils_dictionary.txt", "--train", text, "--eval", folder / "eval.npz")
        for name, data, batches in ("digits_cnn", DATA / "digits_train.npz", (32, 128)), ("gpt", text, (4, 16)):
            model = folder / f"{name}.onnx"
            run(build / "onnx-train", "build", ROOT / "models" / f"{name}.onnx", "-o", model, "--loss", "cross_entropy",
                "--accumulate")  # fmt: skip
            for batch in batches:
                for ranks in 2, 4:
                    rows = []
                    for _ in range(arguments.rounds):
                        overhead, computes, step = modelled(build, model, data, batch, ranks)
                        took = measured(build, model, data, batch, ranks, folder / "run")
                        rows.append((overhead, computes, step, took, step / took))
                    overhead, computes, step, took, ratio = (statistics.median(column) for column in zip(*rows))
                    print(f"| {name} | {batch} | {ranks} | {overhead:.0f} | {computes:.2f} | {step:.2f} | {took:.2f} | {ratio:.2f} |",
                          flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
