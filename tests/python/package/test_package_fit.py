"""onnx_train.fit: the command's numbers on the command's options, and what only Python has."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import warnings

import numpy as np
import pytest
import tool
import torch

import onnx_train
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
DATA = {"x": X, "labels": np.argmax(X[:, :3], axis=1)}


def training(**options):
    return onnx_train.build(MLP, optimizer="adamw(lr=0.01)", **options)


def batches(size=8):
    return [{name: array[i : i + size] for name, array in DATA.items()} for i in range(0, 40, size)]


@pytest.mark.parametrize(
    "options, arguments",
    [
        ({"lr": 0.03, "schedule": "cosine", "warmup": 3, "final_lr": 0.001},
         ["--lr", "0.03", "--schedule", "cosine", "--warmup", "3", "--final-lr", "0.001"]),
        ({"lr": 0.03, "schedule": "step", "step_every": 4, "step_factor": 0.5, "clip": 0.1},
         ["--lr", "0.03", "--schedule", "step", "--step-every", "4", "--step-factor", "0.5", "--clip", "0.1"]),
        ({"schedule": "linear"}, ["--schedule", "linear"]),
        ({}, []),
    ],
)  # fmt: skip
def test_fit_makes_the_steps_of_the_command(tmp_path, options, arguments):
    model = training()
    model.save(tmp_path / "train.onnx")
    data = tool.save(tmp_path / "data.npz", DATA)
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--eval-data", data, "--epochs", 3, "--batch-size", 16,
             "--no-shuffle", "--out", tmp_path / "run", *arguments)  # fmt: skip
    history = onnx_train.fit(
        model, DATA, eval_data=DATA, epochs=3, batch_size=16, shuffle=False, threads=1, **options
    )
    theirs = [line for line in tool.metrics(tmp_path / "run") if "lr" in line]
    assert [step.samples for step in history.steps] == [16, 16, 8] * 3
    np.testing.assert_allclose(history.losses, [line["loss"] for line in theirs], rtol=1e-6)
    if options:
        np.testing.assert_allclose([s.learning_rate for s in history.steps], [line["lr"] for line in theirs], rtol=1e-6)
    trained = tool.session(export(tmp_path)).run(None, {"x": X})[0]
    np.testing.assert_allclose(history.session.predict(X).logits, trained, rtol=1e-5, atol=1e-6)


def export(folder):
    tool.run("export", folder / "run" / "last.onnx", "-o", folder / "trained.onnx")
    return folder / "trained.onnx"


def test_data_are_arrays_lists_loaders_or_generators():
    def losses(data, **options):
        return onnx_train.fit(training(), data, threads=1, shuffle=False, batch_size=8, **options).losses

    expected = losses(DATA, epochs=2)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(DATA["labels"]))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    for data in (batches(), [tuple(b.values()) for b in batches()], loader, (X, DATA["labels"])):
        assert np.array_equal(losses(data, epochs=2), expected)
    assert np.array_equal(losses((b for b in batches()), epochs=1), expected[:5])
    drawn = []

    def endless():
        while True:
            drawn.append(1)
            yield batches()[0]

    with pytest.raises(onnx_train.UsageError, match="an iterator, which gives one epoch: give steps"):
        losses(endless(), epochs=2)
    assert not drawn, "which would never end"
    assert len(losses(endless(), steps=7)) == 7
    with pytest.raises(onnx_train.UsageError, match="give steps, since the data do not say how many batches"):
        losses(endless(), epochs=1, schedule="cosine")
    with pytest.raises(onnx_train.UsageError, match="give steps, since the data do not say"):
        losses(endless(), epochs=1, warmup="10%")


def test_shuffled_epochs_are_those_of_the_command_and_follow_from_the_seed(tmp_path):
    model = training()
    model.save(tmp_path / "train.onnx")
    data = tool.save(tmp_path / "data.npz", DATA)
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--epochs", 2, "--batch-size", 16, "--seed", 1,
             "--out", tmp_path / "run")  # fmt: skip
    theirs = [line["loss"] for line in tool.metrics(tmp_path / "run") if "lr" in line]

    def losses(seed):
        return onnx_train.fit(model, DATA, epochs=2, batch_size=16, seed=seed, threads=1).losses

    np.testing.assert_allclose(losses(1), theirs, rtol=1e-6)
    assert np.array_equal(losses(1), losses(1)) and not np.allclose(losses(1), losses(2))


@pytest.mark.parametrize("as_batches", [False, True], ids=["arrays", "batches"])
def test_a_training_that_is_interrupted_and_resumed_gives_the_files_of_one_that_is_not(tmp_path, as_batches):
    def run(folder, **options):
        data = batches() if as_batches else DATA
        return onnx_train.fit(training(), data, epochs=3, batch_size=8, lr=0.02, schedule="cosine", eval_data=DATA,
                              folder=tmp_path / folder, threads=1, **options)  # fmt: skip

    whole = run("whole")
    first = run("parts", callbacks=[lambda session, step: step.step == 5])
    with pytest.raises(onnx_train.UsageError, match="holds a run"):
        run("parts")
    second = run("parts", resume=True)
    assert first.reason == "callback" and second.steps[0].step == 6
    assert np.array_equal(np.concatenate([first.losses, second.losses]), whole.losses)
    for file in ("last.onnx", "best.onnx"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_that_failed_at_its_first_step_may_be_begun_anew(tmp_path):
    bad = {"x": np.full_like(DATA["x"], np.nan), "labels": DATA["labels"]}
    with pytest.raises(onnx_train.DataError, match="holds nan in sample"):
        onnx_train.fit(training(), bad, steps=2, folder=tmp_path / "run", data_check=False)
    assert (tmp_path / "run" / "last.onnx").exists()
    assert len(onnx_train.fit(training(), DATA, steps=2, folder=tmp_path / "run").steps) == 2


def test_a_run_that_is_resumed_goes_on_with_its_settings(tmp_path):
    """Rate, schedule, seed, size of a batch, clipping, threads and the end are those of the run, if none are given."""
    given = dict(epochs=2, lr=0.05, schedule="cosine", warmup=2, seed=3, batch_size=8, clip=0.5, threads=1)

    def run(folder, **options):
        return onnx_train.fit(training(), DATA, eval_data=DATA, folder=tmp_path / folder, progress=False, **options)

    whole = run("whole", **given)
    first = run("parts", **given, callbacks=[lambda session, step: step.step == 5])  # after an epoch
    second = run("parts", resume=True)
    assert np.array_equal(np.concatenate([first.losses, second.losses]), whole.losses)
    rates = [step.learning_rate for history in (first, second) for step in history.steps]
    assert rates == [step.learning_rate for step in whole.steps] and len(set(rates)) > 5
    for name, value in whole.session.state.items():
        assert np.array_equal(value, second.session.state[name]), name
    for file in ("last.onnx", "best.onnx"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()

    run("longer", **{**given, "epochs": 1, "schedule": "constant"})
    run("longer", epochs=2, resume=True)
    run("at once", **{**given, "schedule": "constant"})
    assert (tmp_path / "longer/last.onnx").read_bytes() == (tmp_path / "at once/last.onnx").read_bytes()


def test_a_run_over_batches_goes_on_with_as_many(tmp_path):
    batches = [{name: array[i : i + 8] for name, array in DATA.items()} for i in range(0, 40, 8)]
    onnx_train.fit(training(), batches, epochs=1, folder=tmp_path / "run", threads=1)
    with pytest.raises(onnx_train.Error, match="data was 5 batches of the program and is 3 batches of the program"):
        onnx_train.fit(training(), batches[:3], epochs=2, folder=tmp_path / "run", resume=True, threads=1)
    assert len(onnx_train.fit(training(), batches, epochs=2, folder=tmp_path / "run", resume=True, threads=1).steps) == 5


def test_what_may_change_on_resume_is_said_and_what_may_not_is_refused(tmp_path):
    def run(data=DATA, **options):
        return onnx_train.fit(training(), data, folder=tmp_path / "run", threads=1, **options)

    run(epochs=1, lr=0.05, seed=3, batch_size=8, scale={"x": 0.5})
    before = (tmp_path / "run/last.onnx").read_bytes()
    for options, text in (({"seed": 4}, "seed was 3 and is 4"), ({"batch_size": 4}, "batch-size was 8 and is 4"),
                          ({"shuffle": False}, "no-shuffle was false and is true"), ({"limit": 20}, "limit was"),
                          ({"data": {**DATA, "x": X + 1}}, "data was 40 samples")):  # fmt: skip
        with pytest.raises(onnx_train.Error, match=text):
            run(epochs=2, resume=True, **options)
    session = onnx_train.Session(training(), threads=1)
    untouched = {name: value.copy() for name, value in session.state.items()}
    with pytest.raises(onnx_train.Error, match="seed was 3 and is 4"):
        onnx_train.fit(session, DATA, folder=tmp_path / "run", epochs=2, resume=True, seed=4)
    assert all(np.array_equal(value, untouched[name]) for name, value in session.state.items())
    assert session._core.scale("x") == 1
    with pytest.raises(onnx_train.Error, match="was built with optimizer"):
        onnx_train.fit(onnx_train.build(MLP, optimizer="sgd"), DATA, folder=tmp_path / "run", epochs=2, resume=True)
    assert (tmp_path / "run/last.onnx").read_bytes() == before
    with pytest.warns(UserWarning, match="resumed, and changed: lr was 0.05 and is 0.01"):
        assert run(epochs=2, resume=True, lr=0.01).steps[0].learning_rate == pytest.approx(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(epochs=3, resume=True).steps[-1].learning_rate == pytest.approx(0.01)


def test_a_training_that_does_not_begin_leaves_no_trace_in_the_session(tmp_path):
    session = onnx_train.Session(training(), threads=1)
    before = session._core.model().metadata()
    rows = "".join(f"{','.join(map(str, x))},{'abc'[label]}\n" for x, label in zip(X, DATA["labels"]))
    (tmp_path / "data.csv").write_text("x0,x1,x2,x3,labels\n" + rows)
    with pytest.warns(UserWarning, match="read as 3 classes"):
        run = onnx_train.fit(training(), tmp_path / "data.csv", epochs=1, columns={"x": ["x0", "x1", "x2", "x3"]},
                             folder=tmp_path / "other", progress=False)  # fmt: skip
    assert run.session._core.model().metadata()["onnx_train.classes"] == '["a","b","c"]'
    scale = {"x": 0.5}
    for data, options, text in (
        ({**DATA, "labels": DATA["labels"] + 3}, {"scale": scale, "folder": tmp_path / "run"}, "labels"),
        (DATA, {"scale": scale, "folder": tmp_path / "run", "best": "unheard"}, "unheard"),
        (DATA, {"resume": True, "folder": tmp_path / "other"}, "cannot resume"),
    ):
        with pytest.raises(onnx_train.Error, match=text):
            onnx_train.fit(session, data, epochs=1, **options)
    after = session._core.model().metadata()
    assert {key: text for key, text in after.items() if text} == {key: text for key, text in before.items() if text}
    assert session._core.scale("x") == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", [{"epochs": "x", "threads": [1]}, {"batch-size": 0, "accumulate": True}, {"steps": 1.5}])
def test_damaged_options_of_a_run_do_not_stop_it(tmp_path, damage):
    given = dict(lr=0.05, batch_size=8, folder=tmp_path / "run", progress=False)
    onnx_train.fit(training(), DATA, epochs=1, **given)
    options = json.loads((tmp_path / "run/options.json").read_text())
    (tmp_path / "run/options.json").write_text(json.dumps(options | damage))
    assert len(onnx_train.fit(training(), DATA, epochs=2, resume=True, **given).steps) == 5


def test_a_run_has_the_options_of_the_commands_which_goes_on_with_it(tmp_path):
    training().save(tmp_path / "train.onnx")
    data = tool.save(tmp_path / "data.npz", DATA)
    given = dict(lr=0.05, schedule="cosine", seed=3, batch_size=8, drop_last=True)
    onnx_train.fit(tmp_path / "train.onnx", data, epochs=4, folder=tmp_path / "run", threads=1, **given,
                   callbacks=[lambda session, step: step.step == 5])  # fmt: skip
    options = json.loads((tmp_path / "run/options.json").read_text())
    for name, value in given.items():
        assert options[name.replace("_", "-")] == value
    assert options["data"] == str(data) and options["epochs"] == 4 and options["threads"] == 1
    assert options["derived"]["checked data"] and options["derived"]["run"]["lr"] == "0.05"
    assert [row["step"] for row in tool.metrics(tmp_path / "run")] == list(range(1, 6))
    tool.run("fit", tmp_path / "train.onnx", "--data", data, "--out", tmp_path / "run", "--resume", "--epochs", 2)
    rest = onnx_train.fit(tmp_path / "train.onnx", DATA, epochs=4, folder=tmp_path / "run", resume=True)
    assert [step.step for step in rest.steps] == list(range(11, 21))
    assert tool.losses(tmp_path / "run")[10:] == pytest.approx(list(rest.losses)) and len(tool.losses(tmp_path / "run")) == 20
    assert len((tmp_path / "run/epochs.jsonl").read_text().splitlines()) == 4
    whole = onnx_train.fit(tmp_path / "train.onnx", DATA, epochs=4, threads=1, **given)
    tool.run("fit", "--config", tmp_path / "run/options.json", tmp_path / "train.onnx", "--data", data,
             "--out", tmp_path / "again")  # fmt: skip
    np.testing.assert_allclose(tool.losses(tmp_path / "again"), whole.losses, rtol=1e-6)


def test_files_are_read_as_the_run_has_read_them(tmp_path):
    rows = [",".join(map(str, (*x, label))) for x, label in zip(X, DATA["labels"])]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,c,d,kind", *rows, ",,,,1"]) + "\n")
    how = {"missing": "drop", "map": {"kind": "labels"}, "columns": {"x": ["a", "b", "c", "d"]}}
    run = dict(data=tmp_path / "data.csv", folder=tmp_path / "run", threads=1)
    onnx_train.fit(training(), epochs=1, **run, **how)
    onnx_train.fit(training(), epochs=2, **run, resume=True)
    with pytest.raises(onnx_train.Error, match="missing was drop and is zero"):
        onnx_train.fit(training(), epochs=3, **run, resume=True, missing="zero")


def test_an_exception_of_the_data_or_a_callback_ends_the_fit():
    def broken():
        yield batches()[0]
        raise RuntimeError("the data are gone")

    def fails(session, step):
        raise KeyError("callback")

    session = onnx_train.Session(training(), threads=1)
    with pytest.raises(RuntimeError, match="the data are gone"):
        onnx_train.fit(session, broken(), epochs=1)
    with pytest.raises(KeyError, match="callback"):
        onnx_train.fit(session, DATA, epochs=1, callbacks=[fails])
    assert session.state["state/step"] == 2, "the session holds the steps that were made"


def test_callbacks_use_the_session():
    seen = []
    history = onnx_train.fit(training(), DATA, epochs=1, batch_size=8, threads=1,
                             callbacks=[lambda session, step: seen.append(session.predict(X).logits)])  # fmt: skip
    assert len(seen) == 5 and np.array_equal(seen[-1], history.session.predict(X).logits)


def test_accumulated_batches_are_one_step():
    options = {"epochs": 2, "shuffle": False, "threads": 1}
    parts = onnx_train.fit(training(accumulate=True), DATA, batch_size=8, accumulate=2, **options)
    whole = onnx_train.fit(training(), DATA, batch_size=16, **options)
    assert [step.samples for step in parts.steps] == [16, 16, 8] * 2
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)
    with pytest.raises(onnx_train.UsageError, match="accumulate=True"):
        onnx_train.fit(training(), DATA, epochs=1, accumulate=2)


def test_evaluations_are_means_over_the_samples():
    history = onnx_train.fit(training(), DATA, epochs=2, batch_size=16, eval_data=DATA, shuffle=False, threads=1)
    whole = history.session.evaluate(DATA)
    last = history.evaluations[-1]
    assert len(history.evaluations) == 2 and last.step == 6 and last.epoch == 2
    assert last.metrics["loss"] == pytest.approx(whole.loss, rel=1e-5) == pytest.approx(last.loss, rel=1e-5)
    assert last.metrics["accuracy"] == pytest.approx(whole.accuracy, rel=1e-5)
    means = [np.average(history.losses[i : i + 3], weights=[16, 16, 8]) for i in (0, 3)]
    np.testing.assert_allclose([e.train_loss for e in history.evaluations], means, rtol=1e-6)


def test_early_stop_limits_and_callbacks_end_a_training():
    class Stop(onnx_train.Callback):
        def on_step(self, session, step):
            return step.step == 7

    def reason(**options):
        history = onnx_train.fit(training(), DATA, batch_size=8, threads=1, **options)
        return history.reason, len(history.steps)

    assert reason(epochs=9, callbacks=[Stop()]) == ("callback", 7)
    assert reason(epochs=9, callbacks=[lambda session, step: step.step == 3]) == ("callback", 3)
    assert reason(epochs=9, steps=11) == ("finished", 11)
    assert reason(time_limit=0.05)[0] == "time_limit"
    assert reason(epochs=50, lr=0.0, early_stop=3, eval_data=DATA) == ("early_stop", 20)
    assert reason(epochs=50, stop_at="loss<=100", eval_data=DATA) == ("target", 5)


def test_a_loss_that_is_not_finite_is_an_error():
    data = {"x": np.where(np.arange(40)[:, None] == 20, np.inf, X).astype(np.float32), "labels": DATA["labels"]}
    with pytest.raises(onnx_train.DataError, match="data: 'x' holds inf in sample 20 "):
        onnx_train.fit(training(), data, epochs=1, batch_size=8, shuffle=False, threads=1)
    batches = [{name: array[i : i + 8] for name, array in data.items()} for i in range(0, 40, 8)]
    with pytest.raises(onnx_train.DataError, match="step 3: .* the loss is NaN; .* in the samples 17 to 24 of the epoch"):
        onnx_train.fit(training(), batches, epochs=1, threads=1)


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, "a training needs an end: give epochs, steps or time_limit"),
        ({"epochs": 1, "schedule": "cos"}, "schedule"),
        ({"epochs": 1, "schedule": "step"}, "step_every"),
        ({"time_limit": 1.0, "schedule": "cosine"}, "number of steps"),
        ({"epochs": 1, "batch_size": 0}, "batch_size is 0"),
        ({"epochs": "x"}, "epochs: 'x' is no number; take a whole number of at least 1"),
        ({"epochs": 1.5}, "epochs: 1.5 is out of range; take a whole number of at least 1"),
        ({"steps": [1, 2]}, r"steps: \[1, 2\] is no number; take a whole number of at least 1"),
        ({"steps": 1, "accumulate": "x"}, "accumulate: 'x' is no number"),
        ({"steps": 1, "callbacks": print}, "callbacks takes a list"),
        ({"steps": 1, "callbacks": [3]}, "callbacks takes a list"),
        ({"epochs": 1, "min_delta": 0.1}, "give early_stop, too"),
        ({"epochs": 1, "skip": 40}, "skip=40 of 40 samples leaves none"),
    ],
)
def test_wrong_options_are_named(options, text):
    with pytest.raises(onnx_train.UsageError, match=text):
        onnx_train.fit(training(), DATA, **options)


def test_a_wrong_type_is_the_same_error_whichever_option_has_it():
    errors = {}
    for option in ("epochs", "steps"):
        with pytest.raises(onnx_train.UsageError) as raised:
            onnx_train.fit(training(), DATA, **{option: "x"})
        errors[option] = raised.value
    assert str(errors["epochs"]).replace("epochs", "steps") == str(errors["steps"])
    assert errors["epochs"].code == errors["steps"].code == "OT6001"
    assert len(onnx_train.fit(training(), DATA, epochs="2", batch_size=np.int64(20), threads=1).steps) == 4


def test_data_that_are_none_are_missing_and_the_way_to_name_a_loss_is_pythons():
    for model in (MLP, training()):
        with pytest.raises(onnx_train.UsageError, match="^data is missing: give arrays by name"):
            onnx_train.fit(model, None, epochs=1)
    with pytest.raises(onnx_train.UsageError, match="^eval_data is of type int: give arrays by name"):
        onnx_train.fit(training(), DATA, eval_data=3, epochs=1)
    with pytest.raises(onnx_train.DataError, match="name a loss: loss='EXPR' .*, or, .*: map={'NAME': 'labels'}$"):
        onnx_train.fit(MLP, {"x": X}, epochs=1)


def test_samples_are_not_selected_among_batches_of_the_program():
    with pytest.raises(onnx_train.UsageError, match="^skip, limit: which samples there are is said of arrays and files"):
        onnx_train.fit(training(), batches(), epochs=1, limit=16, skip=8)


def test_a_checkpoint_is_written_and_progress_shown(tmp_path, capsys):
    history = onnx_train.fit(
        training(), DATA, epochs=2, batch_size=16, eval_data=DATA, progress=True, checkpoint=tmp_path / "c.onnx",
        threads=1,
    )  # fmt: skip
    shown = capsys.readouterr().err
    assert "epoch 1: train loss" in shown and "eval accuracy" in shown and "6/6" in shown
    again = onnx_train.Session(tmp_path / "c.onnx", threads=1)
    assert again.step(batches()[0]) == history.session.step(batches()[0])


def test_without_tqdm_progress_is_lines(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    onnx_train.fit(training(), DATA, epochs=2, progress=True, threads=1)
    assert capsys.readouterr().err.count("epoch") == 2


def test_ctrl_c_ends_a_fit_after_its_step(tmp_path):
    program = f"""
        import numpy as np
        import onnx_train
        rng = np.random.default_rng(0)
        data = {{"x": rng.normal(size=(4096, 4)).astype(np.float32), "labels": rng.integers(0, 3, 4096)}}
        def started(session, step):
            if step.step == 5:
                print("started", flush=True)
        history = onnx_train.fit(onnx_train.build({str(MLP)!r}), data, epochs=10**6, threads=1, callbacks=[started],
                                 checkpoint={str(tmp_path / "last.onnx")!r})
        assert history.session.state["state/step"] == len(history.steps), "a step is whole or not at all"
        print(history.reason, len(history.steps))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(tool.COMMAND.parent / "python")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a job in the background ignores it
    )  # fmt: skip
    assert process.stdout.readline() == "started\n", process.communicate()[1]
    time.sleep(0.3)
    start = time.perf_counter()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=tool.PATIENCE)
    assert process.returncode == 0 and out.startswith("interrupted "), (out, err)
    assert time.perf_counter() - start < 10
    assert onnx_train.Session(tmp_path / "last.onnx").state["state/step"] == int(out.split()[1])


def test_digits_are_learned():
    train, test = (tool.load(tool.ROOT / "models" / "data" / f"digits_{part}.npz") for part in ("train", "test"))
    model = onnx_train.build(tool.ROOT / "models" / "digits_cnn.onnx", optimizer="adamw(lr=3e-3)", seed=1)
    history = onnx_train.fit(model, train, eval_data=test, epochs=2, batch_size=32, threads=1)
    assert history.evaluations[-1].metrics["accuracy"] > 0.9


@pytest.mark.parametrize("as_batches", [False, True])
def test_a_scale_belongs_to_the_model_and_its_sessions(tmp_path, as_batches):
    stored = {"x": X * 4, "labels": DATA["labels"]}
    parts = [{name: array[i : i + 8] for name, array in stored.items()} for i in range(0, len(X), 8)]
    options = {"epochs": 2, "batch_size": 8, "shuffle": False, "threads": 1}
    plain = onnx_train.fit(training(), DATA, **options)
    scaled = onnx_train.fit(training(), parts if as_batches else stored, scale={"x": "1/4"}, eval_data=stored, **options)
    assert np.array_equal(scaled.losses, plain.losses)
    session = scaled.session
    assert session.evaluate(stored).loss == plain.session.evaluate(DATA).loss
    assert np.array_equal(session.predict(X * 4).logits, session.run("predict", {"x": X})["logits"])
    session.export(tmp_path / "model.onnx")
    assert np.array_equal(onnx_train.Session(tmp_path / "model.onnx").predict(X * 4).logits, session.predict(X * 4).logits)
    again = onnx_train.Session(session.model())
    assert np.array_equal(again.predict(X * 4).logits, session.predict(X * 4).logits)
    with pytest.raises(onnx_train.UsageError, match="'labels' is a target"):
        onnx_train.fit(training(), stored, scale={"labels": 2}, epochs=1)


def test_a_file_is_what_its_name_says(tmp_path):
    for write in (
        lambda path: onnx_train.fit(training(), DATA, epochs=1, checkpoint=path),
        lambda path: onnx_train.Session(training()).save(path),
        lambda path: onnx_train.Session(training()).export(path),
        lambda path: onnx_train.save_weights(training(), path),
    ):
        path = tmp_path / "model.pt"
        path.write_bytes(b"before")
        with pytest.raises(onnx_train.UsageError, match="a name that ends in"):
            write(path)
        assert path.read_bytes() == b"before"


def test_what_has_no_effect_on_a_dataloader_is_said():
    dataset = torch.utils.data.TensorDataset(torch.tensor(DATA["x"]), torch.tensor(DATA["labels"]))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    with pytest.warns(UserWarning, match="batch_size=16 has no effect: data makes its own batches") as warned:
        onnx_train.fit(training(), loader, epochs=1, batch_size=16, threads=1)
    assert len(warned) == 1 and warned[0].filename == __file__
    with pytest.warns(UserWarning, match="shuffle=True has no effect"):
        onnx_train.fit(training(), loader, epochs=1, shuffle=True, threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnx_train.fit(training(), loader, epochs=1, batch_size=8, shuffle=False, threads=1)
        onnx_train.fit(training(), loader, epochs=1, batch_size=16, eval_data=DATA, threads=1)  # of the evaluation


@pytest.mark.parametrize("as_batches", [False, True])
def test_bytes_that_go_to_a_float_input_are_said(as_batches):
    pictures = np.random.default_rng(0).integers(0, 256, (8, 4), dtype=np.uint8)

    def fit(x):
        data = {"x": x, "labels": np.arange(8) % 3}
        onnx_train.fit(training(), [data, data] if as_batches else data, epochs=1, threads=1)

    with pytest.warns(UserWarning, match=r"'x' holds uint8, up to 2[0-9]+, .* divide it by np.float32\(255\)") as warned:
        fit(pictures)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(pictures // 128)
        fit(pictures / np.float32(255))


def test_labels_out_of_range_are_found_before_the_first_step():
    steps = []
    wrong = {**DATA, "labels": DATA["labels"].copy()}
    wrong["labels"][-1] = 3
    for data, evaluated, where in ((wrong, None, "data"), (DATA, wrong, "evaluation data")):
        with pytest.raises(onnx_train.DataError, match=f"^{where}: 'labels' holds 3 in sample .* takes 0 to 2") as error:
            onnx_train.fit(training(), data, epochs=1, eval_data=evaluated, callbacks=[lambda s, t: steps.append(t)])
        assert len(str(error.value).splitlines()) == 1
    ignored = {**wrong, "labels": np.where(wrong["labels"] == 3, -100, wrong["labels"])}
    onnx_train.fit(training(), ignored, epochs=1, threads=1)
    assert not steps


def printed_alone_and_by_two_ranks(program, folder):
    """What a program prints that trains train.onnx on data.npz: as one process, given "alone", and as each of two ranks."""
    training(accumulate=True).save(folder / "train.onnx")
    tool.save(folder / "data.npz", DATA)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])

    def start(name, **environment):
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), name], cwd=folder, text=True,
                                env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    processes = [start("together", RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in (0, 1)]
    printed = []
    for process in [start("alone"), *processes]:
        output, errors = process.communicate(timeout=tool.PATIENCE)
        assert process.returncode == 0, errors
        printed.append(output)
    return printed


@pytest.mark.parametrize("sharing", [{}, {"zero": 1}, {"pipeline": 2}], ids=str)
def test_ranks_train_as_one_process_that_accumulates(tmp_path, sharing):
    """Two processes of a launcher: losses, weights and the file of rank 0 are those of one process, in bits."""
    program = f"""
        import sys
        sys.path[:0] = {sys.path[:1] + [str(tool.COMMAND.parent / "python")]!r}
        import numpy as np
        import onnx_train
        data = dict(np.load({str(tmp_path / "data.npz")!r}))
        model = onnx_train.load({str(tmp_path / "train.onnx")!r})
        ranks = dict(ranks="environment", **{sharing}) if sys.argv[1] != "alone" else {{}}
        history = onnx_train.fit(model, data, epochs=3, batch_size=8, eval_data=data, threads=1, folder=sys.argv[1],
                                 accumulate=None if ranks and not {sharing.get("pipeline")} else 2, **ranks)
        assert (history.session.ranks == 2) == bool(ranks)
        print(history.session.rank, history.losses, [e.metrics for e in history.evaluations])
    """
    printed = printed_alone_and_by_two_ranks(program, tmp_path)
    assert [text[0] for text in printed] == ["0", "0", "1"]
    assert printed[0][1:] == printed[1][1:] == printed[2][1:] and "accuracy" in printed[0]
    for name in "last.onnx", "best.onnx":
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "together" / name).read_bytes()


def test_ranks_have_parts_of_weights(tmp_path):
    """Two processes of a launcher run all entry points together; a weight of which each has a part can be set alone."""
    program = f"""
        import sys
        sys.path[:0] = {sys.path[:1] + [str(tool.COMMAND.parent / "python")]!r}
        import numpy as np
        import onnx_train
        data = dict(np.load({str(tmp_path / "data.npz")!r}))
        ranks = dict(ranks="environment", tensor_parallel=2) if sys.argv[1] != "alone" else {{}}
        model = onnx_train.load({str(tmp_path / "train.onnx")!r})
        history = onnx_train.fit(model, data, epochs=2, batch_size=8, eval_data=data, threads=1, folder=sys.argv[1], **ranks)
        session = history.session
        for name in "fc1.weight", "fc2.bias":
            try:
                np.asarray(session.state[name])
                assert name == "fc2.bias" or not ranks
            except onnx_train.Error as error:
                assert ranks and "each rank keeps a part" in str(error), error
        session.state["fc1.weight"] = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
        print(*history.losses, *session.predict(data["x"][:4]).logits.ravel())
    """
    printed = [np.array(text.split(), float) for text in printed_alone_and_by_two_ranks(program, tmp_path)]
    np.testing.assert_array_equal(printed[1], printed[2])
    np.testing.assert_allclose(printed[1], printed[0], 1e-5, 1e-6)


def test_a_rank_of_a_launcher_does_not_train_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(onnx_train.UsageError, match="one of 2 ranks .*ranks='environment'"):
        onnx_train.fit(training(), DATA, epochs=1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert onnx_train.fit(training(), DATA, epochs=1, batch_size=8).steps
