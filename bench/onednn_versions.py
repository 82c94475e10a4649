"""Products and convolutions of the six training steps of peers.py, by three libraries: the oneDNN that we link (3.2, for
OpenMP), the newest one on PyPI (for SYCL, with its runtime), and PyTorch with what it has inside.

    bench/install_contestants onednn
    .deps/venv/bin/python bench/onednn_versions.py --write docs/performance.md

Each shape once per library, in turn, on the same two cores; a shape is counted as often as the step has it. The shapes are
those that build/bench/products_alone finds in the steps' plans.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from peers_table import bold, header, measured_here, number, row, write_between_marks
from peers_workloads import ROOT, WORKLOADS
from products_alone import CORES, measure

NEWEST = ROOT / "build" / "contestants" / "onednn"
SIX = WORKLOADS[:6]


def computation(node, precision):
    """A node of products_alone as bench/onednn_versions.cc reads it, or None: batched products, and other strides."""
    kind = "bf16" if precision == "bf16" else "f32"
    shapes = [[int(size) for size in text.split(",")] for text in re.findall(r"(?<!=)\[([\d,]+)\]", node)]
    if node.startswith("Gemm"):
        ta, tb = ("transA=1" in node), ("transB=1" in node)
        m, k = reversed(shapes[0]) if ta else shapes[0]
        return f"product {m} {k} {shapes[1][0] if tb else shapes[1][1]} {ta:d} {tb:d} {kind}"
    if not node.startswith("Conv") or len(shapes[0]) != 4 or "group=" in node or "channels_last" not in node:
        return None
    which = "input" if "ConvGradInput" in node else "weight" if "ConvGradWeight" in node else "forward"
    stride = int(re.search(r"strides=\[(\d+)", node)[1])
    x, w = {"forward": (0, 1), "input": (2, 1), "weight": (0, 2)}[which]
    batch, size, _, channels = shapes[x]
    return f"conv {which} {batch} {channels} {size} {shapes[w][0]} {shapes[w][2]} {stride} {kind}"


class Library:
    """A process that computes one line after the other."""

    def __init__(self, command, variables=()):
        environment = os.environ | {"OMP_NUM_THREADS": str(len(CORES)), "ONEDNN_VERBOSE": "none"} | dict(variables)
        start = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
                                        preexec_fn=lambda: os.sched_setaffinity(0, CORES))  # fmt: skip
        self.milliseconds("product 8 8 8 0 0 f32")
        self.start = time.perf_counter() - start - 0.3  # the time of that product

    def milliseconds(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended at '{line}'")
        return float("nan") if answer == "-" else float(answer)

    def megabytes(self):
        """Of the libraries that the process has mapped, which is what a program has to ship."""
        paths = set(re.findall(r"/\S+\.so[.\d]*$", Path(f"/proc/{self.process.pid}/maps").read_text(), re.M))
        shipped = [Path(path) for path in paths if not path.startswith(("/lib/", "/usr/lib/"))]
        return sum(path.stat().st_size for path in shipped) / 1e6


def compiled(name, environment):
    program = ROOT / "build" / "bench" / f"onednn_{name}"
    subprocess.run(["c++", "-O2", "-std=c++20", f"-I{environment}/include", ROOT / "bench/onednn_versions.cc", "-o", program,
                    f"-L{environment}/lib", "-ldnnl", f"-Wl,-rpath,{environment}/lib", f"-Wl,-rpath-link,{environment}/lib"],
                   check=True)  # fmt: skip
    return program


def libraries():
    ours = Library([compiled("linked", ROOT / ".deps/venv")])
    newest = Library([compiled("newest", NEWEST)], {"LD_LIBRARY_PATH": f"{NEWEST}/lib",
                                                    "OCL_ICD_FILENAMES": f"{NEWEST}/lib/libintelocl.so"})  # fmt: skip
    return {"oneDNN 3.2": ours, "oneDNN 3.13": newest, "PyTorch": Library([sys.executable, __file__, "--torch"])}


def torch_worker():
    """What bench/onednn_versions.cc does, in PyTorch."""
    import torch

    torch.set_num_threads(len(CORES))
    types = {"f32": torch.float32, "bf16": torch.bfloat16}

    def product(m, k, n, ta, tb, kind):
        a = torch.full((k, m) if ta == "1" else (m, k), 0.01, dtype=types[kind])
        b = torch.full((n, k) if tb == "1" else (k, n), 0.01, dtype=types[kind])
        return lambda: torch.mm(a.T if ta == "1" else a, b.T if tb == "1" else b)

    def convolution(which, kind, batch, channels, size, filters, kernel, stride):
        def last(*shape):
            return torch.full(shape, 0.01, dtype=types[kind]).contiguous(memory_format=torch.channels_last)

        pad = (kernel - 1) // 2
        to = (size + 2 * pad - kernel) // stride + 1
        x, w, dy = last(batch, channels, size, size), last(filters, channels, kernel, kernel), last(batch, filters, to, to)
        if which == "forward":
            return lambda: torch.nn.functional.conv2d(x, w, None, stride, pad)
        mask = [which == "input", which == "weight", False]
        return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask)

    def milliseconds(run):
        for _ in range(3):
            run()
        fastest, begin = float("inf"), time.perf_counter()
        while time.perf_counter() - begin < 0.3:
            start = time.perf_counter()
            run()
            fastest = min(fastest, time.perf_counter() - start)
        return 1e3 * fastest

    with torch.no_grad():
        for line in sys.stdin:
            what, *words = line.split()
            if what == "product":
                run = product(*(int(word) for word in words[:3]), *words[3:])
            else:
                run = convolution(words[0], words[-1], *(int(word) for word in words[1:-1]))
            print(milliseconds(run), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="float32,bf16", help="a table for each [float32,bf16]")
    parser.add_argument("--write", type=Path, help="document whose tables to replace")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        return torch_worker()
    found = libraries()
    lines = [*measured_here(len(CORES)), "Milliseconds of the products and convolutions of one step, each the fastest of many."]
    for precision in options.precision.split(","):
        lines += ["", f"#### Libraries, {precision}", "", *header(["workload", "shapes", *found, "3.13 to 3.2", "PyTorch to 3.2"])]
        for workload in SIX:
            totals, shapes = dict.fromkeys(found, 0.0), 0
            for node in measure(workload, precision)["nodes"]:
                line = computation(node["node"], precision)
                if line is None:
                    continue
                shapes += 1
                for name, library in found.items():
                    totals[name] += node["count"] * library.milliseconds(line)
            if shapes:
                first, newest, torch = totals.values()
                lines.append(row([workload.title, str(shapes), *map(number, totals.values()), bold(newest / first), bold(torch / first)]))
    lines += ["", *header(["library", "MB of libraries in the process", "start to the first product, s"])]
    lines += [row([name, number(library.megabytes()), number(library.start)]) for name, library in found.items()]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.write:
        write_between_marks(options.write, text, "bench/onednn_versions.py")


if __name__ == "__main__":
    main()
