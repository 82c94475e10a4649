"""What `onnx-train scale` says of a step on 2 and 4 processes of this machine, beside what they take.

    python bench/ranks.py [--command build/onnx-train]

The network of the model is this machine's loopback, measured first: half a round trip, and the bytes that each of two
processes sends and receives in a second. More processes than cores take turns on them: then a rank's computing is counted
as many times as there are processes to a core.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "models" / "data"


def network_of_this_machine():
    """Seconds of half a round trip, and bytes a second in each direction at once."""
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    own = socket.create_connection(listener.getsockname()) if pid == 0 else listener.accept()[0]
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips, size, times = 2000, 1 << 23, 24
    start = time.perf_counter()
    for _ in range(trips):
        if pid == 0:
            own.recv(64)
            own.sendall(b"x" * 64)
        else:
            own.sendall(b"x" * 64)
            own.recv(64)
    latency = (time.perf_counter() - start) / trips / 2

    def receive():
        buffer, left = bytearray(1 << 20), size * times
        while left > 0:
            left -= own.recv_into(buffer, min(left, len(buffer)))

    thread = threading.Thread(target=receive)
    block = bytes(size)
    start = time.perf_counter()
    thread.start()
    for _ in range(times):
        own.sendall(block)
    thread.join()
    bandwidth = size * times / (time.perf_counter() - start)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return latency, bandwidth


def run(command, *arguments):
    done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def measured(command, model, data, batch, ranks, folder):
    """Milliseconds of a step in the middle."""
    run(command, "fit", model, "--data", data, "--batch-size", batch, "--accumulate", ranks, "--steps", 60, "--threads", 1, "--out",
        folder, "--overwrite", "--devices", ",".join(["cpu"] * ranks))  # fmt: skip
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(step["ms"] for step in steps[10:])


def modelled(command, model, data, batch, ranks, network):
    latency, bandwidth = network
    common = "scale", model, "--data", data, "--batch-size", batch, "--ranks", ranks, "--json", "--threads", 1, "--latency", \
        latency * 1e6, "--bandwidth", bandwidth / 1e9  # fmt: skip
    found = json.loads(run(command, *common))
    turns = ranks / os.cpu_count()
    if turns > 1:
        found = json.loads(run(command, *common, "--compute", turns * found["compute_ms"]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default=ROOT / "build" / "onnx-train")
    command = parser.parse_args().command
    network = network_of_this_machine()
    print(f"loopback: {1e6 * network[0]:.0f} us, {network[1] / 1e9:.2f} GB/s each way; {os.cpu_count()} cores\n")
    print("| network | batch | processes | computes, ms | waits, ms | modelled, ms | measured, ms | modelled / measured |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        text = folder / "text.npz"
        subprocess.run(["python3", ROOT / "models" / "text.py", DATA / "devils_dictionary.txt", "--train", text, "--eval",
                        folder / "eval.npz"], check=True, capture_output=True)  # fmt: skip
        for name, data, batches in ("digits_cnn", DATA / "digits_train.npz", (32, 128)), ("gpt", text, (4, 16)):
            model = folder / f"{name}.onnx"
            run(command, "build", ROOT / "models" / f"{name}.onnx", "-o", model, "--loss", "cross_entropy", "--accumulate")
            for batch in batches:
                for ranks in 2, 4:
                    said = modelled(command, model, data, batch, ranks, network)
                    took = measured(command, model, data, batch, ranks, folder / "run")
                    print(f"| {name} | {batch} | {ranks} | {said['compute_ms']:.2f} | {said['waiting_ms']:.2f} | "
                          f"{said['step_ms']:.2f} | {took:.2f} | {said['step_ms'] / took:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
