"""A training step beside other programs: ours and PyTorch's, alone, beside busy processes, on one core, with a quota.

    .deps/venv/bin/python bench/busy.py                 # the machine has to be idle otherwise; about 20 minutes
    .deps/venv/bin/python bench/busy.py --quick         # two minutes, for the order of magnitude
    .deps/venv/bin/python bench/busy.py --spin 1000,3000,10000 --contestants ours

Ours and PyTorch train the same networks on the same batch, both with the number of threads that they take by default,
PyTorch with its fused AdamW, once with its default waiting and once with passive waiting. In each place (alone, beside 1, 2
and 4 processes that only count, on one core, with a quota of half a core and of one and a half) they take turns of a few
seconds, in rounds. A turn is a new process; its first steps do not count. The table has the median over all steps and, in
brackets, the least; then the ratio of the median to the one alone. A quota needs root and control groups that can be
written; without them its rows say so.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from peers import pin_and_die_with_parent
from peers_table import write_between_marks
from peers_workloads import COMMAND, WORKLOADS, make_files

WARM_UP = 3
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OMP_PROC_BIND")
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
BUSY = [sys.executable, "-S", "-c", "while True: pass"]
QUOTA_PERIOD = 100000  # microseconds


class Group:
    """A control group of this run, with a quota of processor time; `join` is called between fork and exec."""

    def __init__(self, cores):
        older = Path("/sys/fs/cgroup/cpu")
        self.folder = (older if older.is_dir() else Path("/sys/fs/cgroup")) / f"onnx_train_busy_{os.getpid()}"
        self.folder.mkdir()
        try:
            quota = int(cores * QUOTA_PERIOD)
            if older.is_dir():
                (self.folder / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD))
                (self.folder / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (self.folder / "cpu.max").write_text(f"{quota} {QUOTA_PERIOD}")
        except OSError:
            self.remove()
            raise

    def join(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        for _ in range(100):
            try:
                return self.folder.rmdir()
            except OSError:  # its last process is about to end
                time.sleep(0.1)


@contextmanager
def busy_processes(number):
    processes = [subprocess.Popen(BUSY, preexec_fn=pin_and_die_with_parent) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Place:
    """Where a turn is taken: how many busy processes, which cores, which quota."""

    def __init__(self, title, busy=0, cores=None, quota=None):
        self.title, self.busy, self.cores, self.quota = title, busy, cores, quota

    @contextmanager
    def entered(self):
        """Gives what a contestant calls between fork and exec."""
        group = Group(self.quota) if self.quota else None

        def enter():
            pin_and_die_with_parent()
            if self.cores:
                os.sched_setaffinity(0, self.cores)
            if group:
                group.join()

        try:
            with busy_processes(self.busy):
                yield enter
        finally:
            if group:
                group.remove()

    def threads(self):
        """That PyTorch takes, which respects affinity, but no quota."""
        return len(self.cores or os.sched_getaffinity(0))


def places():
    first = sorted(os.sched_getaffinity(0))[:1]
    return [
        Place("alone"), Place("1 busy process", busy=1), Place("2 busy processes", busy=2),
        Place("4 busy processes", busy=4), Place("one core (taskset)", cores=first),
        Place("quota of half a core", quota=0.5), Place("quota of 1.5 cores", quota=1.5),
    ]  # fmt: skip


def command_of(contestant, workload, files, place):
    if contestant.startswith("ours"):
        return [COMMAND, "bench", files.training, "--data", files.data, "--batch-size", str(workload.sizes["batch"]),
                "--seconds", "1e9", "--each-step"]  # fmt: skip
    arguments = dict(kind="eager", workload=asdict(workload), precision="float32", threads=place.threads(), fused=True,
                     training=str(files.training), step=str(files.step), data=str(files.data))  # fmt: skip
    return [sys.executable, Path(__file__).with_name("peers_worker.py"), json.dumps(arguments)]


def environment_of(contestant):
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    if contestant.endswith("passive"):
        return clean | PASSIVE
    if contestant.endswith("pinned"):
        return clean | {"OMP_PROC_BIND": "true"}
    return clean | ({"GOMP_SPINCOUNT": contestant.split()[-1]} if " spin " in contestant else {})


def take_turn(contestant, workload, files, place, options, enter):
    """Returns the times of the steps, in milliseconds, that a new process makes in some seconds once it is warm."""
    process = subprocess.Popen(
        list(map(str, command_of(contestant, workload, files, place))), env=environment_of(contestant),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=enter,
    )  # fmt: skip
    times, steps, end = [], 0, None
    try:
        for line in process.stdout:
            step = json.loads(line)
            if "error" in step:
                raise RuntimeError(f"{contestant}: {step['error']}")
            if "ms" not in step:
                continue
            steps += 1
            if steps <= WARM_UP:
                continue
            times.append(step["ms"])
            end = end or time.monotonic() + options.seconds
            if time.monotonic() > end:
                return times
        raise RuntimeError(f"{contestant} ended with status {process.wait()}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def measure(workload, contestants, options):
    """Returns (place, contestant) -> times, or why there are none."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(workload, workload.example(), "float32", Path(folder))
        for _ in range(options.rounds):
            for place in places():
                for contestant in contestants:
                    key = place.title, contestant
                    if isinstance(results.get(key), str):
                        continue
                    try:
                        with place.entered() as enter:
                            times = take_turn(contestant, workload, files, place, options, enter)
                        results.setdefault(key, []).extend(times)
                    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                        results[key] = f"left out: {error}"
                    print(f"  {place.title}, {contestant}: {cell(results[key], None)}", flush=True)
    return results


def cell(times, alone):
    if isinstance(times, str):
        return times
    median = statistics.median(times)
    ratio = f" {median / statistics.median(alone):.2f}×" if isinstance(alone, list) else ""
    return f"{median:.3g} ({min(times):.3g}){ratio}"


def table(workload, contestants, results):
    lines = [f"| {workload.title} | " + " | ".join(f"{name}, ms" for name in contestants) + " |"]
    lines.append("| --- |" + " ---: |" * len(contestants))
    for place in places():
        cells = [cell(results[place.title, name], results["alone", name]) for name in contestants]
        lines.append(f"| {place.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="MLP,GPT-2", help="parts of the workloads' titles [MLP,GPT-2]")
    parser.add_argument("--contestants", default="ours,PyTorch,PyTorch passive", help="also 'ours pinned', each thread to one core [ours,PyTorch,PyTorch passive]")
    parser.add_argument("--spin", default="", help="also ours with these values of GOMP_SPINCOUNT")
    parser.add_argument("--seconds", type=float, default=5, help="of a turn [5]")
    parser.add_argument("--rounds", type=int, default=4, help="turns in each place [4]")
    parser.add_argument("--quick", action="store_true", help="one turn of a second each, of the first workload")
    parser.add_argument("--write", type=Path, help="document whose tables to replace")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds, options.only = 1, 1, options.only.split(",")[0]
    return options


def main():
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # groups and processes end with it
    contestants = [name for name in options.contestants.split(",") if name]
    contestants += [f"ours spin {count}" for count in options.spin.split(",") if count]
    tables = []
    for workload in WORKLOADS:
        if any(part.lower() in workload.title.lower() for part in options.only.split(",")):
            print(workload.title, flush=True)
            tables.append(table(workload, contestants, measure(workload, contestants, options)))
    text = "\n\n".join(tables)
    print("\n" + text)
    if options.write:
        write_between_marks(options.write, text + "\n", "bench/busy.py")


if __name__ == "__main__":
    main()
