"""Stages of scripts/gpu_check: each has a time that it may take, and ends in a row of results.json, which another day goes on from."""

import hashlib
import json
import os
import subprocess
import threading
import time


class LeftOut(Exception):
    """Why a stage did not run; it has no row, and is tried again on another day."""


class Stages:
    """Runs stages, and keeps their rows. What has passed with the same binaries is not run again.

    `out` is the folder of results, `minutes` the time of all stages, `only` names of stages or None for all, `binaries`
    files whose contents say whether an earlier row still holds. Stages may run in several threads at once.
    """

    def __init__(self, out, minutes, only=None, binaries=()):
        self.out, self.only = out, only
        self.deadline = time.monotonic() + 60 * minutes
        self.binaries = hashlib.sha256(b"".join(path.read_bytes() for path in binaries)).hexdigest()[:12]
        self.lock = threading.Lock()
        self.of_thread = threading.local()
        self.left_out = {}
        path = out / "results.json"
        self.rows = json.loads(path.read_text()) if path.exists() else []

    def left(self):
        """Seconds until the stage of this thread must end."""
        return max(1, getattr(self.of_thread, "deadline", self.deadline) - time.monotonic())

    def run(self, command, timeout=None, **variables):
        """The exit status and what the command printed; a command that takes too long has the status 124."""
        try:
            done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | variables,
                                  timeout=min(timeout or self.left(), self.left()))  # fmt: skip
        except FileNotFoundError as missing:
            return 127, str(missing)
        except subprocess.TimeoutExpired as late:
            return 124, (late.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout.decode(errors="replace")

    def is_wanted(self, name):
        """Whether the stage of this name is to run: by --only, and by what has passed before."""
        chosen = not self.only or name in self.only or name.split()[0] in self.only
        return chosen and not any(row["stage"] == name and row["ok"] and row["binaries"] == self.binaries for row in self.rows)

    def stage(self, name, seconds, work):
        """Runs work() -> {what: value}, which may take `seconds`. An exception is a result, too."""
        if not self.is_wanted(name):
            return
        start = time.monotonic()
        self.of_thread.deadline = min(start + seconds, self.deadline)
        try:
            if self.deadline - start < 2:
                raise LeftOut("no time is left")
            results = {"ok": True} | work()
        except LeftOut as reason:
            with self.lock:
                self.left_out[name] = str(reason)
            return
        except Exception as error:  # noqa: BLE001  (the other stages go on)
            results = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        finally:
            del self.of_thread.deadline
        row = {"stage": name} | results | {"seconds": round(time.monotonic() - start, 1), "binaries": self.binaries,
                                           "day": time.strftime("%Y-%m-%d")}  # fmt: skip
        with self.lock:
            self.rows = [old for old in self.rows if old["stage"] != name] + [row]
            print(json.dumps(row), flush=True)
            self.write()

    def write(self):
        replace(self.out / "results.json", json.dumps(self.rows, indent=1))
        lines = ["| stage | day | result |", "| --- | --- | --- |"]
        for row in self.rows:
            cells = "; ".join(f"{k}: {v}" for k, v in row.items() if k not in ("stage", "day", "binaries"))
            lines.append(f"| {row['stage']} | {row['day']} | {cells[:1500].replace('|', '/')} |")
        replace(self.out / "results.md", "\n".join(lines) + "\n")


def replace(path, text):
    """Writes a file so that it is complete whenever the time is over."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)
