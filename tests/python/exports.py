"""PyTorch's exporters take most of the tests' time: what they wrote for a module stays in the build folder.

`remember()` replaces torch.onnx.export. A file is found by everything that it is made from: the module's classes with
the files of this repository that define them, its attributes, parameters and buffers, the arguments and options, and
the versions of what exports. Processes side by side make each file once. Files that no run has used for a week go.
An export in training mode changes the module, its running statistics for example: it is made each time.
"""

import contextlib
import fcntl
import functools
import hashlib
import inspect
import os
import re
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tool
import torch

FOLDER = tool.COMMAND.parent / "tests" / "exports"
WEEK = 7 * 24 * 3600  # seconds


def remember():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process is as fast
            if time.time() - path.stat().st_mtime > WEEK:
                path.unlink()
    export = torch.onnx.export

    @functools.wraps(export)
    def remembered(module, arguments, path, **options):
        if any(part.training for part in module.modules()):
            return export(module, arguments, path, **options)
        stored = FOLDER / f"{key(module, arguments, options)}.onnx"
        with open(stored.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not stored.exists():
                made = stored.with_suffix(".new")
                with torch.random.fork_rng(devices=[]):  # what is drawn later does not depend on who exports
                    export(module, arguments, str(made), **options)
                made.rename(stored)
            os.utime(stored)
        shutil.copyfile(stored, path)
        return None

    torch.onnx.export = remembered


def key(module, arguments, options):
    digest = hashlib.sha256()
    add = functools.partial(add_value, digest)
    for package in "torch", "onnx", "onnxscript", "transformers":
        with contextlib.suppress(PackageNotFoundError):
            add(version(package))
    for name, part in module.named_modules():
        add(name)
        add(type(part).__qualname__)
        add(source_file(type(part)))
        for attribute, value in sorted(vars(part).items()):
            if not attribute.startswith("_"):
                add(attribute)
                add(value)
        add(part.training)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        add(name)
        add(tensor)
    add(arguments)
    add(sorted(options.items()))
    return digest.hexdigest()[:32]


def add_value(digest, value):
    """Contents of tensors, also within tuples and dictionaries; else what repr says, but for addresses."""
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous()
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, (tuple, list)):
        digest.update(f"{len(value)} of".encode())
        for part in value:
            add_value(digest, part)
    elif isinstance(value, dict):
        add_value(digest, list(value.items()))
    else:
        digest.update(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode() + b"\0")


@functools.cache
def source_file(kind):
    """The contents of the file that defines a class, if it is one of ours; other files have versions."""
    path = inspect.getsourcefile(kind)
    return Path(path).read_text() if path and Path(path).is_relative_to(tool.ROOT) and ".deps" not in path else path
