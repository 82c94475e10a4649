"""Runs the fuzz targets one after the other, from the seeds (seeds.py), corpus/ and what earlier runs have found, and
prints what each has done. Inputs that crash, leak, or take more than 2 s or 2 GB go to BUILD/crashes; the exit status
says whether there are any.

    scripts/fuzz --readers --seconds 60          # each
    scripts/fuzz --readers npz csv --runs 100000
    build-fuzz/tests/fuzz/fuzz_npz build-fuzz/crashes/npz-...     # one input again
"""

import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import seeds

FOLDER = Path(__file__).parent
MOST_CRASHES = 10  # of one target, after which it is left


def limits(program):
    """What the target's .options say, as libFuzzer's flags."""
    options = configparser.ConfigParser()
    options.read(program.with_suffix(".options"))
    return [f"-{key}={value}" for key, value in options["libfuzzer"].items()]


def number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


class Target:
    def __init__(self, program, build, seed_folder):
        self.program, self.build = program, build
        self.name = program.name.removeprefix("fuzz_")
        self.found = build / "corpus" / self.name
        self.found.mkdir(parents=True, exist_ok=True)
        self.inputs = [self.found, *(f / self.name for f in (seed_folder, FOLDER / "corpus") if (f / self.name).is_dir())]
        self.executions = self.edges = 0
        self.crashes = []

    def start(self, flags, temporary, timeout):
        """One process of libFuzzer, which ends at its first crash."""
        crashes = self.build / "crashes"
        crashes.mkdir(exist_ok=True)
        before = set(crashes.iterdir())
        if timeout:
            flags = [*flags, f"-timeout={timeout}"]
        environment = os.environ | {"TMPDIR": temporary, "OMP_NUM_THREADS": "1", "UBSAN_OPTIONS": "print_stacktrace=1"}
        done = subprocess.run(
            ["nice", "-n", "19", self.program, *self.inputs, *limits(self.program), "-print_final_stats=1", "-report_slow_units=1000",
             f"-artifact_prefix={crashes}/{self.name}-", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", env=environment,
        )  # fmt: skip
        self.executions += number(r"stat::number_of_executed_units: +(\d+)", done.stderr)
        self.edges = max(self.edges, number(r" cov: (\d+)", done.stderr))
        for path in sorted(set(crashes.iterdir()) - before):
            self.crashes.append(path)
            path.with_name(path.name + ".txt").write_text(done.stderr[-20000:])
        if done.returncode and not set(crashes.iterdir()) - before:
            raise RuntimeError(f"{self.program.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.returncode

    def run(self, seconds, runs, temporary, timeout):
        known = len(list(self.found.iterdir()))
        started = time.monotonic()
        while len(self.crashes) < MOST_CRASHES:
            left = int(seconds - (time.monotonic() - started))
            if runs and self.executions >= runs or not runs and left < 1:
                break
            flags = [f"-runs={runs - self.executions}"] if runs else [f"-max_total_time={left}"]
            if self.start(flags, temporary, timeout) == 0:
                break
        self.new = len(list(self.found.iterdir())) - known
        self.seconds = time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="targets: model, npz, ... [all]")
    parser.add_argument("--build", type=Path, default=seeds.ROOT / "build-fuzz", help="the build folder of the preset fuzz")
    parser.add_argument("--command", type=Path, default=seeds.ROOT / "build/onnx-train", help="what makes training models")
    parser.add_argument("--seconds", type=int, default=60, help="of each target [60]")
    parser.add_argument("--runs", type=int, default=0, help="executions of each target, in the place of seconds")
    parser.add_argument("--timeout", type=int, help="seconds of one input, where the machine is busy [2]")
    arguments = parser.parse_args()
    programs = sorted(p for p in (arguments.build / "tests/fuzz").glob("fuzz_*") if p.suffix == "" and p.is_file())
    known = {p.name.removeprefix("fuzz_"): p for p in programs}
    for name in arguments.names:
        if name not in known:
            parser.error(f"there is no target {name}: {', '.join(known)}")
    seed_folder = arguments.build / "seeds"
    shutil.rmtree(seed_folder, ignore_errors=True)
    seeds.make(seed_folder, arguments.command)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    print(f"{'target':16} {'executions':>12} {'a second':>9} {'edges':>7} {'new inputs':>11} {'crashes':>8}", flush=True)
    total, crashes = 0, []
    for name in arguments.names or known:
        target = Target(known[name], arguments.build, seed_folder)
        with tempfile.TemporaryDirectory(prefix="fuzz", dir=memory) as temporary:
            target.run(arguments.seconds, arguments.runs, temporary, arguments.timeout)
        rate = target.executions / max(target.seconds, 1e-3)
        print(f"{name:16} {target.executions:12,} {rate:9,.0f} {target.edges:7,} {target.new:11,} {len(target.crashes):8}",
              flush=True)  # fmt: skip
        total += target.executions
        crashes += target.crashes
    print(f"{'all':16} {total:12,} {'':9} {'':7} {'':11} {len(crashes):8}")
    for path in crashes:
        print(path)
    sys.exit(bool(crashes))


if __name__ == "__main__":
    main()
