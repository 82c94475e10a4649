"""Arrays on the device of a session: states and inputs by DLPack, on a device whose memory the host must not touch."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest
import tool
import torch

import onnx_train
if not (tool.COMMAND.parent / "libonnx_train_async_host.so").exists():
    pytest.skip("the module of the test device is not built", allow_module_level=True)
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
X, LABELS = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
DEVICE = (12, 0)  # DLPack's kDLExtDev
T = np.zeros((4, 16), np.float32)


def session(device="async_host", **options):
    return onnx_train.Session(onnx_train.build(MLP, optimizer="sgd(lr=0.1)", **options), device, threads=1)


def square(device="async_host", seed=0):
    """A session whose weight `w` has the shape and type of its input `x`."""
    values = np.random.default_rng(seed).normal(size=(4, 16)).astype(np.float32)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[4, 16] x) => (float[4, 16] y) <float[4, 16] w = {%s}>
        { h = Mul(x, w)  y = Tanh(h) }""" % ", ".join(map(str, values.ravel()))
    )
    return onnx_train.Session(onnx_train.build(model, "mse(y, t)", "sgd(lr=1.0)"), device, threads=1)


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]  # fmt: skip


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


def tensor_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = DLManagedTensor.from_address(get(capsule, b"dltensor")).tensor
    tensor.capsule = capsule  # which frees it
    return tensor


class Foreign:
    """An array of another library, in memory of a device: by default the state `w` of the session."""

    def __init__(self, session, shape=(4, 16), strides=None, bits=32, device=DEVICE, says=None):
        self.says, self.strides = says or device, strides
        self.exports, self.deleted = [], 0
        ints = lambda values: values and (ctypes.c_int64 * len(values))(*values)  # noqa: E731
        self.keep = ints(shape), ints(strides), session
        tensor = DLTensor(tensor_of(session.state["w"].__dlpack__()).data, *device, len(shape), 2, bits, 1, *self.keep[:2])
        deleter = type(DLManagedTensor().deleter)(self.delete)
        self.managed = DLManagedTensor(tensor, None, deleter)

    def delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.says

    def __dlpack__(self, *, stream=None):
        self.exports.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def test_a_state_is_an_array_of_the_device_with_the_present_value():
    s, host = session(), session("cpu")
    array = s.state["fc1.weight"]
    assert isinstance(array, onnx_train.DeviceArray)
    assert array.shape == (4, 16) and array.dtype == np.float32 and array.__dlpack_device__() == DEVICE
    assert repr(array) == "<onnx_train.DeviceArray 'fc1.weight': float32 (4, 16) on device 12:0>"
    before = array.numpy()
    for _ in range(3):
        assert s.step(X, LABELS).loss == pytest.approx(host.step(X, LABELS).loss, rel=1e-6)
    np.testing.assert_allclose(array, host.state["fc1.weight"], rtol=1e-5)
    assert not np.array_equal(array, before)
    s.state["fc1.weight"] = before
    assert np.array_equal(np.asarray(array), before) and np.asarray(array, np.float64).dtype == np.float64
    assert np.array(s.state["state/step"]) == 3 and np.array(s.state["state/step"]).dtype == np.int64
    with pytest.raises(ValueError, match="gets a copy"):
        array.__array__(copy=False)


def test_a_state_exports_its_memory():
    s = session()
    array = s.state["fc1.weight"]
    tensor = tensor_of(array.__dlpack__())
    assert (tensor.device_type, tensor.device_id) == DEVICE and tensor.data
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim, tensor.shape[:2]) == (2, 32, 1, 2, [4, 16])
    assert tensor.data == tensor_of(s.state["fc1.weight"].__dlpack__(stream=None, max_version=(1, 0))).data
    assert not hasattr(array, "__cuda_array_interface__") and not hasattr(array, "__array_interface__")
    for wrong in ({"dl_device": (1, 0)}, {"copy": True}):
        with pytest.raises(BufferError, match="no copy"):
            array.__dlpack__(**wrong)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(array)


def test_an_array_and_its_export_keep_the_session_alive():
    array = square(seed=5).state["w"]
    expected = array.numpy()
    foreign = square(seed=6).state["w"].__dlpack__()
    gc.collect()
    assert np.array_equal(array, expected) and tensor_of(foreign).data
    target = square()
    target.state["w"] = array
    del array
    gc.collect()
    assert np.array_equal(target.state["w"], expected)


def test_states_of_another_session_are_inputs_within_the_device():
    ours, theirs, other = square(), square(), square(seed=1)
    for _ in range(3):
        foreign = Foreign(other)
        a = ours.step({"x": foreign, "t": T})
        b = theirs.step({"x": np.asarray(other.state["w"]), "t": T})
        assert a == b and foreign.exports == [None] and foreign.deleted == 1
        assert ours.predict(other.state["w"]).y.tobytes() == theirs.predict(other.state["w"].numpy()).y.tobytes()
        assert np.asarray(ours.state["w"]).tobytes() == np.asarray(theirs.state["w"]).tobytes()


def test_a_state_of_the_session_as_input_is_read_before_the_step_changes_it():
    ours, theirs = square(), square()
    for _ in range(3):
        assert ours.step(ours.state["w"], T) == theirs.step(theirs.state["w"].numpy(), T)
    assert np.array_equal(ours.state["w"], theirs.state["w"])


def test_assigning_copies_within_the_device():
    s, other = square(), square(seed=1)
    foreign = Foreign(other)
    s.state["w"] = foreign
    assert np.array_equal(s.state["w"], other.state["w"]) and foreign.exports == [None] and foreign.deleted == 1
    s.state["w"] = s.state["w"]
    assert np.array_equal(s.state["w"], other.state["w"])
    other.step(np.ones_like(T), T)
    assert not np.array_equal(s.state["w"], other.state["w"])


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(device=(2, 1)), "is on cuda:1, where it cannot be read here; copy it to the host first"),
        (dict(device=(12, 1)), "is on device 12:1"),
        (dict(says=(2, 0)), "is on cuda:0"),
        (dict(device=(2, 0), says=DEVICE), "exports no tensor of its device"),
        (dict(bits=64), "is float64; on the device it must be float32"),
        (dict(bits=16), "is float16; on the device it must be float32"),
        (dict(strides=(1, 4)), "is not dense in row-major order"),
        (dict(shape=(4, 8), strides=(16, 1)), "is not dense in row-major order"),
    ],
)
def test_arrays_that_do_not_fit_are_named(options, text):
    s, other = square(), square(seed=1)
    before = s.state["w"].numpy()
    for name, attempt in (
        ("x", lambda: s.step({"x": Foreign(other, **options), "t": T})),
        ("w", lambda: s.state.__setitem__("w", Foreign(other, **options))),
    ):
        with pytest.raises(onnx_train.DataError) as raised:
            attempt()
        assert f"'{name}' {text}" in str(raised.value) and "\n" not in str(raised.value)
    assert np.array_equal(s.state["w"], before)


@pytest.mark.parametrize("shape", [(16, 4), (64,), (4, 16, 1), ()])
def test_another_shape_is_an_error(shape):
    s, other = square(), square(seed=1)
    with pytest.raises(onnx_train.DataError, match="x"):
        s.step({"x": Foreign(other, shape=shape), "t": T})
    with pytest.raises(onnx_train.DataError, match="state 'w' has another shape"):
        s.state["w"] = Foreign(other, shape=shape)


def test_dense_strides_and_sizes_of_one_are_accepted():
    s, other = square(), square(seed=1)
    s.state["w"] = Foreign(other, strides=(16, 1))
    assert np.array_equal(s.state["w"], other.state["w"])
    s = session()
    s.predict(Foreign(other, shape=(1, 4), strides=(99, 1)))


def test_an_array_of_a_device_is_no_input_of_a_session_on_the_cpu():
    on_device, on_host = square(), square("cpu")
    for attempt in (
        lambda: on_host.predict(on_device.state["w"]),
        lambda: on_host.state.__setitem__("w", on_device.state["w"]),
        lambda: onnx_train.fit(on_host, {"x": Foreign(on_device), "t": T}, epochs=1),
    ):
        with pytest.raises(onnx_train.DataError, match="is on device 12:0, .* copy it to the host first"):
            attempt()
    on_host.state["w"] = on_device.state["w"].numpy()
    assert np.array_equal(on_host.state["w"], on_device.state["w"])


def test_arrays_on_the_host_are_inputs_as_before():
    s, host = session(), session("cpu")
    for x in (X, torch.from_numpy(X), X.tolist(), np.asfortranarray(X), torch.from_numpy(X).requires_grad_()):
        assert s.step(x, LABELS).loss == pytest.approx(host.step(x, LABELS).loss, rel=1e-6)


def test_batches_on_the_device_train():
    ours, theirs, other = square(), square(), square(seed=1)
    arrays = [Foreign(other) for _ in range(6)]
    onnx_train.fit(ours, [{"x": x, "t": T} for x in arrays], epochs=2)
    onnx_train.fit(theirs, [{"x": other.state["w"].numpy(), "t": T} for _ in arrays], epochs=2)
    assert np.array_equal(ours.state["w"], theirs.state["w"]) and all(x.deleted == 2 for x in arrays)


def test_weights_go_to_files_and_models(tmp_path):
    s = session()
    s.step(X, LABELS)
    values = {name: np.asarray(array) for name, array in s.state.items()}
    for state in (False, True):
        onnx_train.save_weights(s, tmp_path / "weights.safetensors", state=state)
        other = session()
        names = onnx_train.load_weights(other, tmp_path / "weights.safetensors")
        assert len(names) == (5 if state else 4) and all(np.array_equal(other.state[n], values[n]) for n in names)
    weights = {name: array for name, array in s.state.items() if name.startswith("fc")}
    model = onnx_train.load(MLP).with_weights(weights)
    np.testing.assert_allclose(onnx_train.Session(model).predict(X).logits, s.predict(X).logits, rtol=1e-6, atol=1e-6)


def test_the_module_of_onnxruntime_training_runs_on_the_device(tmp_path, monkeypatch):
    from onnx_train.onnxruntime.training import artifacts
    from onnx_train.onnxruntime.training.api import CheckpointState, Module

    monkeypatch.chdir(tmp_path)
    artifacts.generate_artifacts(onnx.load(MLP), requires_grad=["fc1.weight"], frozen_params=["fc1.bias", "fc2.weight", "fc2.bias"],
                                 loss=artifacts.LossType.CrossEntropyLoss)  # fmt: skip
    state = CheckpointState.load_checkpoint("checkpoint")
    module = Module("training_model.onnx", state, "eval_model.onnx", device="async_host")
    assert module(X, LABELS) > 0
    parameter = state.parameters["fc1.weight"]
    assert parameter.grad.any() and parameter.data.shape == (4, 16)
    parameter.data = np.ones((4, 16), np.float32)
    assert parameter.data.sum() == 64
    vector = module.get_contiguous_parameters(trainable_only=True)
    module.copy_buffer_to_parameters(vector)
    module.lazy_reset_grad()
    module(X, LABELS)
    CheckpointState.save_checkpoint(state, "saved", include_optimizer_state=True)
    assert np.array_equal(CheckpointState.load_checkpoint("saved").parameters["fc1.weight"].data, parameter.data)


def test_on_cuda_states_have_its_interface_and_producers_get_the_stream():
    """With CUDA's kernels executed on the host, in a process whose library has that module beside it."""
    if not (tool.CUDA_ON_HOST.parent / "libonnx_train_cuda.so").exists():
        pytest.skip("CUDA on the host is not built")
    program = """
        import sys
        sys.path[:0] = sys.argv[1:]
        import numpy as np
        from test_package_device import LABELS, MLP, T, X, Foreign, onnx_train, square, tensor_of
        ours, theirs, other = square("cuda"), square("cuda"), square("cuda", seed=1)
        array = other.state["w"]
        assert array.__dlpack_device__() == (2, 0) and repr(array).endswith("float32 (4, 16) on cuda:0>")
        assert array.__cuda_array_interface__ == {
            "shape": (4, 16), "typestr": "<f4", "data": (tensor_of(array.__dlpack__(stream=1)).data, False), "version": 3}
        foreign = Foreign(other, device=(2, 0))
        assert ours.step(foreign, T) == theirs.step(array.numpy(), T) and ours.step(array, T).loss > 0
        assert len(foreign.exports) == 1 and type(foreign.exports[0]) is int and foreign.exports[0] != 0
        training = onnx_train.build(MLP)
        exact, rounded = (onnx_train.Session(training, "cuda", tf32=tf32).step(X, LABELS).loss for tf32 in (False, True))
        assert 0 < abs(exact - rounded) < 2**-10 * exact
        sessions = [onnx_train.Session(training, "cuda", offload=offload) for offload in (None, "optimizer")]
        losses = [[session.step(X, LABELS).loss for _ in range(3)] for session in sessions]
        assert losses[0] == losses[1] and losses[0][2] < losses[0][0]
        moments = [session.state["state/fc1.weight/exp_avg"] for session in sessions]
        assert np.array_equal(moments[0].numpy(), moments[1].numpy()) and moments[0].numpy().any()
        sessions[1].state["state/fc1.weight/exp_avg"] = sessions[0].state["fc1.weight"]
        assert np.array_equal(moments[1].numpy(), sessions[0].state["fc1.weight"].numpy())
        assert moments[1].__dlpack_device__() == (2, 0)
        try:
            onnx_train.Session(training, offload="optimizer")
            raise SystemExit("the CPU offloads")
        except onnx_train.UsageError as error:
            assert str(error).endswith("where cpu has them; leave it out"), error
        second = square("cuda:1")
        array = second.state["w"]
        assert array.__dlpack_device__() == (2, 1) and repr(array).endswith("float32 (4, 16) on cuda:1>")
        values = array.numpy()
        assert (second.step(values, T).loss == square("cuda:0").step(values, T).loss)
        try:
            square("cuda:7")
            raise SystemExit("there is a device cuda:7")
        except onnx_train.DeviceError as error:
            assert str(error) == "there is no device 'cuda:7': this machine has 2, cuda:0 to cuda:1", error
    """
    folders = [tool.ROOT / "tests" / "python", tool.ROOT / "tests" / "python" / "package", tool.COMMAND.parent / "python"]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *folders],
        env=os.environ | {"LD_LIBRARY_PATH": str(tool.CUDA_ON_HOST.parent)}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
