"""The table of the zoo, for a terminal and as a page. A page is read again, so that a run of some rows keeps the others."""

import re

from zoo.check import Row

HEAD = """# The zoo

What onnx-train makes of models as their frameworks export them: each row is one export of a tiny model with random
weights, dropout off, batch norm in training mode. `.deps/venv/bin/python models/zoo/run.py --markdown docs/zoo.md`
writes this page; `--only 'BERT*'` checks some rows, and leaves the others as they were.

- **check**: `onnx-train check` and `build` accept the file, with the options in the notes.
- **gradient**: the largest error of any parameter's gradient against PyTorch in float64, relative to the tensor's largest
  element; 1e-4 passes.
- **curve**: the largest relative distance from PyTorch's losses in ten steps of training in float32; 1e-3 passes.
- **runtime**: the same distance between ten flattened steps on ONNX Runtime and those of `fit`; 1e-3 passes.
"""
COLUMNS = ["", "model", "exporter", "opset", "parameters", "check", "gradient", "curve", "runtime", "notes"]
NOT_RUN = "not run"


def mark(row):
    return "ok" if row.ok else "fails" if row.exported else "-"


def cells(row):
    return [mark(row), row.name, row.exporter, row.opset, row.parameters, row.check, row.gradient, row.curve, row.runtime, row.notes]


def line(row):
    widths = [5, 30, 14, 3, 8, 6, 6, 6, 6, 0]
    return " ".join(cell.ljust(width) for cell, width in zip(cells(row), widths))


def read(path):
    """(name, exporter) -> row of a page."""
    rows = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        fields = [cell.strip().replace("&#124;", "|").replace("&lt;", "<") for cell in text.strip().strip("|").split("|")]
        if text.startswith("| ") and len(fields) == len(COLUMNS) and fields[0] in ("ok", "fails", "-"):
            row = Row(*fields[1:], ok=fields[0] == "ok", exported=fields[0] != "-")
            rows[row.name, row.exporter] = row
    return rows


def page(families, rows):
    """All rows in the order of the families; `rows` has those that ran."""
    every = {f.title: [rows.get((e.name, x), Row(e.name, x, notes=NOT_RUN)) for e in f.entries for x in e.exporter_names()]
             for f in families}  # fmt: skip
    flat = [row for of_family in every.values() for row in of_family]
    missing = sum(row.notes == NOT_RUN for row in flat)
    counts = f"{sum(r.ok for r in flat)} of {len(flat)} rows pass, {sum(r.exported and not r.ok for r in flat)} fail, " \
             f"{sum(not r.exported for r in flat) - missing} have no file of their model because of their exporter, {missing} have not run.\n"  # fmt: skip
    text = [HEAD, counts]
    for title, of_family in every.items():
        text += [f"## {title}\n", "| " + " | ".join(COLUMNS) + " |", "| " + " | ".join(["---"] * len(COLUMNS)) + " |"]
        text += ["| " + " | ".join(escaped(cell) for cell in cells(row)) + " |" for row in of_family]
        text.append("")
    return "\n".join(text)


def escaped(cell):
    """A cell of a page: what an exporter says may hold brackets, which a page takes for links, and names of its files."""
    cell = re.sub(r"\S+\.py\b", "a file of the exporter", cell).translate(str.maketrans("[]", "()"))
    return cell.replace("|", "&#124;").replace("<", "&lt;")
