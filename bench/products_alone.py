"""The products and convolutions of the six training steps of peers.py against oneDNN alone at the same shapes.

    .deps/venv/bin/python bench/products_alone.py --write docs/performance.md

Builds the workloads' training models and runs build/bench/products_alone, which says what is compared, on each. With
--forms: what the choice between the forms of each node costs against the best form, for all workloads of peers.py.
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


def measure(workload, precision, mode="--json"):
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(workload, workload.example(), precision, Path(folder))
        printed = subprocess.run(
            [ROOT / "build/bench/products_alone", files.training, files.data, str(workload.sizes["batch"]), mode],
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


CLOSE = 1.05


def chosen_ms(node):
    return node["ms"][node["form"].split(", chosen when")[0]]


def forms_table(workloads, precision):
    """Each node's chosen form against its fastest, of all workloads together; a line for each that is not close."""
    nodes = {}
    for workload in workloads:
        nodes |= {node["node"]: node for node in measure(workload, precision, "--forms")}
    lines = ["", f"#### Chosen forms, {precision}", ""]
    lines += header(["nodes", "different shapes", f"within {CLOSE} of the fastest form", "the rule alone would be", "worst"])
    for kind, is_kind in {"products": False, "convolutions": True}.items():
        found = [node for text, node in nodes.items() if text.startswith("Conv") == is_kind]
        if not found:
            continue
        ratios = [chosen_ms(node) / min(node["ms"].values()) for node in found]
        rules = [node["rule_ms"] / min(node["ms"].values()) for node in found]
        lines.append(row([kind, str(len(found)), str(sum(r <= CLOSE for r in ratios)), str(sum(r <= CLOSE for r in rules)), number(max(ratios))]))
    slow = [node for node in nodes.values() if chosen_ms(node) > CLOSE * min(node["ms"].values())]
    if slow:
        lines += ["", *header(["node", "chosen", "ms of each form"])]
        for node in slow:
            times = ", ".join(f"{name} {ms:.3g}" for name, ms in sorted(node["ms"].items(), key=lambda item: item[1]))
            lines.append(row([f"`{node['node']}`", node["form"], times]))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a workload's title")
    parser.add_argument("--precision", default="float32,bf16", help="a table for each [float32,bf16]")
    parser.add_argument("--write", type=Path, help="document whose tables to replace")
    parser.add_argument("--forms", action="store_true", help="compare the forms of each node in the place of oneDNN")
    options = parser.parse_args()
    lines = [*measured_here(len(CORES)), "" if options.forms else "Milliseconds of one step."]
    for precision in options.precision.split(","):
        chosen = [workload for workload in WORKLOADS if options.only.lower() in workload.title.lower()]
        if options.forms:
            lines += forms_table([workload for workload in chosen if workload.exists()], precision)
            continue
        lines += tables({workload.title: measure(workload, precision) for workload in chosen}, precision)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.write:
        write_between_marks(options.write, text, "bench/products_alone.py" + " --forms" * options.forms)


if __name__ == "__main__":
    main()
