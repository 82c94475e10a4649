"""A terminal of a given size with the command in it: what it shows, keys, and whether it is as it was afterwards."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unicodedata

import tool

SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


def columns_of(text):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in SEQUENCE.sub("", text))


class Terminal:
    def __init__(self, columns, rows, *arguments, **environment):
        self._master, self._slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self._slave)
        self._bytes, self.status = b"", None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)
            for descriptor in range(3):
                os.dup2(self._slave, descriptor)
            settings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
            settings |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | environment
            os.execve(tool.COMMAND, ["onnx-train", *map(str, arguments)], settings)

    @property
    def output(self):
        return self._bytes.decode(errors="ignore")

    def forget(self):
        """What has been printed so far."""
        self._bytes = b""

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self._master, keys.encode())

    def send(self, number):
        os.kill(self.pid, number)

    def _read(self):
        if select.select([self._master], [], [], 0.02)[0]:
            self._bytes += os.read(self._master, 1 << 16)

    def until(self, condition, seconds=tool.PATIENCE):
        """Reads what the command prints until `condition` holds of all of it."""
        end = time.monotonic() + seconds
        while not condition(self.output):
            assert time.monotonic() < end and self.status is None, f"waited in vain for what follows\n{self.screen()}"
            self._read()
            self._look()
        return self

    def _look(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None

    def end(self, seconds=tool.PATIENCE):
        """Waits until the command has ended; its exit status."""
        stop = time.monotonic() + seconds
        while self.status is None:
            if time.monotonic() > stop:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"it does not end\n{self.screen()}")
            self._read()
            self._look()
        while select.select([self._master], [], [], 0.1)[0]:
            self._bytes += os.read(self._master, 1 << 16)
        return self.status

    def is_restored(self):
        left, shown = self.output.rfind("\x1b[?1049l"), self.output.rfind("\x1b[?25h")
        return (
            left > self.output.rfind("\x1b[?1049h") >= 0
            and shown > self.output.rfind("\x1b[?25l")
            and self.output.rfind("\x1b[?7h") > self.output.rfind("\x1b[?7l")
            and termios.tcgetattr(self._slave) == self.before
        )

    def after(self):
        """What is printed once the screen is closed."""
        return SEQUENCE.sub("", self.output[self.output.rfind("\x1b[?1049l") :])

    def pieces(self, output=None):
        """(row, text) of the lines that are drawn, in their order."""
        return [(int(row), text) for row, text in re.findall(r"\x1b\[(\d+);1H\x1b\[K(.*?)(?=\x1b\[\d+;1H|\x1b\[2J|\x1b\[0m\x1b\[\?7h|$)", output or self.output, re.DOTALL)]  # fmt: skip

    def screen(self):
        """The lines that the open screen shows now, without colours."""
        lines = [""] * self.rows
        for row, text in self.pieces():
            if row <= self.rows:
                lines[row - 1] = SEQUENCE.sub("", text)
        return "\n".join(lines)

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)
        os.close(self._slave)
