"""Runs tests of a googletest program in several processes, and finds the test in which a process dies.

    python googletest.py PROGRAM --log FILE [--filter FILTER] [--processes N] [--minutes M]
"""

import argparse
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from stages import Stages

# The tests of devices: operator cases, sessions and trainings.
DEVICE_TESTS = ("Cuda.*:CudaAttention*:*CudaGenerated*:All/OpCases.*:Session*:Trainer*:Checkpoint*:Initialization*:*MergeUpdates*:"
                "MergeLookups*:*CudaCollectives*")  # fmt: skip
MOST_DEATHS = 20  # of one share of the tests


@dataclass
class Death:
    """A process that ended within a test: its status, the test, and those that it had run before."""

    status: int
    test: str
    before: list


@dataclass
class Outcome:
    passed: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    deaths: list = field(default_factory=list)
    not_run: list = field(default_factory=list)
    log: str = ""


class GoogleTest:
    """`run(command, timeout, **variables)` -> (status, output) starts a process; `tests` is the program."""

    def __init__(self, run, tests, **variables):
        self.run, self.tests, self.variables = run, tests, variables

    def names(self, chosen):
        """The tests that a filter chooses, in the order in which one process runs them."""
        status, output = self.run([self.tests, "--gtest_list_tests", f"--gtest_filter={chosen}"], 60, **self.variables)
        if status != 0:
            raise RuntimeError(f"--gtest_list_tests: status {status}: {output.strip()[-200:]}")
        names, suite = [], ""
        for line in output.splitlines():
            text = line.split("#")[0].rstrip()
            if text.startswith("  ") and suite:
                names.append(suite + text.strip())
            elif re.fullmatch(r"\S+\.", text):
                suite = text
        return names

    def run_once(self, names, timeout, tool=(), **variables):
        """One process for these tests: its status, and what it printed."""
        with tempfile.TemporaryDirectory() as folder:
            flags = Path(folder) / "flags"
            flags.write_text(f"--gtest_filter={':'.join(names)}\n")
            return self.run([*tool, self.tests, f"--gtest_flagfile={flags}"], timeout, TEST_TMPDIR=folder + "/",
                            **self.variables, **variables)  # fmt: skip

    def run_all(self, names, timeout):
        """These tests by one process after another: each goes on after the test in which the one before it died."""
        outcome, rest = Outcome(), list(names)
        while rest:
            status, output = self.run_once(rest, timeout)
            outcome.log += output
            begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
            ended = set()
            for result, found in ("OK", outcome.passed), ("FAILED", outcome.failed), ("SKIPPED", outcome.skipped):
                names = re.findall(rf"^\[ *{result} *\] ([^\s,]+).* \(\d+ ms\)$", output, re.MULTILINE)
                found += names
                ended.update(names)
            if ended.issuperset(rest):
                if status not in (0, 1):  # in what the process ends with, which may be any test's doing
                    outcome.deaths.append(Death(status, "after the last test", begun))
                return outcome
            if not begun or len(outcome.deaths) == MOST_DEATHS:
                outcome.deaths.append(Death(status, "before the first test" if not begun else "after too many", []))
                outcome.not_run += rest
                return outcome
            outcome.deaths.append(Death(status, begun[-1], begun[:-1]))
            if status == 124:  # there is no time for the others
                outcome.not_run += rest[len(begun) :]
                return outcome
            rest = rest[rest.index(begun[-1]) + 1 :]
        return outcome

    def run_shared(self, names, processes, timeout):
        """The same, shared among processes as googletest shares them: test i belongs to process i mod `processes`."""
        with ThreadPoolExecutor(processes) as pool:
            outcomes = list(pool.map(lambda i: self.run_all(names[i::processes], timeout), range(processes)))
        whole = Outcome()
        for outcome in outcomes:
            for part in vars(whole):
                setattr(whole, part, getattr(whole, part) + getattr(outcome, part))
        return whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--log", type=Path, required=True, help="what the tests print")
    parser.add_argument("--filter", default=f"{DEVICE_TESTS}-*Allocat*", help="googletest's [those of devices]")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600)
    options = parser.parse_args()
    program = GoogleTest(Stages(options.log.parent, options.minutes).run, options.program)
    names = program.names(options.filter)
    found = program.run_shared(names, options.processes, 60 * options.minutes)
    options.log.write_text(found.log)
    print(f"{len(names)} tests: {len(found.passed)} passed, {len(found.skipped)} skipped, {len(found.failed)} failed, "
          f"{len(found.deaths)} died, {len(found.not_run)} not run")  # fmt: skip
    for name in found.failed:
        print(f"failed: {name}")
    for death in found.deaths:
        print(f"died with status {death.status}: {death.test}")
    return 0 if len(found.passed) + len(found.skipped) == len(names) > 0 and not found.deaths else 1


if __name__ == "__main__":
    sys.exit(main())
