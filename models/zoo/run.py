"""Checks the models of the zoo against their frameworks and ONNX Runtime, and prints a table.

.deps/venv/bin/python models/zoo/run.py [--only PATTERN] [--exporter NAME] [--markdown docs/zoo.md]
"""

import argparse
import fnmatch
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[0] = str(ROOT / "models")  # not this folder: `zoo` is the package
sys.path.insert(1, str(ROOT / "tests" / "python"))

import exports  # noqa: E402  (needs the path)
import torch  # noqa: E402
from zoo.check import check  # noqa: E402
from zoo.entry import name_of  # noqa: E402
from zoo.families import families  # noqa: E402
from zoo.table import line, page, read  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="names, as a glob; several are separated by |")
    parser.add_argument("--exporter", default="*", help="exporters, as a glob")
    parser.add_argument("--markdown", type=Path, help="write the table here after each row; rows that do not run stay")
    parser.add_argument("--keep", type=Path, help="keep the files in this folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    exports.remember()

    found = families()
    rows = read(options.markdown) if options.markdown else {}
    ran = []
    for entry, exporter in [(e, x) for family in found for e in family.entries for x in e.exporters]:
        name = name_of(exporter)
        wanted = any(fnmatch.fnmatch(entry.name, pattern) for pattern in options.only.split("|"))
        if not wanted or not fnmatch.fnmatch(name, options.exporter):
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            if options.keep:
                folder = options.keep / f"{entry.name}-{name}".replace(" ", "_")
                folder.mkdir(parents=True, exist_ok=True)
            row = rows[entry.name, name] = check(entry, exporter, Path(folder))
        ran.append(row)
        print(line(row), f"({time.monotonic() - begin:.0f} s)", flush=True)
        if options.markdown:
            options.markdown.write_text(page(found, rows))
    failures = sum(row.exported and not row.ok for row in ran)
    print(f"{sum(row.ok for row in ran)} of {len(ran)} rows pass, {failures} fail; the others are not exported")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
