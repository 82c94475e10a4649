"""A network that gpu_check times: exported, and built in each precision, while other stages run."""

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Network(threading.Thread):
    """The worker process of a network (peer.py), and the training models that are made of what it exports."""

    def __init__(self, check, name, folder):
        super().__init__(daemon=True)
        self.check, self.name_of_network, self.folder = check, name, Path(folder)
        self.answers, self.error, self.is_ready, self.process = queue.Queue(), None, False, None
        self.exported_at = threading.Event()
        self.building = threading.Lock()
        self.start()

    def run(self):
        try:
            options = {"network": self.name_of_network, "sizes": self.check.sizes[self.name_of_network],
                       "folder": str(self.folder), "precisions": self.check.options.peers}  # fmt: skip
            log = open(self.check.options.out / f"peer_{self.name_of_network}.log", "w")
            self.process = subprocess.Popen([sys.executable, ROOT / "bench/gpu/peer.py", json.dumps(options)], text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)  # fmt: skip
            self.exported = json.loads(self.process.stdout.readline())
            self.exported_at.set()
            for line in self.process.stdout:
                if line.startswith("{"):
                    self.answers.put(json.loads(line))
        except Exception as error:  # noqa: BLE001  (its stage reports it)
            self.error = error
        self.exported_at.set()
        self.answers.put(None)

    def model(self, precision):
        """The training model of a precision, which is built when it is first asked for."""
        if not self.exported_at.wait(self.check.stages.left()):
            raise RuntimeError("the network was not exported in time")
        if self.error:
            raise RuntimeError(f"{self.error}: peer_{self.name_of_network}.log says why the worker ended")
        path = self.folder / f"{precision}.onnx"
        with self.building:
            if not path.exists():
                self.check.command("build", self.folder / "m.onnx", "-o", path, "--loss", self.exported["loss"], "--optimizer",
                                   "adamw(lr=1e-4,weight_decay=0.01)", "--decay", "*", "--precision", precision)  # fmt: skip
        return path

    def answer(self):
        found = self.answers.get(timeout=self.check.stages.left())
        if found is None:
            raise self.error or RuntimeError(f"peer_{self.name_of_network}.log says why the worker ended")
        return found

    def ask(self, precision, seconds):
        if not self.is_ready:
            self.is_ready = "ready" in self.answer()
        self.process.stdin.write(f"{precision} {seconds}\n")
        self.process.stdin.flush()
        return self.answer()
