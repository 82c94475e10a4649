"""How long OpenMP's threads spin at a barrier: bounded by us, unless the user says otherwise (docs/library.md)."""

import os
import re
import subprocess
import sys

import pytest
import tool

LIBRARY = tool.COMMAND.parent / "libonnx_train.so.0"
# Loads the library as a program loads a plug-in, and says what became of the environment.
PROGRAM = f"""
import ctypes
process = ctypes.CDLL(None)
process.getenv.restype = ctypes.c_char_p
environment = ctypes.c_void_p.in_dll(process, "environ")
before = environment.value
ctypes.CDLL({str(LIBRARY)!r})
print("untouched", environment.value == before, process.getenv(b"GOMP_SPINCOUNT"))
"""


def run(arguments, **variables):
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    result = subprocess.run(
        list(map(str, arguments)), env=clean | {"OMP_DISPLAY_ENV": "VERBOSE"} | variables, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result


def spin_count(result):
    return int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", result.stderr)[1])


@pytest.mark.parametrize("program", [[tool.COMMAND, "devices"], [sys.executable, "-c", PROGRAM]], ids=["command", "library"])
def test_spinning_is_bounded_unless_the_user_says_otherwise(program):
    assert spin_count(run(program)) == 10000
    assert spin_count(run(program, GOMP_SPINCOUNT="77")) == 77
    assert spin_count(run(program, OMP_WAIT_POLICY="active")) > 1e6
    assert spin_count(run(program, OMP_WAIT_POLICY="passive")) == 0


def test_the_environment_is_what_it_was():
    assert "untouched True None" in run([sys.executable, "-c", PROGRAM]).stdout
    assert "untouched True b'77'" in run([sys.executable, "-c", PROGRAM], GOMP_SPINCOUNT="77").stdout
