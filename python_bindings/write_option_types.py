"""Writes a module of the package: the options of the library (onnx_train_options) as types of keyword arguments.

    python write_option_types.py LIBRARY WRITTEN

Type checkers and editors read the file, and the package takes names and docstrings from it (_options.py).
"""

import ctypes
import re
import sys
import textwrap
from pathlib import Path

WIDTH = 118
# Options of one name that several parts of a training have: a training gives them their first meaning.
FIT = ("fit", "session", "data", "forward")
# What Python takes besides texts: objects whose str() is what the command takes.
OBJECTS = {"loss": "Loss", "optimizer": "Optimizer"}
# Python's names for options, and options that Python decides itself.
RENAMED = {"out": "folder"}
HIDDEN = {"wait-for-steps"}
CHECK = ("mode", "train", "freeze", "device", "batch", "set", "fix-shapes", "dim")


def rows_of(library, function):
    library.onnx_train_options.restype = ctypes.c_char_p
    lines = library.onnx_train_options(function.encode()).decode().splitlines()
    return [line.split("\t") for line in lines]


def type_of(name, kind, value):
    if name in OBJECTS:
        return f"str | {OBJECTS[name]}"
    if kind == "bool":
        return "bool"
    if kind.startswith("integer"):
        return "int | str" if kind.endswith("|auto") else "int"
    if kind.startswith("number"):
        return "float | str" if kind.endswith("|auto") else "float"
    if kind == "list":
        numbers = "float | " if re.search(r"\bX$", value) else ""
        named = " | Mapping[str, object]" if "=" in value else ""
        return f"{numbers}str | Iterable[object]{named}"
    if value in ("DIR", "FILE"):
        return "str | os.PathLike[str]"
    if value == "SIZE" or re.fullmatch(r"N(\|\w+)?", value):
        return "int | str"
    return "float | str" if value == "TIME" or re.search(r"\|N$", value) else "str"


def python_name(option):
    """Of a flag that turns something off, the thing: ``no-shuffle`` is ``shuffle``."""
    return RENAMED.get(option, option.removeprefix("no-").replace("-", "_"))


def spelled(text, names):
    """The command's spelling of options as Python has it, as `_errors.spelled` does of messages."""
    return re.sub(r"--([a-z][a-z-]*[a-z])", lambda found: names.get(found[1], found[0]), text)


def class_of(name, about, rows, names):
    lines = [f"class {name}(TypedDict, total=False):", f'    """{about}', "", "    Attributes:"]
    for option, _, value, help in rows:
        turned = "False: " if option.startswith("no-") else ""
        text = f"{python_name(option)}: {turned}{spelled(help, names)}"
        lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12, break_long_words=False)
    lines += ['    """', ""]
    lines += [f"    {python_name(option)}: {type_of(option, kind, value)} | None" for option, kind, value, _ in rows]
    return "\n".join(lines)


def without(rows, *left_out):
    return [row for row in rows if row[0] not in left_out and row[0] not in HIDDEN]


def joined(tables):
    seen, rows = set(), []
    for table in tables:
        rows += [row for row in table if row[0] not in seen]
        seen |= {row[0] for row in table}
    return rows


def main(library, written):
    tables = {of: rows_of(ctypes.CDLL(str(Path(library).resolve())), of) for of in ("fit", "session", "data", "forward", "build", "samples")}
    every = joined(tables.values())
    names = {option: python_name(option) for option, _, _, _ in every}
    fit = without(joined(tables[of] for of in FIT))
    # Options that the table of fit only refers to build for.
    about_build = {row[0]: row for row in tables["build"]}
    fit = [about_build[row[0]][:3] + [f"of a forward model: {about_build[row[0]][3]}"] if row in tables["forward"] else row for row in fit]
    classes = [
        class_of("FitOptions", "What `fit` takes besides the model, the data and what it shows.", fit, names),
        class_of("SessionOptions", "What a `Session` takes besides the model and the device.", without(tables["session"], "device"), names),
        class_of("DataOptions", "How files of data are read.", without(tables["data"]), names),
        class_of("BuildOptions", "What `build` takes besides the loss and the optimizer.",
                 without(tables["build"], "loss", "optimizer"), names),
        class_of("CheckOptions", "What `check` takes besides the loss.", [row for row in tables["build"] if row[0] in CHECK], names),
    ]  # fmt: skip
    off_by_default = sorted(row[0] for row in every if row[1] == "bool" and row[2] == "true|false")
    header = [
        '"""The options of the library as types of keyword arguments. Written by write_option_types.py when the package is built."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import TYPE_CHECKING",
        "",
        "if TYPE_CHECKING:",
        "    import os",
        "    from collections.abc import Iterable, Mapping",
        "    from typing import TypedDict",
        "",
        "    from .losses import Loss",
        "    from .optimizers import Optimizer",
        "else:",
        "",
        "    class TypedDict:  # which is slow to make, and nothing but names and texts is read of it",
        "        def __init_subclass__(cls, total):",
        "            pass",
        "",
    ]
    tail = ["# The options of each part, by the command's names; those that are off unless they are given."]
    for of in ("fit", "session", "data", "forward", "samples"):
        tail.append(f"{of.upper()} = frozenset({sorted(row[0] for row in tables[of])!r})")
    tail.append(f"FLAGS = frozenset({off_by_default!r})")
    tail.append(f"NAMES = {names!r}  # Python's, by the command's")
    Path(written).write_text("\n".join(header) + "\n\n" + "\n\n\n".join(classes) + "\n\n\n" + "\n".join(tail) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
