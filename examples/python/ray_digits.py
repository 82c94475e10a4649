"""Trains the digits with Ray Train (https://docs.ray.io/en/latest/train/train.html): two workers of a cluster share out the
batches of each step, and Ray keeps the best checkpoint.

    pip install 'ray[train]'
    PYTHONPATH=build/python python examples/python/ray_digits.py

Without a cluster Ray starts one on this machine. On a cluster, all machines need the package, the model and the data.
"""

import sys
import tempfile
from pathlib import Path

import onnx_train
import onnx_train.ray
import ray
from ray.train import RunConfig, ScalingConfig

WORKERS, EPOCHS = 2, int(sys.argv[1]) if len(sys.argv) > 1 else 5
MODELS = Path(__file__).resolve().parents[2] / "models"


def train():
    """What each worker runs."""
    model = onnx_train.build(MODELS / "digits_cnn.onnx", "cross_entropy", "adamw(lr=3e-3)", accumulate=True)
    data, test = (str(MODELS / "data" / f"digits_{part}.npz") for part in ("train", "test"))
    history = onnx_train.fit(model, data, eval_data=test, epochs=EPOCHS, batch_size=16, seed=0, threads=1, progress=False,
                             ranks="environment", callbacks=[onnx_train.ray.Report()])  # fmt: skip
    print(f"rank {history.session.rank} of {history.session.ranks}: loss {history.losses[-1]:.6f}")


def main(storage):
    trainer = onnx_train.ray.RanksTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="digits", storage_path=storage),
    )
    result = trainer.fit()
    print(f"epoch {result.metrics['epoch']}: accuracy {result.metrics['accuracy']:.1%}")
    with result.checkpoint.as_directory() as folder:
        session = onnx_train.Session(Path(folder) / "last.onnx", threads=1)
        accuracy = session.evaluate(onnx_train.load_data(MODELS / "data" / "digits_test.npz")).accuracy
        print(f"the checkpoint: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ray.init(log_to_driver=True)
        main(folder)
        ray.shutdown()
