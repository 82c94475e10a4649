"""The training loop of the command ``onnx-train fit`` over files, arrays and any iterable of batches."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ._errors import UsageError, warn
from ._model import Model, _as_model, _expect_names, warn_of_loss
from ._option_types import DATA, FIT, FORWARD, NAMES, SAMPLES, SESSION, FitOptions
from ._options import check_suffix, options_of, takes, whole_number
from ._progress import Progress, make_progress
from ._session import Session
from ._source import Data, Source, _arrays_of, expect_data
from ._tables import as_file, is_table

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Step:
    """One update of the weights.

    Attributes:
        step: counted from 1.
        epoch: counted from 1.
        samples: in this step.
        loss: of the step's samples, before the update.
        learning_rate: of the step.
        seconds: that the step and its data took.
        metrics: the other outputs of the entry point, such as ``accuracy`` and ``grad_norm``; with loss scaling also
            ``loss_scale``.
        skipped: with loss scaling, whether the gradients overflowed: the weights stay as they were.
        tokens: of the samples, of a model that reads texts; 0 of another one.
        utilization: what products and convolutions of the step compute, against the rate of one large product on the
            machine: about 0 to 1. None in the first ten seconds, of a model without them, and of several ranks on CPUs.

    >>> import numpy as np
    >>> import onnx_train
    >>> data = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> first = onnx_train.fit(onnx_train.build("mlp.onnx"), data, steps=2).steps[0]
    >>> first.step, first.epoch, first.samples, sorted(first.metrics)
    (1, 1, 4, ['accuracy', 'grad_norm'])
    """

    step: int
    epoch: int
    samples: int
    loss: float
    learning_rate: float
    seconds: float
    metrics: dict[str, float]
    skipped: bool = False
    tokens: int = 0
    utilization: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """An evaluation.

    Attributes:
        step: after which it took place.
        epoch: of that step.
        train_loss: the mean since the previous evaluation, over all that counts (labels that are not ignored, say).
        metrics: of the evaluation data, over all that counts in them, whatever the batches; NaN where nothing counts.
            Empty without such data.
        best: whether it is the best so far: its loss the lowest, unless `fit` follows another metric.
        tables: what the metrics of ``build(metric=...)`` say by class: arrays [classes], such as ``f1_per_class``, and
            ``confusion_matrix`` [classes, classes], by label and prediction.

    >>> import numpy as np
    >>> import onnx_train
    >>> data = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> last = onnx_train.fit(onnx_train.build("mlp.onnx"), data, epochs=3, eval_data=data).evaluations[-1]
    >>> last.epoch, sorted(last.metrics)
    (3, ['accuracy', 'loss'])
    """

    step: int
    epoch: int
    train_loss: float
    metrics: dict[str, float]
    best: bool
    tables: dict[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """The loss on the evaluation data; without them the training loss.

        >>> last.loss == last.metrics["loss"]
        True
        """
        return self.metrics.get("loss", self.train_loss)


class Callback:
    """What is called while `fit` runs. A method that returns True stops the training after it.

    Methods may use the session. An exception ends the training, and `fit` raises it.

    >>> import numpy as np
    >>> import onnx_train
    >>> class Stop(onnx_train.Callback):
    ...     def on_step(self, session, step):
    ...         return step.loss < 0.5
    >>> data = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> onnx_train.fit(onnx_train.build("mlp.onnx"), data, epochs=1000, lr=0.1, callbacks=[Stop()]).reason
    'callback'
    """

    def on_step(self, session: Session, step: Step) -> bool | None:
        """After each step.

        >>> class Print(onnx_train.Callback):
        ...     def on_step(self, session, step):
        ...         print(step.step, step.learning_rate)
        >>> history = onnx_train.fit(onnx_train.build("mlp.onnx"), data, steps=2, lr=0.5, callbacks=[Print()])
        1 0.5
        2 0.5
        """

    def on_evaluation(self, session: Session, evaluation: Evaluation) -> bool | None:
        """After each evaluation: of each epoch, or of ``eval_every`` steps.

        >>> class KeepBest(onnx_train.Callback):
        ...     def on_evaluation(self, session, evaluation):
        ...         if evaluation.best:
        ...             session.save("best.onnx")
        >>> history = onnx_train.fit(onnx_train.build("mlp.onnx"), data, epochs=3, callbacks=[KeepBest()])
        """


@dataclass(repr=False)
class History:
    """What `fit` did.

    Attributes:
        session: holds the trained state.
        steps: all steps, each a `Step`.
        evaluations: all evaluations, each an `Evaluation`.
        reason: ``"finished"``, ``"interrupted"`` (Ctrl-C), ``"early_stop"``, ``"time_limit"``,
            ``"callback"`` or ``"target"``.

    >>> import numpy as np
    >>> import onnx_train
    >>> data = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    >>> history = onnx_train.fit(onnx_train.build("mlp.onnx"), data, epochs=3)
    >>> len(history.steps), len(history.evaluations), history.reason
    (3, 3, 'finished')
    """

    session: Session
    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    reason: str = "finished"

    def __repr__(self) -> str:
        """One line: the steps, the reason and the last loss.

        >>> print(repr(history).split(",")[0])
        <History: 3 steps
        """
        last = f", last loss {self.steps[-1].loss:.4g}" if self.steps else ""
        metrics = self.evaluations[-1].metrics if self.evaluations else {}
        found = "".join(f", {name} {value:.4g}" for name, value in metrics.items() if name != "loss")
        return f"<History: {len(self.steps)} steps, {self.reason}{last}{found}>"

    @property
    def losses(self) -> np.ndarray[Any, Any]:
        """The loss of each step, float64[steps].

        >>> history.losses.shape
        (3,)
        """
        return np.array([step.loss for step in self.steps])


@takes(FitOptions)
def fit(
    model: Model | Session | Any,
    data: Data,
    *,
    eval_data: Data | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback | Callable[[Session, Step], bool | None]] = (),
    progress: bool | None = None,
    **options: Unpack[FitOptions],
) -> History:
    """Trains a model.

    What follows a resumed run is that of a training that never stopped, to the byte. What is not given stays as the run
    has it: the end, `lr`, `schedule`, `seed`, `batch_size` and all that the folder's ``options.json`` holds, but for `data`
    and `eval_data`, which must be the run's own. Another `lr`, `schedule` or `clip` is warned of; what decides which samples
    are seen, such as `seed`, may not change. Iterables must give the batches again that they gave before, of which the
    number alone is checked. Of a forward model without options of `build`, the training model is the one in the folder.

    With ``ranks="environment"`` each process of a launcher gives the same model, data and options; they share out the
    batches of a step, rank 0 writes the folder, and `Step` and `Evaluation` are alike on all.

    Args:
        model: a training model, for which a session is made, or a session, which continues from its state. Or a forward
            model and data of arrays or files, which choose what `loss` leaves open (integers: cross entropy, zeros and
            ones: binary cross entropy, numbers: mean squared error); a warning says what was chosen, and `build` takes
            the same. ``history.session.save`` writes the training model.
        data: a mapping of input names to arrays whose first dimension counts the samples (or the one to which the
            model gives the batch's size, as in [steps, batch, features]), or a tuple of such arrays in the order of the
            model's inputs: they are cut into batches. Or a path of files with such arrays, all that
            the command's ``--data`` takes (`load_data`), or a table: a ``.parquet``, ``.feather`` or ``.arrow`` file, a
            table of pyarrow, a frame of pandas or polars, which are read as `convert_table` writes them. Or any
            iterable of batches, each such a mapping or tuple: a list, a PyTorch DataLoader, a generator (for one
            epoch). Iterables make their own batches in their own order: `batch_size` and `shuffle` have no effect,
            which is warned of.
        eval_data: as `data`; the mean loss and metrics over it are computed after each epoch.
        checkpoint: a file that is written after each epoch and at the end.
        callbacks: `Callback` objects, or functions of the session and the `Step` that are called after each step.
        progress: whether to show it, with tqdm if that is installed; by default in terminals and notebooks.
        options: `FitOptions`.

    Returns:
        What happened. Ctrl-C ends the training after the current step, with the reason ``"interrupted"``; a second one
        raises KeyboardInterrupt.

    Raises:
        UsageError: also without `ranks` in a process that a launcher has made one of several ranks.
        DataError: for data that do not fit the model: arrays and files are looked through before the first step, for
            labels and indices out of range and numbers that are not finite. Also for a loss that is not finite; with
            loss scaling only if the gradients overflow without end.
        FileError: for files of data that are missing, damaged or of no format that is read.

    Warns:
        UserWarning: what was built of a forward model, what ``"auto"`` has found, and what a run that is resumed is told
            to do otherwise than before.
        UserWarning: for uint8 pictures, 0 to 255, that go to a float input as they are; for `batch_size` and `shuffle`
            beside an iterable.

    Warns:
        UserWarning: once, when nothing counts in a batch: its loss and gradient are 0.

    >>> import numpy as np
    >>> import onnx_train
    >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    >>> data = {"x": x, "labels": (x[:, 0] > 0).astype(np.int64)}
    >>> history = onnx_train.fit(onnx_train.build("mlp.onnx", optimizer="adamw"), data, epochs=20, lr=0.01)
    >>> bool(history.losses[-1] < history.losses[0])
    True
    >>> history.session.save("trained.onnx")

    The same from a file:

    >>> np.savez("train.npz", **data)
    >>> again = onnx_train.fit(onnx_train.build("mlp.onnx", optimizer="adamw"), "train.npz", epochs=20, lr=0.01)
    >>> np.array_equal(again.losses, history.losses)
    True
    """
    expect_data("data", data)
    if eval_data is not None:
        expect_data("eval_data", eval_data)
    called = list(callbacks) if isinstance(callbacks, Iterable) else None
    if called is None or not all(isinstance(each, Callback) or callable(each) for each in called):
        raise UsageError(f"callbacks takes a list of Callback objects and functions, not {callbacks!r}")
    if checkpoint is not None:
        check_suffix(checkpoint, ".onnx")
    folder = options.get("folder")
    kept = _options_of_run(folder) if options.get("resume") else {}
    given = {name: value for name, value in options.items() if value is not None}
    for count in ("epochs", "steps", "accumulate"):
        if count in given:
            given[count] = whole_number(count, given[count])
    _expect_names(given.get("metric"))
    reading = options_of(DATA, **given)
    build = options_of(FORWARD, **given)
    machine: dict[str, Any] = {name: value for name, value in given.items() if name.replace("_", "-") in SESSION - FIT}
    if "threads" in kept:
        machine.setdefault("threads", kept["threads"])
    if "offload" in kept and machine.get("device", "cpu") != "cpu":
        machine.setdefault("offload", kept["offload"])
    session = model if isinstance(model, Session) else Session(model, **machine)
    if "step" not in session.entries and "accumulate" not in session.entries and not isinstance(model, Session):
        last = None if folder is None or not options.get("resume") else os.path.join(folder, "last.onnx")
        if last is not None and not build and os.path.exists(last):
            session = Session(last, **machine)  # built as it was
        else:
            build += options_of(device=machine.get("device")) if given.get("precision") == "auto" else []
            build += options_of(accumulate=session.ranks > 1)
            session = Session(_build_for(model, session, data, build, reading), **machine)
    elif build:
        raise UsageError(f"the model is built already; leave out {build[0][0]}, or give the forward model")
    accumulate = cast("int | None", given.get("accumulate"))
    entry = _entry_of(session, accumulate)
    samples = options_of(SAMPLES, **given)
    is_scaled = "scale" in given or "preprocess" in given or bool(kept)
    opening = reading + _reading_of_run(kept, reading)
    source = Source(session, entry, data, is_scaled, opening)
    evaluation = None if eval_data is None else Source(session, "evaluate", eval_data, is_scaled, opening)
    if "epochs" in given and "steps" not in given and "time_limit" not in given:
        source.expect_epochs(cast(int, given["epochs"]))
    if reading and source.core_files() is None:
        raise UsageError(f"{reading[0][0].replace('-', '_')} is for files of data")
    if samples and checkpoint is not None:
        raise UsageError(f"checkpoint takes all samples of data; with {samples[0][0].replace('-', '_')} give folder")
    size = given.get("batch_size")
    if isinstance(size, Integral) and not isinstance(size, bool):
        size = int(size)
    is_found = size == "auto"
    if not is_found and size is not None and (not isinstance(size, int) or size < 1):
        raise UsageError(f"batch_size is {size!r}; it must be a whole number of at least 1, or 'auto'", "OT6001")
    has_arrays = source.samples > 0 or (evaluation is not None and evaluation.samples > 0)
    if not has_arrays and isinstance(size, int) and getattr(data, "batch_size", None) != size:
        warn(f"fit: batch_size={size} has no effect: data makes its own batches; set their size there")
    if source.samples == 0 and options.get("shuffle"):
        warn("fit: shuffle=True has no effect: data has its own order; shuffle there")
    if is_found and checkpoint is not None:
        raise UsageError("checkpoint needs to know the steps of an epoch; with batch_size='auto' give folder")
    if isinstance(size, int):
        given["batch_size"] = source.batch_size(size)
    batches = source.num_batches(source.batch_size(size if isinstance(size, int) else kept.get("batch-size")))
    steps_per_epoch = math.ceil(batches / (accumulate or kept.get("accumulate") or session.ranks))
    end = given if "epochs" in given or "steps" in given else kept
    totals: list[int] = [] if end.get("steps") is None else [cast(int, end["steps"])]
    if end.get("epochs") is not None and steps_per_epoch > 0 and not samples and not is_found:
        totals.append(cast(int, end["epochs"]) * steps_per_epoch)
    total = min(totals, default=None)  # None, too, where the library selects samples
    wait = bool(called) or checkpoint is not None
    training = options_of(FIT, **given, wait_for_steps=wait)
    history = History(session)
    with make_progress(progress, total) as shown, _Interrupt() as interrupt:
        reports = _Reports(history, called, shown, interrupt)
        if checkpoint is not None:
            path = checkpoint
            source.save_epochs(reports, lambda: session.save(path), steps_per_epoch)
        reason = session._core.fit(
            training,
            source.core_data(),
            None if evaluation is None else evaluation.core_data(),
            reports.on_step,
            reports.on_evaluation,
            reports.on_note,
        )
    history.reason = ("finished", "interrupted", "early_stop", "time_limit", "callback", "target")[reason]
    if checkpoint is not None:
        session.save(checkpoint)
    return history


def _options_of_run(folder: str | os.PathLike[str] | None) -> dict[str, Any]:
    """The options of the run in `folder` by the names of the command; none where there is no run."""
    if folder is None or not os.path.exists(os.path.join(folder, "last.onnx")):
        return {}
    try:
        with open(os.path.join(folder, "options.json"), encoding="utf-8") as file:
            options = json.load(file)
    except (OSError, ValueError):
        return {}
    known = options.items() if isinstance(options, dict) else ()
    return {name: value for name, value in known if value is not None and (name not in _COUNTS or _is_count(value))}


_COUNTS = ("accumulate", "batch-size", "epochs", "steps", "threads")


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _entry_of(session: Session, accumulate: int | None) -> str:
    """The entry point that reads the training data, of a session that can train as it is told to."""
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("", "1") and session.ranks == 1:
        raise UsageError(
            f"this process is one of {started} ranks (WORLD_SIZE), and each would train alone; give ranks='environment', so "
            "that they train together, or unset WORLD_SIZE"
        )
    entry = "accumulate" if "accumulate" in session.entries else "step"
    if session.ranks > 1 and entry == "step":
        raise UsageError("ranks share out the batches of a step: build the model with accumulate=True", "OT9003")
    if entry not in session.entries:
        raise UsageError("the model has no entry point 'step'; make a training model with build", "OT5005")
    if accumulate not in (None, 1) and entry == "step":
        raise UsageError("accumulate needs a model that is built with accumulate=True", "OT9003")
    return entry


def _reading_of_run(kept: dict[str, Any], given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """How the run has read its files, where the caller does not say it."""
    said = {name for name, _ in given}
    names = {NAMES[option]: kept[option] or None for option in DATA - said if option in kept}
    return options_of(**names)


def _build_for(
    model: Any, session: Session, data: Any, options: list[tuple[str, str]], reading: list[tuple[str, str]]
) -> Model:
    """The training model of a forward model, for which `session` is open, that fits the data; warns of what it is."""
    core = _as_model(model)._core
    if isinstance(data, (str, os.PathLike)) or is_table(data):
        with as_file(data) as file:
            built, note = core.build_for_data(file, options + reading)
    else:
        names = [port.name for port in session.inputs("predict") if port.default is None]
        arrays = _arrays_of(data, [*names, "labels"])
        if arrays is None:
            raise UsageError(
                "the model has no entry point 'step', and data makes its own batches: make a training model with build; "
                "for arrays and files fit does it itself"
            )
        built, note = core.build_for_data(arrays, options)
    warn(f"fit: a training model is built of the forward model: {note}; build takes the same")
    return warn_of_loss(Model(built))


class _Interrupt:
    """Ctrl-C while this is active: the first one sets a flag, the next one raises KeyboardInterrupt.

    Only the main thread receives signals; handlers that the program has set stay.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._active = False

    def __enter__(self) -> _Interrupt:
        is_main = threading.current_thread() is threading.main_thread()
        self._active = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._active:
            signal.signal(signal.SIGINT, self._set)
        return self

    def __exit__(self, *error: object) -> None:
        if self._active:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


# What a callback of the library returns: onnx_train_next.
_CONTINUE, _STOP, _INTERRUPT = 0, 1, 2


class _Reports:
    """Takes the reports of the library and passes them on."""

    def __init__(
        self,
        history: History,
        callbacks: list[Callback | Callable[[Session, Step], bool | None]],
        progress: Progress,
        interrupt: _Interrupt,
    ) -> None:
        self._history, self._callbacks = history, callbacks
        self._progress, self._interrupt = progress, interrupt
        self.save: Callable[[], None] | None = None
        self.save_every = 0  # steps

    def on_step(
        self,
        step: int,
        epoch: int,
        samples: int,
        loss: float,
        learning_rate: float,
        accuracy: float,
        grad_norm: float,
        seconds: float,
        loss_scale: float,
        skipped: bool,
        tokens: int,
        utilization: float,
    ) -> int:
        metrics = {"grad_norm": grad_norm} if math.isnan(accuracy) else {"accuracy": accuracy, "grad_norm": grad_norm}
        if loss_scale != 0:
            metrics["loss_scale"] = loss_scale
        used = None if math.isnan(utilization) else utilization
        report = Step(step, epoch, samples, loss, learning_rate, seconds, metrics, skipped, tokens, used)
        self._history.steps.append(report)
        self._progress.step(epoch, loss)
        if self.save is not None and self.save_every > 0 and step % self.save_every == 0:
            self.save()
        return self._call("on_step", report)

    def on_evaluation(
        self,
        step: int,
        epoch: int,
        train_loss: float,
        metrics: dict[str, float],
        tables: dict[str, Any],
        best: bool,
    ) -> int:
        report = Evaluation(step, epoch, train_loss, metrics, best, tables)
        self._history.evaluations.append(report)
        self._progress.evaluation(epoch, train_loss, metrics)
        return self._call("on_evaluation", report)

    def on_note(self, text: str) -> None:
        warn(text)

    def _call(self, method: str, report: Any) -> int:
        for callback in self._callbacks:
            if isinstance(callback, Callback):
                stop = getattr(callback, method)(self._history.session, report)
            else:
                stop = callback(self._history.session, report) if method == "on_step" else None
            if stop is True:
                return _STOP
        return _INTERRUPT if self._interrupt.is_set else _CONTINUE
