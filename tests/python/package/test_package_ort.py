"""onnx_train.ort.Session: the numbers of our own runtime, checkpoints of both, and errors that say what it has not."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import onnx
import pytest
import reference
import tool

import onnx_train
import onnx_train.ort

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
X, LABELS = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
STEPS, BATCHES = 20, 3
NETWORKS = {
    "resnet18": dict(width=16, size=16),
    "gpt2": dict(tokens=16, dropout=0.1),
    "bert": dict(tokens=16),
    "lstm": dict(width=16),
    "mlp": dict(batch=32, sizes=(12, 64, 32, 3)),
}
# AdamW makes a whole step of a gradient near zero, whatever its rounding, which convolutions show within ten steps.
MOMENTUM = "sgd(lr={}, momentum=0.9)"
OPTIMIZERS = {"resnet18": MOMENTUM.format(0.001)}


def sessions(training, **options):
    return onnx_train.Session(training, threads=1), onnx_train.ort.Session(training, threads=1, **options)


def mlp(**options):
    return onnx_train.build(MLP, "cross_entropy", **{"optimizer": "adamw(lr=0.01)", **options})


def batches_of(data, size, steps):
    rows = len(data["labels"])
    for step in range(steps):
        start = step * size % rows
        yield {name: array[start : start + size] for name, array in data.items()}


def assert_equal_losses(training, batches):
    ours, theirs = sessions(training)
    losses = [[session.step(batch).loss for session in (ours, theirs)] for batch in batches]
    np.testing.assert_allclose(*zip(*losses), rtol=1e-5)
    assert losses[-1][0] != losses[0][0]
    return ours, theirs


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_ours(exported, name):
    sizes = NETWORKS[name]
    example, path = exported(name, train="dropout" in sizes, **sizes)
    training = onnx_train.build(path, example.loss, OPTIMIZERS.get(name, "adamw(lr=0.001)"))
    size = len(example.labels)
    assert_equal_losses(training, batches_of(reference.repeated(example, BATCHES), size, STEPS))


def test_losses_of_the_digits_are_ours_and_so_is_what_is_learned():
    training = onnx_train.build(tool.ROOT / "models" / "digits_cnn.onnx", "cross_entropy", MOMENTUM.format(0.02))
    data = tool.load(tool.ROOT / "models" / "data" / "digits_train.npz")
    ours, theirs = assert_equal_losses(training, batches_of(data, 32, 40))
    test = tool.load(tool.ROOT / "models" / "data" / "digits_test.npz")
    found = [session.evaluate(test) for session in (ours, theirs)]
    assert found[1].accuracy == found[0].accuracy > 0.8 and found[1].loss == pytest.approx(found[0].loss, rel=1e-4)
    images = test["image"][:5]
    np.testing.assert_allclose(*(session.predict(images).logits for session in (ours, theirs)), rtol=1e-3, atol=1e-3)
    right = {"right": lambda outputs, data: int((outputs["logits"].argmax(1) == data["labels"]).sum())}
    assert theirs.evaluate(test, metrics=right).right == round(found[1].accuracy * len(test["labels"]))


def test_a_run_goes_on_in_the_other_session(tmp_path):
    for first, second in ((0, 1), (1, 0)):
        both = sessions(mlp(accumulate=False))
        for session in both:
            for _ in range(3):
                session.step(X, LABELS)
        both[first].save(tmp_path / "begun.onnx")
        went_on = sessions(tmp_path / "begun.onnx")[second]
        assert int(went_on.state["state/step"]) == 3
        for _ in range(3):
            assert went_on.step(X, LABELS).loss == pytest.approx(both[first].step(X, LABELS).loss, rel=1e-6)


def test_accumulated_batches_are_ours_and_weights_go_both_ways(tmp_path):
    ours, theirs = sessions(mlp(accumulate=True))
    for session in (ours, theirs):
        for _ in range(3):
            for rows in (slice(0, 2), slice(2, 4)):
                session.accumulate(X[rows], LABELS[rows])
            result = session.apply(lr=0.05, clip_norm=0.5)
        assert result.grad_norm > 0
    for name, value in ours.state.items():
        np.testing.assert_allclose(theirs.state[name], value, rtol=1e-4, atol=1e-6)
    onnx_train.save_weights(theirs, tmp_path / "weights.safetensors")
    fresh = sessions(mlp())
    for session in fresh:
        onnx_train.load_weights(session, tmp_path / "weights.safetensors")
    np.testing.assert_allclose(*(session.predict(X).logits for session in fresh), rtol=1e-5, atol=1e-6)
    assert np.array_equal(onnx_train.Session(theirs.export(), threads=1).predict(X).logits, ours_of(theirs).predict(X).logits)


def ours_of(session):
    return onnx_train.Session(session.model(), threads=1)


def test_learning_rates_are_those_of_fit():
    rate = dict(lr=0.02, schedule="cosine", warmup=2, steps=6)
    history = onnx_train.fit(mlp(), {"x": X, "labels": LABELS}, batch_size=4, shuffle=False, threads=1, **rate)
    assert [step.learning_rate for step in history.steps] == [onnx_train.learning_rate(i, **rate) for i in range(6)]
    theirs = onnx_train.ort.Session(mlp(), threads=1)
    losses = [theirs.step(X, LABELS, lr=onnx_train.learning_rate(i, **rate)).loss for i in range(6)]
    np.testing.assert_allclose(losses, history.losses, rtol=1e-5)
    with pytest.raises(TypeError, match="has no argument 'batch_size'; it has lr, schedule"):
        onnx_train.learning_rate(0, batch_size=3)
    with pytest.raises(onnx_train.UsageError):
        onnx_train.learning_rate(0, schedule="cosine")


def test_a_default_comes_back_after_a_run_that_was_given_another_value():
    ours, theirs = sessions(mlp())
    for lr in (0.5, None, 0.5, None):
        losses = [session.step(X, LABELS, lr=lr).loss for session in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_sizes_of_batches_may_change_and_results_belong_to_the_caller():
    _, theirs = sessions(mlp())
    kept = [theirs.predict(X[:n]).logits for n in (4, 1, 3, 4)]
    assert [array.shape for array in kept] == [(4, 3), (1, 3), (3, 3), (4, 3)]
    np.testing.assert_array_equal(kept[0], kept[3])
    theirs.step(X[:2], LABELS[:2])
    assert theirs.step(X, LABELS).loss_count == 4
    assert not np.array_equal(theirs.predict(X).logits, kept[0])


def test_a_state_is_a_copy_that_cannot_be_written_by_mistake():
    _, theirs = sessions(mlp())
    before = theirs.state["fc1.bias"]
    theirs.step(X, LABELS)
    assert not np.array_equal(before, theirs.state["fc1.bias"])
    with pytest.raises(ValueError, match="read-only"):
        before[:] = 1
    theirs.state["fc1.bias"] = before + 1
    np.testing.assert_array_equal(theirs.state["fc1.bias"], before + 1)
    with pytest.raises(onnx_train.DataError, match="another shape"):
        theirs.state["fc1.bias"] = np.ones(3)
    theirs.initialize()
    np.testing.assert_array_equal(theirs.state["fc1.bias"], before)
    assert theirs.state["state/step"] == 0


def test_sessions_swap_with_their_like():
    ours, theirs = sessions(mlp())
    other = sessions(mlp())[1]
    other.step(X, LABELS)
    expected = {name: np.array(value) for name, value in other.state.items()}
    theirs.swap(other)
    assert all(np.array_equal(value, expected[name]) for name, value in theirs.state.items())
    assert other.state["state/step"] == 0
    for one, two in ((ours, theirs), (theirs, ours)):
        with pytest.raises(onnx_train.UsageError, match="of one runtime"):
            one.swap(two)


@pytest.mark.parametrize("batch, message", [
    ((X, LABELS + 9), "node 'loss' .*: label 9 at position 0 is outside the 3 classes 0 to 2"),
    ((X * np.nan, LABELS), "the loss is NaN; no weight is changed"),
    ((X[:, :3], LABELS), r"input 'x' has shape \[4,3\]; the model takes float\[batch,4\]"),
    ((X,), r"the input 'labels', int64\[batch\], is missing"),
    ((X.astype(complex), LABELS), "'x' is complex128; it must be float32"),
])  # fmt: skip
def test_a_run_that_fails_changes_nothing(batch, message):
    _, theirs = sessions(mlp())
    theirs.step(X, LABELS)
    before = dict(theirs.state)
    with pytest.raises(onnx_train.DataError, match=message):
        theirs.step(*batch)
    assert all(np.array_equal(value, before[name]) for name, value in theirs.state.items())
    assert theirs.step(X, LABELS).loss > 0


FAULTS = {
    "labels above the classes": ("step", dict(x=X, labels=LABELS + 9)),
    "negative labels": ("evaluate", dict(x=X, labels=LABELS - 7)),
    "a wrong width": ("step", dict(x=X[:, :3], labels=LABELS)),
    "a missing axis": ("predict", dict(x=X[0])),
    "an axis too many": ("step", dict(x=X, labels=LABELS[:, None])),
    "more labels than rows": ("step", dict(x=X, labels=np.zeros(5, np.int64))),
    "one label for all rows": ("step", dict(x=X, labels=np.zeros(1, np.int64))),
    "an unknown name": ("step", dict(x=X, y=LABELS)),
    "a missing input": ("step", dict(labels=LABELS)),
    "labels that are no integers": ("step", dict(x=X, labels=LABELS / 2)),
    "two learning rates": ("step", dict(x=X, labels=LABELS, learning_rate=np.ones(2, np.float32))),
}


def error_of(session, entry, inputs):
    with pytest.raises(onnx_train.Error) as raised:
        session.run(entry, inputs)
    return raised.value


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_batch_is_said_as_our_own_session_says_it(fault):
    ours, theirs = (error_of(session, *FAULTS[fault]) for session in sessions(mlp()))
    assert (type(theirs), theirs.code, str(theirs)) == (type(ours), ours.code, str(ours)) and ours.code


def test_tokens_out_of_range_are_named_by_our_own_runtime_with_the_cause(exported):
    example, path = exported("gpt2", tokens=16, dropout=0.1, train=True)
    data = reference.repeated(example, 1)
    tokens = next(name for name, array in data.items() if name != "labels" and array.dtype.kind == "i")
    wrong = {**data, tokens: np.full_like(data[tokens], 1 << 20)}
    ours, theirs = (error_of(session, "step", wrong) for session in sessions(onnx_train.build(path, example.loss)))
    assert (type(theirs), theirs.code, str(theirs)) == (type(ours), "OT3005", str(ours))
    assert str(theirs.__cause__).startswith("Error in execution")


@pytest.mark.parametrize("entry", ["step", "accumulate"])
def test_a_step_on_no_samples_is_an_error_and_a_prediction_is_none(entry):
    _, theirs = sessions(mlp(accumulate=entry == "accumulate"))
    before = dict(theirs.state)
    error = error_of(theirs, entry, dict(x=X[:0], labels=LABELS[:0]))
    assert type(error) is onnx_train.DataError and error.code == "OT5001"
    assert str(error) == f"the batch of entry point '{entry}' is empty: 'labels' is int64[0]"
    assert all(np.array_equal(value, before[name]) for name, value in theirs.state.items())
    assert theirs.predict(X[:0]).logits.shape == (0, 3)


def test_a_failure_that_our_own_runtime_cannot_tell_has_one_line_and_the_ranges_of_integers(monkeypatch):
    _, theirs = sessions(mlp())
    theirs.step(X, LABELS)

    class Session:
        def __init__(self, model, options):
            raise onnx_train.OutOfMemoryError("no room")

    monkeypatch.setattr(onnx_train.ort._core, "Session", Session)
    error = error_of(theirs, "step", dict(x=X, labels=LABELS + 9))
    assert type(error) is onnx_train.DataError
    assert str(error).startswith("entry point 'step' on ONNX Runtime: ") and str(error).endswith("; 'labels' holds 9 to 11")
    assert str(error.__cause__).startswith("Error in execution")


@pytest.mark.parametrize("raised, expected", [
    (RuntimeError("Error in execution: [ONNXRuntimeError] : 1 : FAIL : first\nsecond"), onnx_train.UnsupportedError),
    (RuntimeError("CUDA failure 700: an illegal memory access"), onnx_train.DeviceError),
    (MemoryError("no memory"), onnx_train.OutOfMemoryError),
])  # fmt: skip
def test_what_onnx_runtime_alone_refuses_is_an_error_of_ours_with_its_first_line(monkeypatch, raised, expected):
    _, theirs = sessions(mlp())
    theirs.step(X, LABELS)

    class Refusing:
        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

        def run_with_iobinding(self, binding):
            raise raised

    run = theirs._core._runs["step"]
    run.session = Refusing(run.session)
    error = error_of(theirs, "step", dict(x=X, labels=LABELS))
    assert type(error) is expected and error.__cause__ is raised
    assert str(error).startswith("entry point 'step' on ONNX Runtime: ") and "second" not in str(error)


def test_help_promises_no_paths():
    for method in (onnx_train.ort.Session.evaluate, onnx_train.ort.Session.predict):
        assert "npz" not in method.__doc__ and "UnsupportedError" in method.__doc__
    with pytest.raises(onnx_train.UsageError, match="are for a path of data"):
        sessions(mlp())[1].evaluate(X, LABELS, batch_size=2)


def test_non_finite_losses_are_taken_where_they_are_allowed():
    _, theirs = sessions(mlp(), allow_non_finite=True)
    assert np.isnan(theirs.step(X * np.nan, LABELS).loss) and np.isnan(theirs.state["fc1.bias"]).any()


@pytest.mark.parametrize("call, message", [
    (lambda s: onnx_train.fit(s, {"x": X, "labels": LABELS}, steps=1), "fit is for onnx_train.Session.*learning_rate"),
    (lambda s: s.plan(), "plan is for onnx_train.Session"),
    (lambda s: onnx_train.generate(s, [0]), "generate is for onnx_train.Session"),
    (lambda s: s.evaluate("data.npz"), "a path of data is for onnx_train.Session.*load_data"),
    (lambda s: s.predict("data.npz"), "a path of data is for onnx_train.Session.*load_data"),
    (lambda s: onnx_train.ort.Session(MLP, device="cuda"), "device is an option of onnx_train's own runtime.*providers"),
    (lambda s: onnx_train.ort.Session(MLP, ranks="environment"), "ranks is an option of onnx_train's own runtime"),
])  # fmt: skip
def test_what_it_has_not_is_named(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=X, labels=LABELS)
    with pytest.raises(onnx_train.UnsupportedError, match=message):
        call(sessions(mlp())[1])


def test_a_provider_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(onnx_train.DeviceError, match="has no 'TPUExecutionProvider' here; it has .*CPUExecutionProvider"):
        onnx_train.ort.Session(mlp(), [("TPUExecutionProvider", {"device_id": 1}), "CPUExecutionProvider"])
    with pytest.raises(TypeError, match="no argument 'provider'"):
        onnx_train.ort.Session(mlp(), provider="CPUExecutionProvider")
    for options in (dict(threads=0), dict(threads=1, session_options=object())):
        with pytest.raises(onnx_train.UsageError, match="threads is"):
            onnx_train.ort.Session(mlp(), **options)
    assert "CPUExecutionProvider" in repr(onnx_train.ort.Session(mlp(), "CPUExecutionProvider"))


def test_an_operator_that_onnx_runtime_refuses_is_named(exported):
    _, path = exported("cnn", double=True)  # its CPU has no convolution of doubles
    session = onnx_train.ort.Session(onnx_train.build(path, "cross_entropy", "sgd"))
    with pytest.raises(onnx_train.UnsupportedError, match="ONNX Runtime refuses the entry point 'step': Could not find an implementation for Conv"):
        session.step(np.zeros((1, 3, 8, 8)), np.array([0]))


def test_one_thread_at_a_time_uses_a_session():
    _, theirs = sessions(mlp())
    theirs.step(X, LABELS)
    big, errors, stop = np.zeros((200000, 4), np.float32), [], threading.Event()

    def work():
        while not stop.is_set():
            try:
                theirs.predict(big)
            except onnx_train.UsageError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while not errors:
        stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert "at work in another thread" in errors[0]
    assert theirs.step(X, LABELS).loss > 0


def test_a_forward_model_predicts():
    theirs = onnx_train.ort.Session(MLP)
    assert theirs.entries == ["predict"] and not theirs.state
    np.testing.assert_allclose(theirs.predict(X).logits, onnx_train.Session(MLP, threads=1).predict(X).logits, rtol=1e-5, atol=1e-6)


def test_adapters_and_statistics_of_metrics_are_ours(tmp_path):
    ours, theirs = sessions(onnx_train.build(MLP, "cross_entropy", "adamw", lora={"rank": 2}, metric="f1"))
    for session, name in ((ours, "ours"), (theirs, "theirs")):
        for _ in range(3):
            session.step(X, LABELS, lr=0.1)
        session.save_adapter(tmp_path / name)
    assert theirs.evaluate(X, LABELS).f1 == pytest.approx(ours.evaluate(X, LABELS).f1)
    fresh = onnx_train.ort.Session(onnx_train.build(MLP, lora={"rank": 2}))
    fresh.load_adapter("theirs", tmp_path / "theirs")
    fresh.set_adapter("theirs")
    np.testing.assert_allclose(fresh.predict(X).logits, ours.predict(X).logits, rtol=1e-4, atol=1e-5)


def test_predict_of_a_flattened_model_takes_the_weights_as_inputs_with_defaults(tmp_path):
    training = mlp()
    flat = onnx.load_from_string(training.flatten("predict").to_bytes())
    onnx.checker.check_model(flat, full_check=True)
    onnx.save(flat, tmp_path / "predict.onnx")
    runtime = tool.session(tmp_path / "predict.onnx")
    assert [value.name for value in runtime.get_overridable_initializers()] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    shifted = runtime.run(None, {"x": X, "fc2.bias": np.full(3, 7, np.float32)})[0]
    bias = np.asarray(onnx_train.Session(training).state["fc2.bias"])
    np.testing.assert_allclose(shifted - 7 + bias, runtime.run(None, {"x": X})[0], atol=1e-5)


def test_without_onnx_runtime_the_import_says_what_to_install():
    program = f"""
        import sys
        sys.path.insert(0, {str(tool.BUILD / "python")!r})
        sys.modules["onnxruntime"] = None
        import onnx_train
        try:
            import onnx_train.ort
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert "onnx_train.ort needs ONNX Runtime: pip install onnxruntime" in done.stdout, done.stderr
