"""Fine-tunes a classifier of digits from numpy arrays.

    PYTHONPATH=build/python python examples/python/numpy_arrays.py
"""

from pathlib import Path

import numpy as np
import onnx_train

MODELS = Path(__file__).parents[2] / "models"


def arrays(file: str, count: int) -> dict[str, np.ndarray]:
    """Images and labels by the names of the training model's inputs."""
    with np.load(MODELS / "data" / file) as archive:
        return {name: archive[name][:count] for name in archive.files}


train, test = arrays("digits_train.npz", 640), arrays("digits_test.npz", 256)

# `build` adds loss, gradients and optimizer to the forward model. Nothing is trained yet.
training = onnx_train.build(MODELS / "digits_cnn.onnx", "cross_entropy", "adamw(lr=2e-3)")

session = onnx_train.Session(training)
before = session.evaluate(test)
history = onnx_train.fit(session, train, epochs=2, batch_size=32, schedule="cosine", warmup=4)
after = session.evaluate(test)
print(f"accuracy {before.accuracy:.2f} -> {after.accuracy:.2f}, loss {before.loss:.3f} -> {after.loss:.3f}")

session.save("checkpoint.onnx")  # weights and optimizer: training continues from this file
session.export("digits.onnx")  # the inference model, for any ONNX runtime
