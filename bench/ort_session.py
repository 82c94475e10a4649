"""onnx_train.ort.Session against onnx_train.Session: the processor's time and the memory of a step.

    .deps/venv/bin/python bench/ort_session.py
    .deps/venv/bin/python bench/ort_session.py --only digits,GRU --write docs/other_runtimes.md

Both train the same network on the same batch, each in a process of its own. They take turns, so that whatever else the
machine does meets both; the ratio is the median over the rounds. Time is the processor's, of all threads: on a machine
with other work the time on the clock says how often a step was interrupted. Memory is the peak of the resident set,
less what the process held when its libraries were loaded.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers_table import write_between_marks
from peers_workloads import ROOT, WORKLOADS, make_files

sys.path.insert(0, str(ROOT / "build" / "python"))
DIGITS = "digits CNN, batch 32"
NAMES = ("digits", "MLP", "ResNet-18", "GPT-2", "BERT", "LSTM")
TOLERANCE = 1e-4  # of the first loss, relatively


def memory(field):
    """Bytes, as the system counts them: VmRSS now, VmHWM at most."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def work(kind, training, data, threads):
    """Answers each line of input, a number of seconds, with the times of steps and the peak of memory."""
    import numpy as np

    import onnx_train
    import onnx_train.ort

    before = memory("VmRSS")
    module = onnx_train.ort if kind == "ort" else onnx_train
    session = module.Session(training, threads=int(threads))
    with np.load(data) as archive:
        batch = {name: archive[name] for name in archive.files}
    first = session.step(batch).loss
    for line in sys.stdin:
        end, times = time.monotonic() + float(line), []
        while len(times) < 2 or time.monotonic() < end:
            begin = time.process_time()
            session.step(batch)
            times.append(1000 * (time.process_time() - begin))
        print(json.dumps({"ms": statistics.median(times), "loss": first, "bytes": memory("VmHWM") - before}), flush=True)


class Contestant:
    def __init__(self, kind, training, data, threads):
        command = [sys.executable, __file__, "--work", kind, training, data, threads]
        self._process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, seconds):
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant ended with status {self._process.wait()}")
        return json.loads(line)

    def end(self):
        self._process.stdin.close()
        self._process.wait()


def files_of(title, folder):
    """(training model, data)"""
    import numpy as np

    if title == DIGITS:
        import onnx_train

        with np.load(ROOT / "models" / "data" / "digits_train.npz") as archive:
            np.savez(folder / "data.npz", **{name: archive[name][:32] for name in archive.files})
        onnx_train.build(ROOT / "models" / "digits_cnn.onnx", "cross_entropy", "adamw").save(folder / "train.onnx")
        return folder / "train.onnx", folder / "data.npz"
    workload = next(workload for workload in WORKLOADS if workload.title == title)
    files = make_files(workload, workload.example(), "float32", folder)
    return files.training, files.data


def measure(title, options):
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(title, Path(folder))
        contestants = [Contestant(kind, *files, options.threads) for kind in ("own", "ort")]
        try:
            for contestant in contestants:
                contestant.turn(0)  # warm
            rounds = [[contestant.turn(options.seconds) for contestant in contestants] for _ in range(options.rounds)]
        finally:
            for contestant in contestants:
                contestant.end()
    ours, theirs = rounds[-1]
    assert abs(ours["loss"] / theirs["loss"] - 1) < TOLERANCE, (title, ours, theirs)
    own, other = (statistics.median(turn[i]["ms"] for turn in rounds) for i in (0, 1))
    ratio = statistics.median(turn[1]["ms"] / turn[0]["ms"] for turn in rounds)
    size = [found["bytes"] / 1e6 for found in (ours, theirs)]
    own, other = (f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}" for ms in (own, other))
    return f"| {title} | {own} | {other} | {ratio:.2f} | {size[0]:.0f} | {size[1]:.0f} |"


def main():
    if sys.argv[1:2] == ["--work"]:
        return work(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="parts of the networks' titles")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="document whose table to replace")
    options = parser.parse_args()
    titles = [DIGITS, *(workload.title for workload in WORKLOADS if not workload.loops)]
    wanted = [title for name in options.only.split(",") for title in titles if title.startswith(name)]
    lines = ["| network | ours, ms | ONNX Runtime, ms | ratio | ours, MB | ONNX Runtime, MB |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for title in wanted:
        lines.append(measure(title, options))
        print(lines[-1], flush=True)
    if options.write:
        write_between_marks(options.write, "\n".join(lines) + "\n", "bench/ort_session.py")


if __name__ == "__main__":
    main()
