"""--data -: .npz archives from a pipe, as another process writes them with NumPy."""

import io
import subprocess
import sys

import numpy as np
import pytest
import tool

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
SAVE = {"stored": np.savez, "compressed": np.savez_compressed}
PROGRAM = """
import sys
import numpy as np

rng = np.random.default_rng(0)
for rows in 8, 1, 13, 8:
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    np.{save}(sys.stdout.buffer, x=x, labels=x[:, :3].argmax(1))
"""


def samples(rows=(8, 1, 13, 8)):
    rng = np.random.default_rng(0)
    for count in rows:
        x = rng.normal(size=(count, 4)).astype(np.float32)
        yield {"x": x, "labels": x[:, :3].argmax(1)}


def archive(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def piped(data, *arguments, status=0):
    done = subprocess.run([tool.COMMAND, *map(str, arguments)], input=data, capture_output=True, timeout=tool.PATIENCE)
    assert done.returncode == status, done.stderr.decode()
    return (done.stdout + done.stderr).decode()


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipe") / "train.onnx"
    tool.run("build", MLP, "-o", path, "--loss", "cross_entropy")
    return path


@pytest.mark.parametrize("save", SAVE)
def test_a_pipe_trains_as_a_file_of_all_samples(training, tmp_path, save):
    whole = {name: np.concatenate([batch[name] for batch in samples()]) for name in ("x", "labels")}
    run = ["--epochs", 2, "--batch-size", 4, "--lr", 0.01, "--val-split", 0.2, "--threads", 1]
    tool.run("fit", training, "--data", tool.save(tmp_path / "all.npz", whole), *run, "--out", tmp_path / "file")
    writer = subprocess.Popen([sys.executable, "-c", PROGRAM.format(save=SAVE[save].__name__)], stdout=subprocess.PIPE)
    done = subprocess.run([tool.COMMAND, "fit", training, "--data", "-", *map(str, run), "--out", tmp_path / "pipe"],
                          stdin=writer.stdout, capture_output=True, timeout=tool.PATIENCE)  # fmt: skip
    assert writer.wait() == 0 and done.returncode == 0, done.stderr.decode()
    np.testing.assert_array_equal(tool.losses(tmp_path / "pipe"), tool.losses(tmp_path / "file"))

    records = b"".join(archive(SAVE[save], **batch) for batch in samples())  # archives with sizes in their headers
    piped(records, "fit", training, "--data", "-", *run, "--out", tmp_path / "bytes")
    assert (tmp_path / "bytes/last.onnx").read_bytes() == (tmp_path / "pipe/last.onnx").read_bytes()
    with open(tmp_path / "samples", "wb") as file:  # whose archives count from the start of the file
        for batch in samples():
            SAVE[save](file, **batch)
    piped((tmp_path / "samples").read_bytes(), "fit", training, "--data", "-", *run, "--out", tmp_path / "file_of_them")
    assert (tmp_path / "file_of_them/last.onnx").read_bytes() == (tmp_path / "pipe/last.onnx").read_bytes()
    piped(records, "fit", training, "--data", "-", "--epochs", 3, *run[2:], "--out", tmp_path / "bytes", "--resume")
    piped(records, "predict", tmp_path / "bytes/last.onnx", "--inputs", "-", "-o", tmp_path / "y.npz")
    assert tool.load(tmp_path / "y.npz")["logits"].shape == (30, 3)


def test_a_forward_model_trains_from_a_pipe(tmp_path):
    said = piped(archive(**next(samples())), "fit", MLP, "--data", "-", "--epochs", 1, "--out", tmp_path / "run")
    assert "cross_entropy" in said


def test_a_broken_record_is_one_line(training, tmp_path):
    good = [archive(**batch) for batch in samples()]
    a, b = good[:2]
    half = len(b) // 2
    damaged = archive(np.savez_compressed, x=np.zeros((2, 4), np.float32), labels=np.zeros(2, np.int64))
    at = damaged.index(b"x.npy") + 40
    damaged = damaged[:at] + bytes(255 - byte for byte in damaged[at : at + 8]) + damaged[at + 8 :]
    cases = {
        b"": "standard input is empty",
        b"hello": "standard input, record 1 does not begin as an .npz archive: write each with numpy.savez",
        a + b"hello": "standard input, record 2 does not begin",
        a + b[:half]: "standard input, record 2 is cut off: the input ends after",
        a + b[:2]: "standard input, record 2 is cut off",
        a + damaged: "standard input, record 2",
        a + archive(): "standard input, record 2 holds no arrays",
        a + archive(x=np.zeros((2, 4), np.float32)): "standard input, record 2 has 1 arrays, the records before 2",
        a + archive(x=np.zeros((2, 5), np.float32), labels=np.zeros(2, int)): "record 2: 'x' is float[2,5]; in the records",
        a + archive(x=np.zeros((2, 4)), labels=np.zeros(2, int)): "record 2: 'x' is double[2,4]; in the records before",
        a + archive(y=np.zeros(2), labels=np.zeros(2, int)): "record 2 has an array 'y', which the records before have not",
    }
    for data, message in cases.items():
        said = piped(data, "fit", training, "--data", "-", "--epochs", 1, "--out", tmp_path / "run", status=1)
        assert message in said and said.count("\n") == 1, said
