"""scripts/gpu_check on a machine without a GPU: all of its stages in small sizes, and what it does when processes die."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tool

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench/gpu"))

import check  # noqa: E402
import tables  # noqa: E402
from googletest import GoogleTest  # noqa: E402
from stages import LeftOut, Stages  # noqa: E402

# Tests that speak as googletest does: A.dies ends its process, A.dies_after only where A.first has run in the same one; after
# B.leaks the process ends as the leak sanitizer ends it.
PROGRAM = """
    import os, signal, sys
    tests = ["A.first", "A.fails", "A.dies", "A.dies_after", "A.dies_with_status_1", "B.skips", "B.last/0", "B.leaks"]
    flags = sys.argv[1:]
    for flag in list(flags):
        if flag.startswith("--gtest_flagfile="):
            flags += open(flag.split("=", 1)[1]).read().split()
    names = next(f.split("=", 1)[1] for f in flags if f.startswith("--gtest_filter=")).split(":")
    chosen = [t for t in tests if t in names or "*" in names]
    if "--gtest_list_tests" in flags:
        print("Running main() from googletest")
        for suite in ("A.", "B."):
            found = [t for t in chosen if t.startswith(suite)]
            if found:
                print(suite, *("  " + t[2:] + ("  # GetParam() = 0" if "/" in t else "") for t in found), sep="\\n")
        sys.exit()
    status = 0
    for test in chosen:
        print(f"[ RUN      ] {test}", flush=True)
        if test == "A.dies" or (test == "A.dies_after" and chosen[0] == "A.first"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if test == "A.dies_with_status_1":  # as sanitizers do
            os._exit(1)
        result = {"A.fails": "  FAILED  ", "B.skips": "  SKIPPED "}.get(test, "       OK ")
        status |= test == "A.fails"
        print(f"[{result}] {test}" + (", where GetParam() = 0" if "/" in test and result != "       OK " else "") + " (1 ms)", flush=True)
    sys.exit(23 if "B.leaks" in chosen else status)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "tests"
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(PROGRAM))
    path.chmod(0o755)
    return GoogleTest(Stages(tmp_path, 1).run, path)


def test_a_dying_test_is_named_and_the_others_run(program):
    names = program.names("*")
    assert names == ["A.first", "A.fails", "A.dies", "A.dies_after", "A.dies_with_status_1", "B.skips", "B.last/0", "B.leaks"]
    found = program.run_all(names[:-1], 60)
    deaths = [(-11, "A.dies", ["A.first", "A.fails"]), (1, "A.dies_with_status_1", ["A.dies_after"])]
    assert [(d.status, d.test, d.before) for d in found.deaths] == deaths
    assert (found.passed, found.failed, found.skipped) == (["A.first", "A.dies_after", "B.last/0"], ["A.fails"], ["B.skips"])
    assert not found.not_run


def test_a_process_that_dies_after_its_tests_is_no_test_s_death(program):
    found = program.run_all(["A.first", "B.leaks"], 60)
    assert [(d.status, d.test, d.before) for d in found.deaths] == [(23, "after the last test", ["A.first", "B.leaks"])]
    assert found.passed == ["A.first", "B.leaks"] and not found.not_run


def test_a_program_of_tests_runs_in_shards_and_says_what_became_of_each(program, tmp_path):
    def run(chosen):
        log = tmp_path / "log"
        done = subprocess.run([sys.executable, ROOT / "bench/gpu/googletest.py", program.tests, "--filter", chosen, "--log", log],
                              capture_output=True, text=True)  # fmt: skip
        assert "[ RUN      ] A.first" in log.read_text()
        return done.returncode, done.stdout.splitlines()

    assert run("A.first:B.skips") == (0, ["2 tests: 1 passed, 1 skipped, 0 failed, 0 died, 0 not run"])
    status, lines = run("*")
    assert status == 1 and lines[0] == "8 tests: 4 passed, 1 skipped, 1 failed, 3 died, 0 not run"
    assert sorted(lines[1:]) == ["died with status -11: A.dies", "died with status 1: A.dies_with_status_1",
                                 "died with status 23: after the last test", "failed: A.fails"]  # fmt: skip


def test_tests_are_shared_among_processes(program):
    found = program.run_shared(["A.first", "B.skips", "A.dies_after", "B.last/0"], 2, 60)
    assert [(d.test, d.before) for d in found.deaths] == [("A.dies_after", ["A.first"])]
    assert sorted(found.passed + found.skipped) == ["A.first", "B.last/0", "B.skips"]


def test_a_program_that_never_starts_ends(tmp_path):
    found = GoogleTest(Stages(tmp_path, 1).run, tmp_path / "missing").run_all(["A.first"], 60)
    assert found.deaths[0].status == 127 and found.not_run == ["A.first"]


def test_what_has_passed_is_not_run_again(tmp_path):
    binary = tmp_path / "binary"
    binary.write_text("1")
    runs = []

    def another_day(only=None):
        stages = Stages(tmp_path, 1, only, [binary])
        stages.stage("passes", 10, lambda: runs.append("passes") or {"value": 1})
        stages.stage("fails", 10, lambda: runs.append("fails") or 1 / 0)
        return {row["stage"]: row["ok"] for row in json.loads((tmp_path / "results.json").read_text())}

    assert another_day() == {"passes": True, "fails": False}
    another_day()
    assert runs == ["passes", "fails", "fails"]
    another_day(only=["passes"])
    assert len(runs) == 3
    binary.write_text("2")  # what passed says nothing of other binaries
    another_day(only=["passes"])
    assert runs[3:] == ["passes"]


def test_a_stage_without_time_has_no_row(tmp_path):
    stages = Stages(tmp_path, 0)
    stages.stage("late", 10, dict)
    assert stages.left_out == {"late": "no time is left"} and not stages.rows

    def refuse():
        raise LeftOut("reason")

    stages = Stages(tmp_path, 1)
    stages.stage("refused", 10, refuse)
    assert stages.left_out == {"refused": "reason"}


def test_a_command_ends_with_its_stage(tmp_path):
    stages = Stages(tmp_path, 1)
    stages.stage("slow", 1, lambda: {"status": stages.run(["sleep", "30"])[0]})
    assert stages.rows[0]["status"] == 124 and stages.rows[0]["seconds"] < 5


def test_the_kernels_of_ncu_that_lose_most():
    lines = ['"ID","Kernel Name","Metric Name","Metric Value"']
    for number, kernel, ms, bandwidth in (1, "void <unnamed>::slow(float)", "4,000,000", "10"), (2, "fast(int)", "1000", "95"), \
            (3, "fast(int)", "2000", "95"):  # fmt: skip
        for metric, value in zip(tables.COUNTERS.values(), (ms, "32", "50", bandwidth)):
            lines.append(f'"{number}","{kernel}","{metric}","{value}"')
    found = tables.slowest_kernels("==PROF== Connected\n" + "\n".join(lines))
    assert list(found) == ["slow", "fast"]
    assert found["slow"] == {"ms": 4.0, "registers": 32.0, "occupancy": 50.0, "bandwidth": 10.0} and found["fast"]["ms"] == 0.002


def test_all_stages_run_on_the_host(tmp_path):
    environment = os.environ | {"OUT": str(tmp_path)}
    chosen = "*CudaCollectives*:All/OpCases.Holds/Add*"
    done = subprocess.run([ROOT / "scripts/gpu_check", "--on-host", "--filter", chosen, "--precisions", "float32,bf16"], env=environment,
                          capture_output=True, text=True, timeout=600)  # fmt: skip
    rows = {row["stage"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    assert {name: row for name, row in rows.items() if not row["ok"]} == {}, done.stderr[-2000:]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert set(rows) == {"machine", "tests", "deaths", "memcheck", "racecheck", "losses", "digits", "gpt", "ranks", "gpt2 float32",
                         "lstm float32", "gpt2 bf16", "lstm bf16", "forms", "qwen 0.5b", "counters"}  # fmt: skip
    assert rows["tests"]["passed"] > 0 and rows["machine"]["gpu"] == "none"
    assert set(rows["forms"]) > {form for form, (network, *_) in check.FORMS.items() if network in check.SMALL}
    again = subprocess.run([ROOT / "scripts/gpu_check", "--on-host", "--precisions", "float32,bf16"], env=environment, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0 and "stage" not in again.stdout
    assert tool.CUDA_ON_HOST.exists()
