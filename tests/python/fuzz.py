"""Hands broken model files to `check` and `build`. Each must succeed or say in one line what is wrong: no crash, no
sanitizer report, nothing that takes more than 10 seconds.

    python tests/python/fuzz.py --command build-asan/onnx-train --count 500
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import mutations
import tool

SECONDS = 10
MEMORY = 4 << 30


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def complaint(command, arguments, sanitized):
    """"" when the command behaves, else what it did."""
    environment = os.environ | {
        "ASAN_OPTIONS": f"detect_leaks=0:hard_rss_limit_mb={MEMORY >> 20}", "UBSAN_OPTIONS": "print_stacktrace=1"
    }  # fmt: skip
    try:
        result = subprocess.run(
            [command, *arguments], capture_output=True, text=True, errors="replace", timeout=SECONDS, env=environment,
            preexec_fn=None if sanitized else limit_memory,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"ran for more than {SECONDS} s"
    if result.returncode not in (0, 1):
        return f"exit status {result.returncode}: {result.stderr[-3000:]}"
    if "Sanitizer" in result.stderr or "runtime error" in result.stderr:
        return result.stderr[-3000:]
    lines = result.stderr.strip().splitlines()
    said = len(lines) == 1 or (arguments[0] == "check" and result.stdout)
    if result.returncode == 1 and not said:
        return f"wants one line that says why, got {len(lines)}: {result.stderr[:1000]!r}"
    return ""


def run(command, count, first=0, report=lambda text: None):
    """Tries `count` broken models; returns (number, mutation, subcommand, complaint) for each that was not handled."""
    models = mutations.seed_models(tool.ROOT)
    sanitized = b"__asan_init" in Path(command).read_bytes()
    complaints, tried = [], Counter()
    for number in range(first, first + count):
        folder = Path(tempfile.mkdtemp(prefix="fuzz"))
        try:
            path, mutation = mutations.write(number, models, folder)
            tried[mutation] += 1
            for arguments in (["check", path], ["build", path, "-o", folder / "out.onnx", "--loss", "cross_entropy"]):
                text = complaint(command, arguments, sanitized)
                if text:
                    complaints.append((number, mutation, arguments[0], text))
                    report(f"{number} {mutation}, {arguments[0]}: {text}")
        finally:
            shutil.rmtree(folder)
    return complaints, tried


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=Path, default=tool.COMMAND)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first model: repeats a single one")
    arguments = parser.parse_args()
    complaints, tried = run(arguments.command, arguments.count, arguments.first, report=print)
    print(f"{sum(tried.values())} broken models through check and build: {len(complaints)} not handled")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
