"""Runs cases by a command for another system and by that of build, and compares what they say, their status and all files
that they leave. The other command stands after `--` on the command line, with what runs it; by default it is that of
build-windows under wine, which has no kernels."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = [str(ROOT / "build" / "onnx-train")]
IS_WINE = "--" not in sys.argv
OTHER = ["wine", str(ROOT / "build-windows" / "onnx-train.exe")] if IS_WINE else sys.argv[sys.argv.index("--") + 1 :]
ENVIRONMENT = {
    **os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1", "WINEDEBUG": "-all",
    "WINEPREFIX": str(ROOT / "build-windows" / "wine"),
}  # fmt: skip


@dataclass
class Case:
    """Commands that run one after another in a folder of their own, on each system."""

    name: str
    commands: list  # the words of each
    prepare: object = None  # called with the folder
    windows: list = None  # the commands there, where paths have back-slashes
    environment: dict = field(default_factory=dict)


# What `check` says more in a build without kernels, alone or among other things.
NO_KERNELS = re.compile(rb"\nWorth knowing:\n  kernels: [^\n]*\n(?!  )|(?<=\n)  kernels: whether there is one [^\n]*\n")
CANNOT_RUN = b" is not written, for it could not be run: "


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


def first_difference(a, b):
    """The parts of two texts from shortly before they part."""
    if isinstance(a, int):
        return f"{a} and {b}"
    at = max(0, len(os.path.commonprefix([a, b])) - 60)
    return f"\n    {a[at : at + 200]}\n    {b[at : at + 200]}"


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
    for path in [folder, *folder.rglob("*")]:  # a case may have taken its permissions
        path.chmod(0o755)
    files = contents(folder)
    shutil.rmtree(folder)
    return said, files


def difference(case, folder):
    """The status of each command, and how the two systems differ; "" if they do not."""
    own, files = run(OWN, case, case.commands, folder / "own")
    other, other_files = run(OTHER, case, case.windows or case.commands, folder / "other")
    folder.rmdir()
    what = []
    # A command without kernels does not try what it writes.
    if IS_WINE and any(CANNOT_RUN in errors for _, _, errors in own):
        own, other, files, other_files = own[:1], own[:1], {}, {}
    for words, *pair in zip(case.commands, own, other):
        for part, a, b in zip(("status", "output", "errors"), *pair):
            if IS_WINE and part == "output" and words[:1] == ["check"]:
                b = NO_KERNELS.sub(b"", b)
            if part != "status" and case.windows:
                a, b = a.replace(b"\\", b"/"), b.replace(b"\\", b"/")
            if a != b:
                what.append(f"{part} of {' '.join(map(str, words))}: {first_difference(a, b)}")
    what += [f"the file {name!r}" for name in sorted(files.keys() | other_files.keys())
             if files.get(name) != other_files.get(name)]  # fmt: skip
    return [status for status, _, _ in own], "\n  ".join(what)


class Comparison:
    """Counts commands that are the same on both systems, and cases that are not."""

    def __init__(self, folder):
        self.folder, self.number, self.same, self.refused, self.differences = folder, 0, 0, 0, []
        if not IS_WINE:
            return
        # One server for all: it keeps the pipes open of the command that starts it. The first command makes wine's
        # folder, which two at once do not.
        Path(ENVIRONMENT["WINEPREFIX"]).mkdir(parents=True, exist_ok=True)
        self.server("--persistent")
        subprocess.run([*OTHER, "--version"], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip

    @staticmethod
    def server(option):
        if IS_WINE:
            subprocess.run(["wineserver", option], env=ENVIRONMENT, check=False)

    def run(self, title, cases):
        """Prints how many commands are the same; the number of those that succeed."""
        same = refused = 0
        first = self.number
        self.number += len(cases)
        with ThreadPoolExecutor(2) as pool:
            folders = [self.folder / str(first + i) for i in range(len(cases))]
            for case, (statuses, what) in zip(cases, pool.map(difference, cases, folders)):
                if what:
                    self.differences.append(case.name)
                    print(f"{case.name}: not the same:\n  {what}", flush=True)
                else:
                    same += statuses.count(0)
                    refused += len(statuses) - statuses.count(0)
        print(f"{title}: {same} commands the same, {refused} refused with the same line", flush=True)
        self.same += same
        self.refused += refused
        return same

    def run_refused(self, names):
        """The commands that this build has not: one line."""
        for name in names:
            done = subprocess.run([*OTHER, name, "model.onnx"], env=ENVIRONMENT, capture_output=True)
            if (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1) and b"runs none" in done.stderr:
                self.refused += 1
            else:
                self.differences.append(name)
                print(f"{name}: {done}")

    def summary(self):
        """The exit status."""
        self.server("--kill")
        count = len(self.differences)
        print(f"{self.same} commands the same on both systems, {self.refused} refused with the same line; "
              f"{count} cases not the same: {', '.join(self.differences)}")  # fmt: skip
        return 0 if count == 0 else 1
