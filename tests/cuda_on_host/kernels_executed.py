"""Compares the CUDA kernels of the sources with those that ran on the host, and fails if one did not.

    python kernels_executed.py SOURCES PROGRAM LIST...

A LIST is what tests/support/chosen_device.cc writes: addresses of kernels in PROGRAM, the number of runs, and more.
"""

import re
import subprocess
import sys
from pathlib import Path

KERNEL = re.compile(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(?!__)(\w+)\(")


def registered(sources):
    """The names of all kernels."""
    return {name for path in sorted(sources.rglob("*")) if path.suffix in {".cu", ".h"}
            for name in KERNEL.findall(path.read_text())}


def symbols(program):
    """The demangled name of each function by its address."""
    lines = subprocess.run(["nm", "-C", "--defined-only", program], check=True, capture_output=True, text=True).stdout
    return {int(address, 16): name for address, kind, name in (line.split(" ", 2) for line in lines.splitlines())
            if kind in "tTwW"}


def base_name(function):
    """`f` of `void onnx_train::cuda::(anonymous namespace)::f<float>(long)`."""
    function = function.replace("(anonymous namespace)::", "")
    return re.match(r"(?:void )?(?:\w+::)*(\w+)", function)[1]


def main():
    sources, program, *lists = sys.argv[1:]
    runs = {}
    for path in lists:
        for line in Path(path).read_text().splitlines():
            address, count = map(int, line.split()[:2])
            runs[address] = runs.get(address, 0) + count
    names = symbols(program)
    executed = {base_name(names[address]) for address in runs}
    wanted = registered(Path(sources))
    print(f"CUDA kernels: {len(wanted & executed)} of {len(wanted)} ran on the host, as {len(runs)} instances, "
          f"{sum(runs.values())} times")
    missing = sorted(wanted - executed)
    if missing:
        print("never ran:", ", ".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
