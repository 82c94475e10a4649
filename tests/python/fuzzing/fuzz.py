"""Hands broken models, training models, checkpoints and data, and senseless command lines, to the command. Each must
succeed or say in one line what is wrong: no crash, no sanitizer report, nothing that takes long, and every file that was
there is there as it was when a command fails.

    python tests/python/fuzzing/fuzz.py --server build-asan/tests/command_server --count 500
    python tests/python/fuzzing/fuzz.py --first 4711 --count 1                          # one again
    python tests/python/fuzzing/fuzz.py --seconds 60                                    # as many as start within a minute

Case number n is always the same. The kinds take turns, so that a run of any length tries all of them.
"""

import argparse
import itertools
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import fuzz_cases

sys.path.append(str(Path(__file__).parents[1]))
import tool  # noqa: E402

SECONDS = 10  # of processor time; under sanitizers, which are about four times as slow, SANITIZED_SECONDS
SANITIZED_SECONDS = 40
MEMORY = 4 << 30
PROGRESS_SECONDS = 60  # between two lines that say how far a run is
SMALL_FILE = 600  # bytes: what the disk has room for in the kind full_disk


def misbehaviour(status, errors):
    """"" when a command has ended as it should, well or with a message, else what it did."""
    if status not in (0, 1, 2):
        return f"exit status {status}: {errors[-3000:]}"
    if "Sanitizer" in errors or "runtime error" in errors or "of the arena, which is not its own" in errors:
        return errors[-3000:]  # the last is what --check-memory says; sanitizers see the arena as one block
    return ""


class Command:
    """The command, run in `folder`: random arguments may name files there."""

    def __init__(self, path, folder):
        self.path, self.folder = Path(path).resolve(), folder
        self.sanitized = b"__asan_init" in Path(path).read_bytes()
        self.seconds = SANITIZED_SECONDS if self.sanitized else SECONDS
        options = f"allocator_may_return_null=1:hard_rss_limit_mb={MEMORY >> 20}"
        self.environment = os.environ | {
            "ASAN_OPTIONS": options, "UBSAN_OPTIONS": "print_stacktrace=1", "OMP_NUM_THREADS": "1"
        }  # fmt: skip

    def limit(self, file_bytes):
        resource.setrlimit(resource.RLIMIT_CPU, (self.seconds, self.seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if file_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        if not self.sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def run(self, arguments, file_bytes=0):
        return subprocess.run(
            [self.path, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=20 * self.seconds,
            cwd=self.folder, env=self.environment, preexec_fn=lambda: self.limit(file_bytes), stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def expect_success(self, arguments):
        result = self.run(arguments)
        assert result.returncode == 0, f"{arguments}: {result.stderr}"

    def close(self):
        pass

    def complaint(self, arguments, file_bytes=0):
        """"" when the command behaves, else what it did; and its exit status."""
        try:
            result = self.run(arguments, file_bytes)
        except subprocess.TimeoutExpired:
            return f"waited for more than {20 * self.seconds} s", None
        if result.returncode in (-24, -9):
            return f"ran for more than {self.seconds} s", None
        if self.sanitized and "hard rss limit exhausted" in result.stderr:
            return "", None  # without sanitizers RLIMIT_AS refuses that memory, and the command says so
        # What was guessed is said before the run that fails, in notes.
        lines = [line for line in result.stderr.strip().splitlines() if not line.startswith("onnx-train: note: ")]
        said = len(lines) == 1 or (arguments[0] == "check" and result.stdout)
        text = misbehaviour(result.returncode, result.stderr)
        if result.returncode in (1, 2) and not said:
            text = text or f"wants one line that says why, got {len(lines)}: {result.stderr[:1000]!r}"
        return text, result.returncode


class ServedCommand(Command):
    """The command by command_server.cc, which starts it several times as fast."""

    def __init__(self, path, folder):
        super().__init__(path, folder)
        self.out, self.errors = Path(folder) / "stdout", Path(folder) / "stderr"
        working = Path(folder) / "working"
        working.mkdir()
        self.server = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=working,
                                       env=self.environment)  # fmt: skip

    def run(self, arguments, file_bytes=0):
        arguments = ["onnx-train", *map(str, arguments)]
        fields = [self.seconds, MEMORY, file_bytes, self.out, self.errors, len(arguments), *arguments]
        self.server.stdin.write(b"".join(os.fsencode(str(field)) + b"\0" for field in fields))
        self.server.stdin.flush()
        status = os.waitstatus_to_exitcode(int(self.server.stdout.readline()))
        if status == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(arguments, 20 * self.seconds)
        text = [path.read_text(errors="replace") for path in (self.out, self.errors)]
        return subprocess.CompletedProcess(arguments, status, *text)

    def close(self):
        self.server.stdin.close()
        self.server.wait()


def contents(paths):
    return {path: Path(path).read_bytes() if Path(path).is_file() else None for path in paths}


def try_case(command, case, counts):
    """Complaints about the commands of a case, as (arguments, text)."""
    found = []
    for arguments in case.commands:
        before = contents(case.kept)
        text, status = command.complaint(arguments, SMALL_FILE if case.kind == "full_disk" else 0)
        counts["commands"] += 1
        counts["succeeded"] += status == 0
        if not text and status != 0 and contents(case.kept) != before:
            text = "failed, and changed a file"
        if text:
            found.append((" ".join(map(str, arguments))[:500], text))
    return found


def run(path, count, first=0, kinds=tuple(fuzz_cases.KINDS), report=lambda text: None, seconds=math.inf,
        command_kind=Command):
    """Tries `count` cases, or those that start within so many seconds after the seeds are made; returns complaints as
    (number, kind, command line, text), and what was counted."""
    complaints, counts = [], Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz") as seeds_folder, tempfile.TemporaryDirectory() as working_folder:
        command = command_kind(path, working_folder)
        seeds = fuzz_cases.Seeds(command.expect_success, tool.ROOT, Path(seeds_folder))
        seeds.make(kinds)
        end = time.monotonic() + seconds
        said = time.monotonic()
        names = list(fuzz_cases.KINDS)
        numbers = (number for number in itertools.count(first) if names[number % len(names)] in kinds)
        for number in itertools.islice(numbers, count):
            now = time.monotonic()
            if now >= end:
                break
            if now - said >= PROGRESS_SECONDS:
                report(f"{counts['commands']} commands, {len(complaints)} not handled; next is case {number}")
                said = now
            kind = names[number % len(names)]
            folder = Path(tempfile.mkdtemp(prefix="fuzz"))
            try:
                case = fuzz_cases.KINDS[kind](number, seeds, folder)
                counts[kind] += 1
                for line, text in try_case(command, case, counts):
                    complaints.append((number, f"{kind}, {case.kind}", line, text))
                    report(f"{number} {kind}, {case.kind}: {line}: {text}")
            finally:
                shutil.rmtree(folder)
        command.close()
    return complaints, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=Path, default=tool.COMMAND)
    parser.add_argument("--server", type=Path, help="command_server, in the command's place")
    parser.add_argument("--count", type=int, help="how many cases [500, or any number with --seconds]")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no case after so many seconds")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", choices=fuzz_cases.KINDS, help="cases of this kind only")
    arguments = parser.parse_args()
    kinds = (arguments.kind,) if arguments.kind else tuple(fuzz_cases.KINDS)
    count = arguments.count or (500 if arguments.seconds == math.inf else 10**9)
    complaints, counts = run(arguments.server or arguments.command, count, arguments.first, kinds,
                             lambda text: print(text, flush=True), arguments.seconds,
                             ServedCommand if arguments.server else Command)  # fmt: skip
    tried = ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
    print(f"{tried}: {counts['commands']} commands, {counts['succeeded']} succeeded, {len(complaints)} not handled")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
