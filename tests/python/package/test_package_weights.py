"""Weights in files: the format is that of the safetensors package, and wrong files are errors of one line."""

import json

import numpy as np
import pytest
import tool

import onnx_train
from onnx_train import _safetensors  # noqa: E402

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
CNN = tool.ROOT / "models" / "digits_cnn.onnx"


def session(model=MLP):
    return onnx_train.Session(onnx_train.build(model, "cross_entropy", "adamw(lr=0.01)"), threads=1)


def trained():
    result = session(CNN)
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(8, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 8)
    for _ in range(2):
        result.step(*batch)
    return result, batch


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_weights_come_back(tmp_path, suffix):
    first, batch = trained()
    path = tmp_path / f"weights.{suffix}"
    onnx_train.save_weights(first, path)
    second = session(CNN)
    names = onnx_train.load_weights(second, path)
    assert len(names) == 19 and "features.1.running_mean" in names and "features.0.weight" in names
    assert np.array_equal(second.predict(batch[0]).logits, first.predict(batch[0]).logits)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no temporary file is left


def test_the_whole_state_continues_the_training(tmp_path):
    first, batch = trained()
    onnx_train.save_weights(first, tmp_path / "state.safetensors", state=True)
    second = session(CNN)
    assert onnx_train.load_weights(second, tmp_path / "state.safetensors") == list(first.state)
    assert [first.step(*batch).loss for _ in range(3)] == [second.step(*batch).loss for _ in range(3)]


def test_the_safetensors_package_reads_and_writes_the_same_files(tmp_path):
    theirs = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    import torch

    types = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    types += [torch.float16, torch.float32, torch.float64, torch.bfloat16]
    tensors = {str(t): (torch.arange(6).reshape(2, 3) / 4).to(t) for t in types}
    tensors |= {"empty": torch.zeros(0, 4), "scalar": torch.tensor(2.5)}
    theirs.save_file(tensors, tmp_path / "theirs.safetensors", {"key": "value"})
    arrays, metadata = _safetensors.read(tmp_path / "theirs.safetensors")
    assert metadata == {"key": "value"} and set(arrays) == set(tensors)
    for name, tensor in tensors.items():
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        assert arrays[name].shape == tensor.shape and arrays[name].dtype == wide.numpy().dtype
        assert np.array_equal(arrays[name], wide.numpy()), name
    assert np.array_equal(onnx_train.load_data(tmp_path / "theirs.safetensors")["torch.bfloat16"], arrays["torch.bfloat16"])
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    arrays["torch.bfloat16"] = arrays["torch.bfloat16"].astype(ml_dtypes.bfloat16)
    _safetensors.write(tmp_path / "ours.safetensors", arrays, metadata)
    for name, tensor in theirs.load_file(tmp_path / "ours.safetensors").items():
        assert tensor.dtype == tensors[name].dtype and torch.equal(tensor, tensors[name]), name


def test_bfloat16_of_ml_dtypes_are_weights():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    model = onnx_train.load(MLP).with_weights({"fc2.bias": np.array([1, 0.5, -3], ml_dtypes.bfloat16)})
    assert onnx_train.Session(onnx_train.build(model)).state["fc2.bias"].tolist() == [1, 0.5, -3]


def file(header, body=b"\0" * 24):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text + body


def entry(begin, end, shape=(3,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


WRONG = {
    "empty": (b"", "no safetensors file: it has 0 bytes"),
    "cut off header": (file({"a": entry(0, 12), "b": entry(12, 24)})[:40], "cut off or no safetensors"),
    "cut off tensor": (file({"a": entry(0, 12), "b": entry(12, 24)})[:-1], "cut off: 'b'"),
    "huge header": ((1 << 62).to_bytes(8, "little") + b"{}", "its header would have 4611686018427387904 bytes"),
    "overlapping": (file({"a": entry(0, 12), "b": entry(8, 20)}), "'b' begins at byte 8"),
    "gap": (file({"a": entry(0, 12), "b": entry(16, 28)}), "'b' begins at byte 16"),
    "rest": (file({"a": entry(0, 12)}), "12 bytes after its last tensor"),
    "wrong size": (file({"a": entry(0, 24)}), "takes 12 bytes, not 24"),
    "huge shape": (file({"a": entry(0, 24, [1 << 62, 1 << 62])}), "'a' of shape [4611686018427387904,4611686018427387904] has more bytes than can be counted"),
    "negative": (file({"a": entry(0, 24, [-3, -2])}), "'a' has no valid shape in the header"),
    "type": (file({"a": entry(0, 24, [24], "F8_E4M3")}), "has the type F8_E4M3"),
    "no JSON": (file(b"{not json"), "header that is no JSON"),
    "a list": (file([]), "header does not start with '{'"),
    "deep": (file(b'{"a":' * 100_000), "not one of safetensors: it is nested too deeply"),
    "twice": (file(b'{"a": 1, "a": 1}'), "has 'a' twice in its header"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_errors_of_one_line(tmp_path, name):
    data, message = WRONG[name]
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(data)
    with pytest.raises(onnx_train.FileError, match="wrong.safetensors") as error:
        onnx_train.load_weights(session(), path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_wrong_contents_change_no_state(tmp_path):
    target = session()
    before = {name: value.copy() for name, value in target.state.items()}
    good = {"fc1.bias": np.ones(16, np.float32)}
    for bad, message in [
        ({"fc9.bias": np.ones(3, np.float32)}, "no state 'fc9.bias'"),
        ({"fc2.bias": np.ones(4, np.float32)}, r"'fc2.bias' has the shape \(4,\)"),
        ({"fc2.bias": np.ones(3, np.complex64)}, "'fc2.bias' is complex64"),
    ]:
        np.savez(tmp_path / "bad.npz", **good, **bad)
        with pytest.raises(onnx_train.DataError, match=message):
            onnx_train.load_weights(target, tmp_path / "bad.npz")
        assert all(np.array_equal(before[name], value) for name, value in target.state.items())
    np.savez(tmp_path / "more.npz", **good, other=np.ones(2))
    assert onnx_train.load_weights(target, tmp_path / "more.npz", strict=False) == ["fc1.bias"]
    assert np.all(target.state["fc1.bias"] == 1)


def test_files_that_are_no_archives_or_not_there(tmp_path):
    (tmp_path / "wrong.npz").write_bytes(b"PK\3\4 and no more")
    for path in (tmp_path / "wrong.npz", tmp_path / "missing.npz", tmp_path / "missing.safetensors"):
        with pytest.raises(onnx_train.FileError, match=path.name):
            onnx_train.load_weights(session(), path)
    with pytest.raises(onnx_train.FileError, match="cannot be written"):
        onnx_train.save_weights(session(), tmp_path / "no folder" / "weights.npz")


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_weights_of_a_file_go_into_a_model_before_it_is_built(tmp_path, suffix):
    first, batch = trained()
    path = tmp_path / f"weights.{suffix}"
    onnx_train.save_weights(first, path)
    forward = onnx_train.load(CNN).with_weights(path)
    assert np.array_equal(onnx_train.Session(forward).predict(batch[0]).logits, first.predict(batch[0]).logits)
    second = onnx_train.Session(forward.build("cross_entropy", "adamw(lr=0.01)"), threads=1)
    assert np.array_equal(second.state["features.0.weight"], first.state["features.0.weight"])
    again = onnx_train.Session(onnx_train.build(CNN).with_weights(dict(first.state)), threads=1)
    assert all(np.array_equal(again.state[name], value) for name, value in first.state.items())


def test_wrong_weights_of_a_model_are_named():
    model = onnx_train.load(MLP)
    before = model.to_bytes()
    for weights, message in [
        ({"fc9.bias": np.ones(3)}, "no weight 'fc9.bias'"),
        ({"fc2.bias": np.ones(4)}, r"'fc2.bias' has the shape \[4\]; the model's has \[3\]"),
        ({"fc2.bias": np.ones(3, np.int64)}, "'fc2.bias' is int64; the model's is float"),
        ({"fc2.bias": np.ones(3, np.complex64)}, "'fc2.bias' is no dense array"),
        ({"fc2.bias": object()}, "'fc2.bias'"),
    ]:
        with pytest.raises(onnx_train.DataError, match=message):
            model.with_weights(weights)
    changed = model.with_weights({"fc2.bias": np.full(3, 2.0), "other": np.ones(2)}, strict=False)
    assert np.all(onnx_train.Session(onnx_train.build(changed)).state["fc2.bias"] == 2)
    assert model.to_bytes() == before
