"""Two runs never train into one folder."""

import time

import numpy as np
import pytest
import tool

import onnx_train

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
REFUSED = "is the folder of a run that another process trains now; wait for its end, or take another folder"


@pytest.fixture
def arguments(tmp_path):
    tool.run("build", MLP, "-o", tmp_path / "train.onnx")
    rng = np.random.default_rng(0)
    data = {"x": rng.random((64, 4), np.float32), "labels": rng.integers(0, 3, 64)}
    return ["fit", tmp_path / "train.onnx", "--data", tool.save(tmp_path / "data.npz", data), "--batch-size", 8, "--out",
            tmp_path / "run"]  # fmt: skip


def test_a_second_run_is_refused_until_the_first_ends(arguments, tmp_path):
    first = tool.start(*arguments, "--epochs", 1000000, "--checkpoint-every", 1)
    try:
        deadline = time.monotonic() + tool.PATIENCE
        while not (tmp_path / "run" / "last.onnx").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        for how in ("--resume", "--overwrite"):
            assert REFUSED in tool.run(*arguments, "--epochs", 1, how, status=1)
        with pytest.raises(onnx_train.UsageError, match="another process trains now"):
            onnx_train.fit(tmp_path / "train.onnx", tmp_path / "data.npz", epochs=1, batch_size=8,
                           folder=tmp_path / "run", overwrite=True, progress=False)  # fmt: skip
    finally:
        first.kill()  # leaves nothing behind that refuses the next
        first.communicate()
    tool.run(*arguments, "--epochs", 1, "--overwrite")
    tool.run(*arguments, "--epochs", 2, "--resume")
