"""Serves predictions in one thread while another trains, and swaps new weights in without a copy of the model.

Each prediction is of one version of the weights, never of a mixture.

    PYTHONPATH=build/python python examples/python/swap_while_serving.py
"""

import threading
from pathlib import Path

import numpy as np
import onnx_train

MODEL = Path(__file__).parents[2] / "tests" / "fixtures" / "mlp.onnx"
VERSIONS = 20

rng = np.random.default_rng(0)
x = rng.normal(size=(32, 4)).astype(np.float32)
labels = x[:, :3].argmax(axis=1)

training = onnx_train.build(MODEL, "cross_entropy", "adamw(lr=1e-2)")
trainer = onnx_train.Session(training, threads=1)  # only the main thread uses it
staging = onnx_train.Session(training, threads=1)  # takes a version; only the main thread uses it, too
server = onnx_train.Session(training, threads=1)  # both threads use it, one at a time

lock = threading.Lock()  # a swap of several weights is not atomic: no prediction may run meanwhile
versions = [server.predict(x).logits]  # what each version predicts
served: list[np.ndarray] = []
done = threading.Event()


def serve() -> None:
    while not done.is_set():
        with lock:
            logits = server.predict(x).logits
        served.append(logits)  # the array belongs to the caller: later swaps do not change it
        done.wait(0.0005)  # the time to the next request, in which the other thread gets the lock


thread = threading.Thread(target=serve)
thread.start()
for _ in range(VERSIONS):
    seen = len(served)
    trainer.step(x, labels)
    for name in staging.state:  # the copy happens outside of the lock
        staging.state[name] = trainer.state[name]
    versions.append(staging.predict(x).logits)
    with lock:
        server.swap(staging)
    while len(served) < seen + 2 and thread.is_alive():  # at least one prediction starts after the swap
        done.wait(0.001)
done.set()
thread.join()

known = {logits.tobytes(): version for version, logits in enumerate(versions)}
used = [known.get(logits.tobytes()) for logits in served]  # None for a mixture of versions
assert None not in used, "a prediction is of no single version"
assert used == sorted(used), "an old version came back"
print(f"{len(served)} predictions of {len(set(used))} versions")
