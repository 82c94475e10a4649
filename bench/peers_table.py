"""The tables that peers.py prints and writes into a document."""

import datetime
import importlib.metadata
import math
import re
import statistics
from pathlib import Path

import peers_contestants

THEIRS = ["eager", "compile", "jax", "ort-training"]  # the fastest of them is the bar
TITLES = {
    "eager": "PyTorch eager", "compile": "torch.compile", "jax": "JAX", "onnxruntime": "ONNX Runtime",
    "ort-training": "ONNX Runtime Training", "ours": "ours",
}  # fmt: skip
ABSENT = "–"


def cpu_name():
    """With its family and model, by which virtual machines tell apart what they call by one name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    numbers = "".join(f", {key.split()[-1]} {said[key]}" for key in ("cpu family", "model") if key in said)
    return said.get("model name", "unknown CPU") + numbers


def measured_here(threads):
    """The heading of what was measured on this machine, and when."""
    return [f"### {cpu_name()}", "", f"{threads} threads, {datetime.date.today()}."]


def took_part(results, kind):
    return kind in results and bool(results[kind].times)


def median(result):
    return statistics.median(result.times)


def quartiles(result):
    if len(result.times) < 4:
        return min(result.times), max(result.times)
    low, _, high = statistics.quantiles(result.times, n=4)
    return low, high


def number(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def time_cell(results, kind):
    if not took_part(results, kind):
        return ABSENT
    low, high = quartiles(results[kind])
    return f"{number(median(results[kind]))} ({number(low)}–{number(high)})"


def speed(results):
    """How many times as fast as the fastest of theirs; nothing where one side is absent."""
    best = [median(results[kind]) for kind in THEIRS if took_part(results, kind)]
    return min(best) / median(results["ours"]) if best and took_part(results, "ours") else None


def memory_ratio(results):
    """Of ours to the least of theirs."""
    least = [results[kind].memory for kind in THEIRS if took_part(results, kind)]
    return results["ours"].memory / min(least) if least and took_part(results, "ours") and min(least) > 0 else None


def compared(rows):
    """The results of the workloads that were measured; of others the row says why not."""
    return [measured[0] for measured in rows.values() if not isinstance(measured, str)]


def geometric_mean(values):
    positive = [v for v in values if v is not None and v > 0]
    return math.exp(statistics.mean(map(math.log, positive))) if positive else None


def bold(value):
    return ABSENT if value is None else f"**{value:.2f}**"


def bound_fraction(bound, results, kind):
    return f"{bound['bound'] / median(results[kind]):.0%}" if took_part(results, kind) else ABSENT


def row(cells):
    return "| " + " | ".join(cells) + " |"


def header(cells):
    return [row(cells), row(["---", *["---:"] * (len(cells) - 1)])]


def times_table(rows, kinds):
    lines = header(["step, ms (quartiles)", *(TITLES[kind] for kind in kinds), "times as fast"])
    for title, measured in rows.items():
        if isinstance(measured, str):
            lines.append(row([title, *[ABSENT] * len(kinds), ABSENT]))
            continue
        results, _ = measured
        lines.append(row([title, *(time_cell(results, kind) for kind in kinds), bold(speed(results))]))
    mean = geometric_mean([speed(results) for results in compared(rows)])
    return [*lines, row(["geometric mean", *[""] * len(kinds), bold(mean)])]


def bounds_table(rows, kinds):
    peers = [TITLES[kind] for kind in kinds]
    lines = header(["arithmetic bound", "GFLOP", "GFLOP/s of a large product", "bound, ms", *peers])
    for title, measured in rows.items():
        if isinstance(measured, str):
            continue
        results, bound = measured
        fractions = [bound_fraction(bound, results, kind) for kind in kinds]
        peak = ", ".join(f"{value:.0f} {name}" for name, value in bound["peak"].items())
        lines.append(row([title, number(bound["flops"] / 1e9), peak, number(bound["bound"]), *fractions]))
    return lines


def memory_table(rows, kinds):
    lines = header(["memory, MiB", "weights, moments, batch", *(f"{TITLES[k]}, beyond" for k in kinds), "ratio"])
    for title, measured in rows.items():
        if isinstance(measured, str):
            continue
        results, bound = measured
        cells = [number(results[kind].memory / 2**20) if took_part(results, kind) else ABSENT for kind in kinds]
        lines.append(row([title, number(bound["inherent"] / 2**20), *cells, bold(memory_ratio(results))]))
    mean = geometric_mean([memory_ratio(results) for results in compared(rows)])
    return [*lines, row(["geometric mean", "", *[""] * len(kinds), bold(mean)])]


def absences(rows):
    """Why a row, or a contestant in it, is missing."""
    lines = [f"- {title}: {measured}" for title, measured in rows.items() if isinstance(measured, str)]
    for title, measured in rows.items():
        for kind, result in ({} if isinstance(measured, str) else measured[0]).items():
            if result.error:
                lines.append(f"- {TITLES[kind]}, {title}: {result.error}")
    return ["", *lines] if lines else []


def took_part_anywhere(kind, measured):
    return any(took_part(results, kind) for rows in measured.values() if rows for results in compared(rows))


def versions(measured, plain_adamw):
    """Of the libraries whose contestants took part."""
    import torch

    optimizer = "AdamW" if plain_adamw else "AdamW (fused)"
    others = {"jax": lambda: importlib.metadata.version("jax"), "onnxruntime": lambda: importlib.metadata.version("onnxruntime"),
              "ort-training": lambda: peers_contestants.version("ort-training")}  # fmt: skip
    named = [f"{TITLES[kind]} {version()}" for kind, version in others.items() if took_part_anywhere(kind, measured)]
    return ", ".join([f"PyTorch {torch.__version__} with {optimizer}", *named]) + "."


def tables(measured, threads, plain_adamw):
    lines = [*measured_here(threads), versions(measured, plain_adamw)]
    for precision, rows in measured.items():
        if rows is None:
            lines += ["", f"#### {precision}", "", "Left out: this onnx-train builds no training models in it."]
            continue
        kinds = [kind for kind in TITLES if any(kind in results for results in compared(rows))]
        autocast = "" if precision == "float32" else " (PyTorch: autocast to bfloat16)"
        lines += ["", f"#### {precision}{autocast}", "", *times_table(rows, kinds)]
        lines += ["", *bounds_table(rows, kinds), "", *memory_table(rows, kinds), *absences(rows)]
    return "\n".join(lines) + "\n"


def write_between_marks(path, text, script="bench/peers.py"):
    """Puts `text` between the script's two marks for this processor: in place of an older measurement on one, else
    behind those on other processors; makes the document when there is none."""
    begin, end = (f"<!-- {script} on {cpu_name()}: {word} -->\n" for word in ("begin", "end"))
    old = path.read_text() if path.exists() else "# Performance\n"
    if begin not in old:
        others = list(re.finditer(f"<!-- {re.escape(script)} on .*: end -->\n", old))
        at = others[-1].end() if others else len(old)
        old = f"{old[:at]}\n{begin}{end}{old[at:]}"
    before, rest = old.split(begin)
    path.write_text(before + begin + text + end + rest.split(end)[1])
