"""The C interface from ctypes: the training loop over batches of a callback, without the package."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p

import numpy as np
import pytest
import tool

LIBRARY = tool.COMMAND.parent / "libonnx_train.so"
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
USAGE, CONTINUE, STOP, FAIL = 1, 0, 1, 3
FLOAT, INT64 = 1, 7


class Tensor(Structure):
    _fields_ = [("name", c_char_p), ("type", c_int), ("rank", c_int32), ("shape", POINTER(c_int64)), ("data", c_void_p),
                ("memory", c_int)]  # fmt: skip


class Option(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Step(Structure):
    _fields_ = [("step", c_int64), ("epoch", c_int64), ("samples", c_int64), ("loss", c_double), ("rate", c_double),
                ("accuracy", c_double), ("grad_norm", c_double), ("seconds", c_double)]  # fmt: skip


Begin = CFUNCTYPE(c_int, c_void_p, c_int64)
Next = CFUNCTYPE(c_int, c_void_p, POINTER(POINTER(Tensor)), POINTER(c_size_t))
OnStep = CFUNCTYPE(c_int, c_void_p, POINTER(Step))


class Data(Structure):
    _fields_ = [("size", c_size_t), ("arrays", c_void_p), ("num_arrays", c_size_t), ("user", c_void_p),
                ("begin", Begin), ("next", Next), ("batches", c_int64)]  # fmt: skip


class Observer(Structure):
    _fields_ = [("size", c_size_t), ("user", c_void_p), ("on_step", OnStep), ("on_evaluation", c_void_p),
                ("on_checkpoint", c_void_p)]  # fmt: skip


class Fit:
    """A session of the MLP, and trainings of it on batches of 8 and 5 samples."""

    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))
        self.library.onnx_train_last_error.restype = c_char_p
        forward, training, self.session = c_void_p(), c_void_p(), c_void_p()
        options = (Option * 2)(Option(b"loss", b"cross_entropy"), Option(b"optimizer", b"sgd"))
        assert self.library.onnx_train_model_load(str(MLP).encode(), byref(forward)) == 0
        assert self.library.onnx_train_model_build(forward, options, c_size_t(2), byref(training)) == 0
        assert self.library.onnx_train_session_create(training, None, c_size_t(0), byref(self.session)) == 0
        self.library.onnx_train_model_free(forward)
        self.library.onnx_train_model_free(training)
        self.steps = []

    def run(self, answer, data_answer=CONTINUE, **options):
        x = np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32)
        labels = np.argmax(x[:, :3], axis=1).astype(np.int64)
        state = {}

        def begin(user, epoch):
            state["sizes"] = iter([(0, 8), (8, 13)])
            return CONTINUE

        def following(user, tensors, count):
            start, end = next(state["sizes"], (0, 0))
            count[0] = 2 if end > 0 else 0
            shape = state["shape"] = (c_int64 * 2)(end - start, 4)
            batch = state["batch"] = (Tensor * 2)(
                Tensor(b"x", FLOAT, 2, shape, x[start:].ctypes.data),
                Tensor(b"labels", INT64, 1, shape, labels[start:].ctypes.data),
            )
            tensors[0] = ctypes.cast(batch, POINTER(Tensor))
            return data_answer

        def on_step(user, step):
            s = step.contents
            self.steps.append((s.step, s.epoch, s.samples, s.loss))
            return answer(s.step)

        functions = Begin(begin), Next(following), OnStep(on_step)
        data = Data(ctypes.sizeof(Data), None, 0, None, functions[0], functions[1], 0)
        observer = Observer(ctypes.sizeof(Observer), None, functions[2], None, None)
        given = [Option(n.replace("_", "-").encode(), str(v).encode()) for n, v in options.items()]
        reason = c_int(-1)
        status = self.library.onnx_train_fit(self.session, byref(data), None, (Option * len(given))(*given),
                                             c_size_t(len(given)), byref(observer), byref(reason))  # fmt: skip
        return status, reason.value

    def error(self):
        return self.library.onnx_train_last_error().decode()


@pytest.fixture
def fit():
    made = Fit()
    yield made
    made.library.onnx_train_session_free(made.session)


def test_batches_of_a_callback_are_trained_on(fit):
    assert fit.run(lambda step: CONTINUE, epochs=20, lr=0.5) == (0, 0)
    assert [s[:3] for s in fit.steps[:4]] == [(1, 1, 8), (2, 1, 5), (3, 2, 8), (4, 2, 5)] and len(fit.steps) == 40
    assert fit.steps[-1][3] < fit.steps[0][3]


def test_callbacks_stop_and_fail(fit):
    assert fit.run(lambda step: STOP if step == 3 else CONTINUE, epochs=20) == (0, 4)
    assert len(fit.steps) == 3
    assert fit.run(lambda step: FAIL, epochs=20) == (USAGE, -1) and "callback" in fit.error()
    assert fit.run(lambda step: CONTINUE, data_answer=FAIL, epochs=1)[0] == USAGE
    assert fit.run(lambda step: CONTINUE, epochs=1) == (0, 0), "the session is usable after failures"


def test_wrong_options_are_errors(fit):
    assert fit.run(lambda step: CONTINUE)[0] == USAGE and "needs an end" in fit.error()
    assert fit.run(lambda step: CONTINUE, epochs=1, schedule="cosine")[0] == USAGE
    assert fit.run(lambda step: CONTINUE, epochs=1, speed=3)[0] == USAGE and "speed" in fit.error()
