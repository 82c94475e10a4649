"""Runs what a page of the documentation shows, in order and in one folder.

A block ```console holds commands after `$ ` and some of the lines that each prints, in their order. Blocks ```python
share their names; a block ```text directly after one holds lines that it prints. All other blocks are not run.
"""

import contextlib
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import tool

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
# Commands whose numbers differ from processor to processor in their last digits, and with them which epoch is best.
INEXACT = re.compile(r"onnx-train (fit|eval|grad|verify|bench)\b|program/")


def paths():
    """The pages for readers, relative to the root."""
    pages = [*tool.ROOT.glob("*.md"), *(tool.ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(tool.ROOT).as_posix() for path in pages)


def text_of(page):
    return (tool.ROOT / page).read_text()


def blocks(page):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def prepare(folder):
    """Makes `folder` look like the root of a checkout that is built, with the models that examples name."""
    for name in ("bench", "models", "examples", "tests"):
        (folder / name).symlink_to(tool.ROOT / name)
    (folder / "build").symlink_to(tool.COMMAND.parent)
    for name in ("model.onnx", "mlp.onnx"):
        shutil.copy(MLP, folder / name)
    shutil.copy(tool.ROOT / "models" / "digits_cnn.onnx", folder)
    # Pages name folders of modules relative to theirs: Python must not look where the page before was.
    importlib.invalidate_caches()


def commands(block):
    """(command, the lines that the page shows after it)."""
    for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *lines = part.rstrip().splitlines()
        yield command, lines


def without_numbers(line):
    return re.sub(r"\d[\d.e-]*", "0", line).replace(" best", "").split()


def assert_shows(lines, printed, key):
    """Each line is printed, after the one before it; `key` says what of a line counts."""
    rest = [key(line) for line in printed.splitlines()]
    for line in lines:
        assert key(line) in rest, f"{line!r} is not in, or not in this place of\n{printed}"
        del rest[: rest.index(key(line)) + 1]


def run_console(block, folder, shows=True):
    path = f"{tool.COMMAND.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    for command, lines in commands(block):
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        if shows:
            assert_shows(lines, done.stdout, without_numbers if INEXACT.search(command) else str.split)


def run(page, folder, names=None, edit=None):
    """Runs the blocks of a page in `folder`, the current one, and returns how many.

    `names` are what its programs see and make. `edit`, a function, changes each block before it runs; what it prints
    is not compared then.
    """
    names, printed, count = {} if names is None else names, None, 0
    for language, block in blocks(page):
        block = edit(block) if edit else block
        if language == "text" and printed is not None and not edit:
            assert_shows(block.splitlines(), printed, without_numbers)
        printed = None
        if language == "console":
            run_console(block, folder, shows=not edit)
        elif language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(block, page, "exec"), names)
            printed = output.getvalue()
        else:
            continue
        count += 1
    return count
