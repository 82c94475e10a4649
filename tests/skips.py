"""Lists what the tests have skipped, with the reasons, and fails where that is more than tests/skips.txt allows.

    python tests/skips.py build/Testing/Temporary/LastTest.log

A line of skips.txt is a number and a reason (a regular expression): at most so many tests may be skipped for it.
"""

import re
import sys
from collections import Counter
from pathlib import Path

# The programs of GoogleTest, pytest (-rs), and a shell script, which says so itself.
SKIPPED = re.compile(r": Skipped\n(?P<unit>.+)|^SKIPPED \[(?P<times>\d+)\] \S+?: (?P<python>.+)|^(?P<script>skipped: .+)", re.M)


def skipped(log):
    counts = Counter()
    for match in SKIPPED.finditer(log):
        counts[match["unit"] or match["python"] or match["script"]] += int(match["times"] or 1)
    return counts


def allowed(text):
    lines = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(int(most), re.compile(reason)) for most, reason in lines]


def main():
    counts, rules = skipped(Path(sys.argv[1]).read_text(errors="replace")), allowed(Path(__file__).with_suffix(".txt").read_text())
    found, failures = Counter(), []
    for reason, count in counts.most_common():
        print(f"{count:6} skipped: {reason}")
        rule = next((rule for rule in rules if rule[1].fullmatch(reason)), None)
        if rule:
            found[rule] += count
        else:
            failures.append(f"no line of tests/skips.txt allows: {reason}")
    failures += [f"{count} tests are skipped, and tests/skips.txt allows {rule[0]}: {rule[1].pattern}"
                 for rule, count in found.items() if count > rule[0]]  # fmt: skip
    print("\n".join([f"{sum(counts.values())} skipped", *failures]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
