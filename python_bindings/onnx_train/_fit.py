"""Training over any iterable of batches, with the options of the command ``onnx-train fit``."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Union

import numpy as np

from . import _core
from ._arrays import as_numpy
from ._errors import DataError, UsageError
from ._model import Model
from ._options import options_of
from ._progress import Progress, make_progress
from ._session import Result, Session

Data = Union[Mapping[str, Any], Sequence[Any], Iterable[Any]]


@dataclass(frozen=True)
class Step:
    """One update of the weights.

    Attributes:
        step: counted from 1.
        epoch: counted from 1.
        samples: in this step.
        loss: of the step's samples, before the update.
        learning_rate: None where the model's default was used.
        seconds: of the step, with the time that the data took.
        metrics: the other outputs of the entry point, such as ``accuracy`` and ``grad_norm``.
    """

    step: int
    epoch: int
    samples: int
    loss: float
    learning_rate: float | None
    seconds: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation.

    Attributes:
        step: after which it took place.
        epoch: of that step.
        train_loss: the mean over the samples since the previous evaluation.
        metrics: of the evaluation data; empty without such data.
        best: whether its loss is the lowest so far.
    """

    step: int
    epoch: int
    train_loss: float
    metrics: dict[str, float]
    best: bool

    @property
    def loss(self) -> float:
        """The loss on the evaluation data; without them the training loss."""
        return self.metrics.get("loss", self.train_loss)


class Callback:
    """What is called while `fit` runs. A method that returns True stops the training after it."""

    def on_step(self, session: Session, step: Step) -> bool | None:
        """After each step."""

    def on_evaluation(self, session: Session, evaluation: Evaluation) -> bool | None:
        """After each evaluation."""


@dataclass
class History:
    """What `fit` did.

    Attributes:
        session: holds the trained state.
        reason: ``"finished"``, ``"interrupted"`` (Ctrl-C), ``"early_stop"``, ``"time_limit"`` or ``"callback"``.
    """

    session: Session
    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    reason: str = "finished"

    @property
    def losses(self) -> np.ndarray[Any, Any]:
        """The loss of each step, float64[steps]."""
        return np.array([step.loss for step in self.steps])


def fit(
    model: Model | Session | Any,
    data: Data,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    time_limit: float | None = None,
    batch_size: int = 32,
    accumulate: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    lr: float | None = None,
    schedule: str = "constant",
    warmup: int = 0,
    final_lr: float = 0.0,
    step_every: int | None = None,
    step_factor: float | None = None,
    clip: float | None = None,
    eval_data: Data | None = None,
    eval_every: int | None = None,
    early_stop: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback | Callable[[Session, Step], bool | None]] = (),
    progress: bool | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> History:
    """Trains a model.

    Args:
        model: a training model, for which a session is made, or a session, which continues from its state.
        data: a mapping of input names to arrays whose first dimension counts the samples, or a tuple of such arrays in
            the order of the model's inputs: they are cut into batches. Or any iterable of batches, each such a mapping
            or tuple: a list, a PyTorch DataLoader, a generator (for one epoch).
        epochs, steps, time_limit: the end of the training, by the first one that is reached; the limit in seconds.
        batch_size: samples of a batch; the last one of an epoch is smaller. Iterables make their own batches.
        accumulate: batches of a step, for models that are built with ``accumulate=True``.
        shuffle, seed: the order of the samples in each epoch. Iterables have their own order.
        lr: the learning rate, after the warm-up; by default the optimizer's as built.
        schedule: ``"constant"``, ``"linear"``, ``"cosine"`` or ``"step"``.
        warmup: steps in which the learning rate grows from 0.
        final_lr: where linear and cosine end.
        step_every, step_factor: of the schedule ``"step"``.
        clip: the global norm at which gradients are clipped; by default as built.
        eval_data: as `data`; the mean loss and metrics over it are computed after each epoch.
        eval_every: steps between evaluations, in the place of epochs.
        early_stop: evaluations without a lower loss before the training stops.
        checkpoint: a file that is written after each epoch and at the end.
        callbacks: `Callback` objects, or functions of the session and the `Step` that are called after each step.
        progress: whether to show it, with tqdm if that is installed; by default in terminals and notebooks.
        device, threads: of the session that is made.

    Returns:
        What happened. Ctrl-C ends the training after the current step, with the reason ``"interrupted"``; a second one
        raises KeyboardInterrupt.

    Raises:
        DataError: for data that do not fit the model; and for a loss that is not finite.

    >>> import numpy as np
    >>> import onnx_train
    >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    >>> data = {"x": x, "labels": (x[:, 0] > 0).astype(np.int64)}
    >>> history = onnx_train.fit(onnx_train.build("mlp.onnx", optimizer="adamw"), data, epochs=20, lr=0.01)
    >>> bool(history.losses[-1] < history.losses[0])
    True
    >>> history.session.save("trained.onnx")
    """
    session = model if isinstance(model, Session) else Session(model, device, threads=threads)
    if epochs is None and steps is None and time_limit is None:
        raise UsageError("fit needs an end: give epochs, steps or time_limit")
    entry = "accumulate" if "accumulate" in session.entries else "step"
    if entry not in session.entries:
        raise UsageError("the model has no entry point 'step'; make a training model with build")
    if accumulate != 1 and entry == "step":
        raise UsageError("accumulate needs a model that is built with accumulate=True")
    names = [port.name for port in session.inputs(entry) if port.default is None]
    batches = _Batches(data, names, batch_size, seed if shuffle else None)
    total = _total_steps(batches, epochs, steps, accumulate)
    if total is None and schedule in ("linear", "cosine"):
        raise UsageError(f"schedule {schedule} needs to know the number of steps: give steps, or data with a length")
    rates = _Rates(session, entry, lr, schedule, warmup, final_lr, step_every, step_factor, total)
    evaluation = None
    if eval_data is not None:
        eval_names = [port.name for port in session.inputs("evaluate") if port.default is None]
        evaluation = _Batches(eval_data, eval_names, batch_size, None)
    history = History(session)
    ends = _Ends(epochs, steps, time_limit)
    with make_progress(progress, total) as shown, _Interrupt() as interrupt:
        fitting = _Fitting(history, entry, rates, evaluation, clip, early_stop, list(callbacks), interrupt)
        fitting.run(batches, ends, accumulate, eval_every, checkpoint, shown)
    if checkpoint is not None:
        session.save(checkpoint)
    return history


@dataclass(frozen=True)
class _Ends:
    epochs: int | None
    steps: int | None
    seconds: float | None


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


class _Stop(Exception):
    """Ends a training; the argument is the reason."""


class _Rates:
    """The learning rate of each step, by the schedules of the library."""

    def __init__(
        self,
        session: Session,
        entry: str,
        lr: float | None,
        schedule: str,
        warmup: int,
        final_lr: float,
        step_every: int | None,
        step_factor: float | None,
        total: int | None,
    ) -> None:
        self._options: list[tuple[str, str]] | None = None
        if lr is None and schedule == "constant" and warmup == 0:
            return
        if lr is None:
            ports = session.inputs("apply" if entry == "accumulate" else entry)
            lr = next((float(p.default) for p in ports if p.role == "learning_rate" and p.default is not None), None)
        self._options = options_of(
            lr=lr,
            schedule=schedule,
            warmup=warmup,
            final_lr=final_lr,
            step_every=step_every,
            step_factor=step_factor,
            steps=total,
        )
        self.rate(0)  # says at once what is wrong

    def rate(self, step: int) -> float | None:
        return None if self._options is None else _core.learning_rate(self._options, step)


class _Fitting:
    """The state of one call of `fit`."""

    def __init__(
        self,
        history: History,
        entry: str,
        rates: _Rates,
        evaluation: _Batches | None,
        clip: float | None,
        early_stop: int | None,
        callbacks: list[Callback | Callable[[Session, Step], bool | None]],
        interrupt: _Interrupt,
    ) -> None:
        self._history, self._session = history, history.session
        self._entry, self._rates, self._evaluation = entry, rates, evaluation
        self._clip, self._early_stop, self._callbacks = clip, early_stop, callbacks
        self._interrupt = interrupt
        self._loss_sum, self._samples = 0.0, 0  # since the last evaluation
        self._best, self._since_best = math.inf, 0
        self._start = self._last = time.perf_counter()

    def run(
        self,
        batches: _Batches,
        ends: _Ends,
        accumulate: int,
        eval_every: int | None,
        checkpoint: str | os.PathLike[str] | None,
        progress: Progress,
    ) -> None:
        try:
            self._run_epochs(batches, ends, accumulate, eval_every, checkpoint, progress)
        except _Stop as stop:
            self._history.reason = str(stop)
        if self._interrupt.is_set:
            return
        try:
            self._evaluate(progress)  # what the last evaluation did not see
        except _Stop:
            pass

    def _run_epochs(
        self,
        batches: _Batches,
        ends: _Ends,
        accumulate: int,
        eval_every: int | None,
        checkpoint: str | os.PathLike[str] | None,
        progress: Progress,
    ) -> None:
        for epoch in itertools.count(1):
            if ends.epochs is not None and epoch > ends.epochs:
                return
            before = len(self._history.steps)
            for group in _groups(batches.of_epoch(epoch - 1), accumulate):
                self._step(group, epoch, progress)
                if eval_every and len(self._history.steps) % eval_every == 0:
                    self._evaluate(progress)
                self._check_end(ends)
            if len(self._history.steps) == before:
                raise DataError(f"epoch {epoch} of the data has no batch")
            if not eval_every:
                self._evaluate(progress)
            if checkpoint is not None:
                self._session.save(checkpoint)

    def _step(self, group: list[Any], epoch: int, progress: Progress) -> None:
        number = len(self._history.steps)
        rate = self._rates.rate(number)
        samples, losses = 0, 0.0
        metrics: dict[str, float] = {}
        for batch in group:
            if self._entry == "step":
                result = self._session.step(batch, lr=rate, clip_norm=self._clip)
            else:
                result = self._session.accumulate(batch)
            count = _num_samples(batch)
            samples += count
            losses += result.loss * count
            metrics = _scalars(result)
        if self._entry == "accumulate":
            metrics |= _scalars(self._session.apply(lr=rate, clip_norm=self._clip))
        loss = losses / samples
        now = time.perf_counter()
        metrics.pop("loss", None)
        step = Step(number + 1, epoch, samples, loss, rate, now - self._last, metrics)
        self._last = now
        self._history.steps.append(step)
        self._loss_sum += losses
        self._samples += samples
        if not math.isfinite(loss):
            raise DataError(f"step {step.step}: the loss is {loss}; lower the learning rate, or clip gradients")
        progress.step(step.epoch, step.loss)
        self._call("on_step", step)

    def _evaluate(self, progress: Progress) -> None:
        if self._samples == 0:
            return
        metrics = _evaluate(self._session, self._evaluation) if self._evaluation is not None else {}
        train_loss = self._loss_sum / self._samples
        self._loss_sum, self._samples = 0.0, 0
        loss = metrics.get("loss", train_loss)
        best = loss < self._best
        self._best, self._since_best = (loss, 0) if best else (self._best, self._since_best + 1)
        last = self._history.steps[-1]
        evaluation = Evaluation(last.step, last.epoch, train_loss, metrics, best)
        self._history.evaluations.append(evaluation)
        progress.evaluation(last.epoch, train_loss, metrics)
        self._call("on_evaluation", evaluation)
        if self._early_stop and self._since_best >= self._early_stop:
            raise _Stop("early_stop")

    def _check_end(self, ends: _Ends) -> None:
        if self._interrupt.is_set:
            raise _Stop("interrupted")
        if ends.steps is not None and len(self._history.steps) >= ends.steps:
            raise _Stop("finished")
        if ends.seconds is not None and time.perf_counter() - self._start >= ends.seconds:
            raise _Stop("time_limit")

    def _call(self, method: str, report: Any) -> None:
        for callback in self._callbacks:
            if isinstance(callback, Callback):
                stop = getattr(callback, method)(self._session, report)
            else:
                stop = callback(self._session, report) if method == "on_step" else None
            if stop is True:
                raise _Stop("callback")


class _Batches:
    """Batches of an epoch, from arrays or from an iterable of the user's."""

    def __init__(self, data: Data, names: list[str], batch_size: int, seed: int | None) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}; it must be at least 1")
        self._data, self._batch_size, self._seed = data, batch_size, seed
        self._arrays = _arrays_of(data, names)
        if self._arrays is not None:
            self._samples = _common_length(self._arrays)

    def __len__(self) -> int:
        """Raises TypeError where the iterable does not say."""
        if self._arrays is not None:
            return math.ceil(self._samples / self._batch_size)
        if isinstance(self._data, Sized):
            return len(self._data)
        raise TypeError("the data have no length")

    def of_epoch(self, epoch: int) -> Iterator[Any]:
        if self._arrays is None:
            batches = iter(self._data)
            if epoch > 0 and batches is self._data:
                raise UsageError("data is an iterator, which gives one epoch: give a list, a DataLoader or epochs=1")
            yield from batches
            return
        order = None if self._seed is None else np.random.default_rng((self._seed, epoch)).permutation(self._samples)
        for start in range(0, self._samples, self._batch_size):
            end = min(start + self._batch_size, self._samples)
            rows = slice(start, end) if order is None else order[start:end]
            yield {name: array[rows] for name, array in self._arrays.items()}


def _arrays_of(data: Data, names: list[str]) -> dict[str, Any] | None:
    if isinstance(data, Mapping):
        return {name: as_numpy(array) for name, array in data.items()}
    if isinstance(data, tuple) and data and all(hasattr(array, "shape") for array in data):
        if len(data) > len(names):
            raise UsageError(f"the model takes {len(names)} arrays ({', '.join(names)}), not {len(data)}")
        return {name: as_numpy(array) for name, array in zip(names, data)}
    return None


def _common_length(arrays: dict[str, Any]) -> int:
    lengths = {name: array.shape[0] if array.ndim > 0 else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(f"arrays of data need one number of samples, at least 1; they have {lengths}")
    return next(iter(lengths.values()))


def _num_samples(batch: Any) -> int:
    """Of the first array that has a dimension."""
    for array in batch.values() if isinstance(batch, Mapping) else batch:
        shape = np.shape(array) if not hasattr(array, "shape") else array.shape
        if len(shape) > 0:
            return int(shape[0])
    return 1


def _groups(batches: Iterator[Any], size: int) -> Iterator[list[Any]]:
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _total_steps(batches: _Batches, epochs: int | None, steps: int | None, accumulate: int) -> int | None:
    totals = [] if steps is None else [steps]
    if epochs is not None:
        try:
            totals.append(epochs * math.ceil(len(batches) / accumulate))
        except TypeError:
            pass
    return min(totals) if totals else None


def _scalars(result: Result) -> dict[str, float]:
    return {name: value for name, value in result.items() if isinstance(value, (int, float))}


def _evaluate(session: Session, batches: _Batches) -> dict[str, float]:
    """Means over the samples of all scalar outputs."""
    sums: dict[str, float] = {}
    samples = 0
    for batch in batches.of_epoch(0):
        count = _num_samples(batch)
        samples += count
        for name, value in _scalars(session.evaluate(batch)).items():
            sums[name] = sums.get(name, 0.0) + value * count
    return {name: value / samples for name, value in sums.items()}
