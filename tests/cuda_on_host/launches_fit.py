"""Compares what kernels were launched with on the host with what the device has room for, and fails if one would not start.

    python launches_fit.py CUOBJDUMP MODULE PROGRAM LIST...

A device refuses a launch with more registers, threads or shared memory than a block may have ("too many resources requested for
launch"). Registers and static shared memory are the compiler's, so the host cannot know them: cuobjdump reads them from MODULE,
libonnx_train_cuda.so. A LIST is what tests/support/chosen_device.cc writes: the address of a kernel in PROGRAM, its runs, the
most threads of a block and the most bytes of dynamic shared memory. Limits are those of compute capability 9.0, of
docs.nvidia.com/cuda/cuda-c-programming-guide (Technical Specifications per Compute Capability).
"""

import re
import subprocess
import sys
from pathlib import Path

from kernels_executed import base_name, symbols

REGISTERS = 65536  # of a block
REGISTERS_AT_ONCE = 256  # in which a warp gets them
WARP = 32
SHARED_BYTES = 227 << 10  # of a block, static and dynamic


def demangled(names):
    text = "\n".join(names)
    return subprocess.run(["c++filt"], input=text, check=True, capture_output=True, text=True).stdout.splitlines()


def comparable(function):
    """One text for a kernel by either compiler: name and template arguments, without names of anonymous namespaces."""
    function = re.sub(r"^void ", "", function)
    function = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|_INTERNAL_\w+::|<unnamed>::", "", function)
    depth = 0
    for i, character in enumerate(function):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:  # the parameters, in which the compilers spell types differently
            return function[:i]
    return function


def resources(cuobjdump, module):
    """(registers of a thread, bytes of static shared memory, most threads of a block or None) by kernel."""
    usage = subprocess.run([cuobjdump, "-res-usage", module], check=True, capture_output=True, text=True).stdout
    found = dict(re.findall(r"Function (\w+):\s*\n\s*(.*)", usage))
    elf = subprocess.run([cuobjdump, "-elf", module], check=True, capture_output=True, text=True).stdout
    most = {}
    for section in re.split(r"\n(?=\.nv\.info\.)", elf):
        name = re.match(r"\.nv\.info\.(\w+)", section)
        bound = re.search(r"EIATTR_MAX_THREADS.*?Value:\s*(0x[0-9a-f]+) (0x[0-9a-f]+) (0x[0-9a-f]+)", section, re.DOTALL)
        if name and bound:
            x, y, z = (int(value, 16) for value in bound.groups())
            most[name[1]] = x * y * z
    kernels = {}
    for (mangled, text), name in zip(found.items(), demangled(found)):
        registers, shared = (int(re.search(rf"{key}:(\d+)", text)[1]) for key in ("REG", "SHARED"))
        name = comparable(name)
        before = kernels.get(name, (0, 0, None))  # of another overload
        bounds = [bound for bound in (before[2], most.get(mangled)) if bound is not None]
        kernels[name] = max(before[0], registers), max(before[1], shared), min(bounds, default=None)
    return kernels


def misfit(kernel, threads, dynamic):
    """Why a block of a kernel does not fit; None if it does."""
    registers, static, most = kernel
    warps = -(-threads // WARP)
    needed = warps * (-(-registers * WARP // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE)
    if most is not None and threads > most:
        return f"{threads} threads, __launch_bounds__ says {most}"
    if needed > REGISTERS:
        return f"{threads} threads of {registers} registers: {needed} of {REGISTERS}"
    if static + dynamic > SHARED_BYTES:
        return f"{static} + {dynamic} bytes of shared memory, of {SHARED_BYTES}"
    return None


def main():
    cuobjdump, module, program, *lists = sys.argv[1:]
    kernels = resources(cuobjdump, module)
    names = symbols(program)
    launched = {}
    for path in lists:
        for line in Path(path).read_text().splitlines():
            address, _, threads, shared = map(int, line.split())
            name = comparable(names[address])
            if "_test::" in name:  # a kernel of the tests alone
                continue
            before = launched.get(name, (0, 0))
            launched[name] = max(before[0], threads), max(before[1], shared)
    unknown = sorted(name for name in launched if name not in kernels)
    misfits = {name: why for name, (threads, shared) in sorted(launched.items())
               if name in kernels and (why := misfit(kernels[name], threads, shared))}  # fmt: skip
    largest = max(((kernels[n][0] * t, n) for n, (t, _) in launched.items() if n in kernels), default=(0, "none"))
    print(f"launches: {len(launched) - len(unknown)} kernels of {len(launched)} compared with {Path(module).name}; most registers of a "
          f"block: {largest[0]} of {REGISTERS} ({base_name(largest[1])})")  # fmt: skip
    for name, why in misfits.items():
        print(f"does not fit: {name}: {why}")
    for name in unknown:
        print(f"not in the module: {name}")
    return 1 if misfits or unknown or not launched else 0


if __name__ == "__main__":
    sys.exit(main())
