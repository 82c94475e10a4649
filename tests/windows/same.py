"""Runs cases by the command of build-windows under wine and by that of build, and compares what they say, their status and
all files that they leave."""

import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINUX = [str(ROOT / "build" / "onnx-train")]
WINDOWS = ["wine", str(ROOT / "build-windows" / "onnx-train.exe")]
ENVIRONMENT = {**os.environ, "COLUMNS": "120", "WINEDEBUG": "-all", "OMP_NUM_THREADS": "1"}


@dataclass
class Case:
    """Commands that run one after another in a folder of their own, on each system."""

    name: str
    commands: list  # the words of each
    prepare: object = None  # called with the folder
    windows: list = None  # the commands there, where paths have back-slashes
    environment: dict = field(default_factory=dict)


def contents(folder):
    """Path -> what a file has, or that it is a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file():
            found[name] = "folder"
            continue
        with path.open("rb") as file:
            found[name] = hashlib.file_digest(file, "blake2b").hexdigest()
    return found


def run(command, case, commands, folder):
    """(status, output, errors) of each command, and the files after them."""
    folder.mkdir(parents=True)
    if case.prepare:
        case.prepare(folder)
    said = []
    for words in commands:
        done = subprocess.run([*command, *map(str, words)], cwd=folder, env={**ENVIRONMENT, **case.environment},
                              stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
        said.append((done.returncode, done.stdout, done.stderr))
    files = contents(folder)
    shutil.rmtree(folder)
    return said, files


def difference(case, folder):
    """Whether the last command succeeds, and how the two systems differ; "" if they do not."""
    linux, files = run(LINUX, case, case.commands, folder / "linux")
    windows, other_files = run(WINDOWS, case, case.windows or case.commands, folder / "windows")
    if case.windows:
        windows = [(status, output.replace(b"\\", b"/"), errors.replace(b"\\", b"/")) for status, output, errors in windows]
    what = []
    for words, *pair in zip(case.commands, linux, windows):
        for part, a, b in zip(("status", "output", "errors"), *pair):
            if a != b:
                what.append(f"{part} of {' '.join(map(str, words))}\n    {a}\n    {b}")
    what += [f"the file {name!r}" for name in sorted(files.keys() | other_files.keys())
             if files.get(name) != other_files.get(name)]  # fmt: skip
    return linux[-1][0] == 0, "\n  ".join(what)


class Comparison:
    """Counts cases that are the same, and those that are not."""

    def __init__(self, folder):
        self.folder, self.number, self.same, self.refused, self.differences = folder, 0, 0, 0, []
        # Makes wine's folder, which two at once do not.
        subprocess.run([*WINDOWS, "--version"], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)

    def run(self, title, cases):
        """Prints how many are the same; their number."""
        same = refused = 0
        first = self.number
        self.number += len(cases)
        with ThreadPoolExecutor(2) as pool:
            folders = [self.folder / str(first + i) for i in range(len(cases))]
            for case, (succeeds, what) in zip(cases, pool.map(difference, cases, folders)):
                if what:
                    self.differences.append(case.name)
                    print(f"{case.name}: not the same:\n  {what}", flush=True)
                elif succeeds:
                    same += 1
                else:
                    refused += 1
        print(f"{title}: {same} the same, {refused} refused with the same line", flush=True)
        self.same += same
        self.refused += refused
        return same

    def summary(self):
        """The exit status."""
        count = len(self.differences)
        print(f"{self.same} cases the same on both systems, {self.refused} refused with the same line, {count} not the same")
        return 0 if count == 0 else 1
