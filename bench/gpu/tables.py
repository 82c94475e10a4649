"""What gpu_check makes of the times of nodes and of ncu's counters. Pure functions."""

import collections
import csv
import json
import re

# Of ncu: time, registers, occupancy and the share of the memory's bandwidth.
COUNTERS = {
    "ms": "gpu__time_duration.sum", "registers": "launch__registers_per_thread",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "bandwidth": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}  # fmt: skip


def slowest_kernels(text):
    """Of ncu's CSV: the launch of each kernel that takes longest, of the kernels that lose most of the memory's bandwidth."""
    values = collections.defaultdict(dict)  # by launch
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        key = (re.sub(r"void |<unnamed>::|\(.*", "", row["Kernel Name"])[:60], row["ID"])
        values[key][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    longest = {}  # by kernel; a rehearsal's launches stop at once
    for (kernel, _), found in values.items():
        if len(found) == len(COUNTERS):
            row = {k: found[metric] for k, metric in COUNTERS.items()}
            row["ms"] /= 1e6
            if kernel not in longest or row["ms"] > longest[kernel]["ms"]:
                longest[kernel] = row
    worst = sorted(longest, key=lambda k: -longest[k]["ms"] * (100 - longest[k]["bandwidth"]))
    return {k: {n: round(v, 4) for n, v in longest[k].items()} for k in worst[:10]}


def by_kernel(nodes):
    """Of nodes (kernel, form, name, milliseconds, bound): their number, time and bound by kernel, the largest loss first."""
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for kernel, _, _, ms, bound in nodes:
        sums[kernel] = [round(a + b, 5) for a, b in zip(sums[kernel], (1, ms, bound))]
    return dict(sorted(sums.items(), key=lambda item: item[1][2] - item[1][1]))


def table_of_kernels(kernels, before):
    """The kernels of each step that lose most: number of nodes, time, bound, and the time before."""
    old = json.loads(before.read_text()) if before and before.exists() else {}
    lines = ["| step | kernel | count | ms | bound, ms | before, ms |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for network, precisions in kernels.items():
        for precision, found in precisions.items():
            earlier = old.get(network, {}).get(precision, {})
            total = [sum(row[i] for row in found.values()) for i in range(3)]
            for kernel, row in [("all", total), *list(found.items())[:12]]:
                was = sum(r[1] for r in earlier.values()) if kernel == "all" else earlier.get(kernel, [0, 0])[1]
                cells = [f"{network} {precision}" if kernel == "all" else "", kernel, str(row[0]), f"{row[1]:.3f}",
                         f"{row[2]:.3f}", f"{was:.3f}" if was else ""]  # fmt: skip
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
