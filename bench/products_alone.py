"""The products and convolutions of the six training steps of peers.py against oneDNN alone at the same shapes.

    .deps/venv/bin/python bench/products_alone.py --write docs/performance.md

Builds the workloads' training models and runs build/bench/products_alone, which says what is compared, on each.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from peers_table import bold, header, measured_here, number, row, write_between_marks
from peers_workloads import ROOT, WORKLOADS, make_files

CORES = sorted(os.sched_getaffinity(0))[: int(os.environ.get("PEERS_THREADS", 2))]
TOO_SLOW = 1.1


def measure(workload, precision):
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(workload, workload.example(), precision, Path(folder))
        printed = subprocess.run(
            [ROOT / "build/bench/products_alone", files.training, files.data, str(workload.sizes["batch"]), "--json"],
            check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": str(len(CORES))},
            preexec_fn=lambda: os.sched_setaffinity(0, CORES)).stdout  # fmt: skip
    return json.loads(printed)


def alone(times, ways):
    """The fastest of some ways of oneDNN; our own time where it has no fast code."""
    return min((times[way] for way in ways if way in times), default=times["ours"])


def total(report, of):
    return sum(node["count"] * of(node["ms"]) for node in report["nodes"])


def totals_row(title, report):
    ours = total(report, lambda times: times["ours"])
    given = total(report, lambda times: alone(times, ["given"]))
    best = total(report, lambda times: alone(times, ["given", "chosen"]))
    share = f"{report['counted'] / report['flops']:.0%}"
    return row([title, share, number(ours), number(given), bold(ours / given), number(best), bold(ours / best)])


def slow_rows(title, report):
    for node in report["nodes"]:
        times = node["ms"]
        ratios = [times["ours"] / alone(times, ways) for ways in (["given"], ["given", "chosen"])]
        if ratios[-1] > TOO_SLOW:
            yield row([title, str(node["count"]), f"`{node['node']}`", number(times["ours"]), *map(number, ratios)])


def tables(reports, precision):
    lines = ["", f"#### Products and convolutions, {precision}", ""]
    lines += header(["workload", "of the step's FLOP", "ours, ms", "oneDNN as given", "ratio", "at its best", "ratio"])
    lines += [totals_row(title, report) for title, report in reports.items()]
    slow = [line for title, report in reports.items() for line in slow_rows(title, report)]
    if slow:
        lines += ["", f"More than {TOO_SLOW} times as long as oneDNN at its best:", ""]
        lines += [*header(["workload", "nodes", "node", "ours, ms", "to given", "to best"]), *slow]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a workload's title")
    parser.add_argument("--precision", default="float32,bf16", help="a table for each [float32,bf16]")
    parser.add_argument("--write", type=Path, help="document whose tables to replace")
    options = parser.parse_args()
    lines = [*measured_here(len(CORES)), "Milliseconds of one step."]
    for precision in options.precision.split(","):
        chosen = [workload for workload in WORKLOADS if options.only.lower() in workload.title.lower()]
        lines += tables({workload.title: measure(workload, precision) for workload in chosen}, precision)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.write:
        write_between_marks(options.write, text, "bench/products_alone.py")


if __name__ == "__main__":
    main()
