"""The training loop of the command ``onnx-train fit`` over files, arrays and any iterable of batches."""

from __future__ import annotations

import inspect
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ._errors import UsageError, warn, with_suggestions
from ._model import Model, Patterns, _as_model, _texts_of_metrics, warn_of_loss
from ._options import Pairs, Scale, check_suffix, options_of, pairs_of, reading_options, scales_of
from ._progress import Progress, make_progress
from ._session import Session
from ._source import Data, Source, _arrays_of
from ._tables import as_file, is_table

if TYPE_CHECKING:
    from .losses import Loss
    from .optimizers import Optimizer


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


@with_suggestions
def fit(
    model: Model | Session | Any,
    data: Data,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    time_limit: float | None = None,
    batch_size: int | str | None = None,
    memory_limit: int | str | None = None,
    accumulate: int | None = None,
    scale: Scale = None,
    preprocess: str | None = None,
    augment: str | None = None,
    shuffle: bool | None = None,
    data_check: bool = True,
    seed: int | None = None,
    lr: float | str | None = None,
    schedule: str | None = None,
    warmup: int | str | None = None,
    final_lr: float | None = None,
    step_every: int | None = None,
    step_factor: float | None = None,
    clip: float | None = None,
    eval_data: Data | None = None,
    eval_every: int | None = None,
    best: str | None = None,
    early_stop: int | None = None,
    stop_at: str | None = None,
    block_size: int | None = None,
    shift_labels: bool = False,
    document_end: int | None = None,
    token_type: str | None = None,
    missing: str | None = None,
    on_bad_picture: str | None = None,
    mask_values: Iterable[int] | None = None,
    label_separator: str | None = None,
    columns: Mapping[str, Iterable[str]] | None = None,
    map: Mapping[str, str] | None = None,
    limit: int | None = None,
    val_split: float | None = None,
    folds: int | None = None,
    fold: int | None = None,
    overfit_batches: int | None = None,
    class_balance: bool = False,
    drop_last: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    loss: str | Loss | None = None,
    optimizer: str | Optimizer | None = None,
    precision: str | None = None,
    metric: Patterns = None,
    group: Patterns = None,
    ema: float | None = None,
    batch: int | str | None = None,
    head: Pairs = None,
    lora: Pairs = None,
    untie: Patterns = None,
    train: Patterns = None,
    freeze: Patterns = None,
    callbacks: Sequence[Callback | Callable[[Session, Step], bool | None]] = (),
    progress: bool | None = None,
    device: str = "cpu",
    threads: int | None = None,
    memory: int | str | None = None,
    tf32: bool = False,
    deterministic: bool = True,
    offload: str | None = None,
    tta: str | None = None,
    detect_anomaly: bool = False,
    allow_non_finite: bool = False,
    ranks: str | None = None,
    zero: int | None = None,
    pipeline: int | None = None,
    sync_batch_norm: bool = False,
) -> History:
    """Trains a model.

    Args:
        model: a training model, for which a session is made, or a session, which continues from its state. Or a forward
            model and data of arrays or files, which choose what `loss` leaves open (integers: cross entropy, zeros and
            ones: binary cross entropy, numbers: mean squared error); a warning says what was chosen, and `build` takes
            the same. ``history.session.save`` writes the training model.
        data: a mapping of input names to arrays whose first dimension counts the samples (or the one to which the
            model gives the batch's size, as in [steps, batch, features]), or a tuple of such arrays in the order of the
            model's inputs: they are cut into batches. Or a path of files with such arrays, all that
            the command's ``--data`` takes (`load_data`), or a table: a ``.parquet``, ``.feather`` or ``.arrow`` file, a
            table of pyarrow, a frame of pandas or polars, which are read as `convert_table` writes them. Or any iterable of batches, each such a mapping or tuple: a
            list, a PyTorch DataLoader, a generator (for one epoch).
        epochs, steps, time_limit: the end of the training, by the first one that is reached; the limit in seconds.
        batch_size: samples of a batch of arrays or files, 32 by default; the last one of an epoch is smaller.
            ``"auto"``: the largest that fits, found from plans, without trying; a warning says which. Iterables
            make their own batches: with them it has no effect, which is warned of.
        memory_limit: bytes, or such as ``"2GiB"``, of this process, on a GPU of the session's memory there, that
            ``batch_size="auto"`` may plan with; by default what is available, less a reserve.
        accumulate: batches of a step, for models that are built with ``accumulate=True``; 1 by default, with ranks one for
            each.
        scale: what the network's float input is multiplied by, such as ``"1/255"`` for bytes; for several inputs, by
            name. Targets are not scaled. The model keeps it: its ``onnx_train.preprocess`` is used when it is trained
            on, and by the command, until another is given.
        preprocess: what is done to the network's input, as the command's ``--preprocess``: ``"resize(256), crop(224),
            normalize(imagenet)"`` for pictures in files, or for arrays of their bytes. The model keeps it, as `scale`,
            which it takes the place of. For files the model's input suggests it.
        augment: random changes of pictures, as ``--augment``: ``"random_resized_crop, flip, jitter(0.4)"``
            (docs/data.md). What a sample looks like depends on `seed`, the epoch and its number alone.
        shuffle, seed: the order of the samples of arrays and files in each epoch; they are shuffled by default, with
            the seed 0. Iterables have their own order.
        data_check: whether arrays and files are looked through before the first step, for labels and indices out of range and
            numbers that are not finite.
        lr: the learning rate, after the warm-up; by default the optimizer's as built. ``"auto"``: from a range test of
            at most 100 steps of arrays or files, which leaves the state as it was; a warning says which.
        schedule: of the learning rate, as the command's ``--schedule``: ``"constant"`` (the default), ``"linear"``, ``"cosine"``,
            ``"step"``, ``"polynomial"``, ``"exponential"``, ``"one_cycle"``, ``"wsd"``, ``"restarts"``, ``"plateau"``,
            ``"table('rates.csv')"``, with options as in ``"one_cycle(pct_start=0.3)"``.
        warmup: steps in which the learning rate grows from 0, or a share of all steps, such as ``"10%"``; none by default.
        final_lr: where the schedule ends; by default 0.
        step_every, step_factor: of the schedule ``"step"``.
        clip: the global norm at which gradients are clipped; by default as built.
        eval_data: as `data`; the mean loss and metrics over it are computed after each epoch.
        eval_every: steps between evaluations, in the place of epochs.
        best: the metric of `eval_data` that ``best.onnx`` and `early_stop` follow, such as ``"accuracy"``; by default the
            loss.
        early_stop: evaluations without a better one before the training stops.
        stop_at: the evaluation after which it stops, such as ``"accuracy>=0.94"`` or ``"loss<=0.1"``.
        block_size, document_end, token_type: of files of tokens: tokens of a sample, by default the model's, if its length
            is fixed; the token that ends a document, after which the label is ignored; ``"uint16"`` or ``"uint32"`` for
            files without a header.
        shift_labels: of files: labels are a copy of the tokens, as for the models of transformers, and become the tokens
            that follow.
        missing, columns, map: of tables: ``"mean"``, ``"zero"`` or ``"drop"`` for missing values, which are an error by
            default; the columns of inputs; inputs of columns, or of arrays, that have other names.
        on_bad_picture: ``"skip"`` reads all pictures in files before the first step, and leaves out those that cannot be
            read, which is warned of; ``"stop"``, the default: they are an error.
        mask_values: what masks hold for the classes 0, 1, ...: ``[0, 255]`` for black and white; by default these
            numbers.
        label_separator: what stands between the classes of a picture in a CSV, if it has several: ``";"`` of ``cat;dog``.
        limit: the first samples of arrays and files alone.
        val_split, folds, fold: evaluate on this part of `data`, such as 0.1, or on fold `fold` (from 1) of `folds`, drawn
            by `seed`, and train on the rest.
        overfit_batches: train on so many batches alone, drawn by `seed`.
        class_balance: draw samples so that all classes are as frequent.
        drop_last: leave out the short batch at the end of an epoch.
        checkpoint: a file that is written after each epoch and at the end.
        folder: receives ``last.onnx`` after each epoch and at the end, ``best.onnx``, ``options.json`` with every
            option in use, and the numbers of steps and evaluations in ``metrics.jsonl``, ``metrics.csv`` and
            ``epochs.jsonl``, as the command's ``--out``, which can go on with the run.
        checkpoint_every: steps after which ``last.onnx`` is written, too.
        resume: whether to go on from ``last.onnx`` of `folder`, if there is one. The result is that of a training that
            never stopped, to the byte. What is not given stays as the run has it: the end, `lr`, `schedule`, `seed`,
            `batch_size` and all that `folder`'s ``options.json`` holds, but for `data` and `eval_data`, which must be
            the run's own. Another `lr`, `schedule` or `clip` is warned of; what decides which samples are seen, such as
            `seed`, may not change. Iterables must give the batches again that they gave before, of which
            the number alone is checked.
            Of a forward model without options of `build`, the training model is the one in `folder`.
        overwrite: whether to start anew in a folder that holds a run.
        loss, optimizer, precision, metric, group, ema, batch, head, lora, untie, train, freeze: of a forward model, as
            `build` takes them.
        callbacks: `Callback` objects, or functions of the session and the `Step` that are called after each step.
        progress: whether to show it, with tqdm if that is installed; by default in terminals and notebooks.
        device, threads, memory, tf32, deterministic, offload, tta, detect_anomaly, allow_non_finite: of the session that is
            made.
        ranks, zero, pipeline, sync_batch_norm: of the session that is made. With ``ranks="environment"`` each process of a launcher
            gives the same model, data and options; they share out the batches of a step, rank 0 writes `folder`, and
            `Step` and `Evaluation` are alike on all.

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
    if checkpoint is not None:
        check_suffix(checkpoint, ".onnx")
    reading = reading_options(
        block_size=block_size,
        shift_labels=shift_labels,
        document_end=document_end,
        token_type=token_type,
        missing=missing,
        on_bad_picture=on_bad_picture,
        mask_values=mask_values,
        label_separator=label_separator,
        columns=columns,
        map=map,
    )
    build = options_of(
        loss=loss,
        optimizer=optimizer,
        precision=precision,
        metric=_texts_of_metrics(metric),
        group=group,
        ema=ema,
        batch=batch,
        head=pairs_of(head),
        lora=pairs_of(lora),
        untie=untie,
        train=train,
        freeze=freeze,
    )
    kept = _options_of_run(folder) if resume else {}
    if threads is None:
        threads = kept.get("threads")
    if offload is None and device != "cpu":
        offload = kept.get("offload")

    def open_session(of: Any) -> Session:
        return Session(
            of,
            device,
            threads=threads,
            memory=memory,
            tf32=tf32,
            deterministic=deterministic,
            offload=offload,
            tta=tta,
            detect_anomaly=detect_anomaly,
            allow_non_finite=allow_non_finite,
            ranks=ranks,
            zero=zero,
            pipeline=pipeline,
            sync_batch_norm=sync_batch_norm,
        )

    session = model if isinstance(model, Session) else open_session(model)
    if "step" not in session.entries and "accumulate" not in session.entries and not isinstance(model, Session):
        last = None if folder is None or not resume else os.path.join(folder, "last.onnx")
        if last is not None and not build and os.path.exists(last):
            session = open_session(last)  # built as it was
        else:
            build += options_of(device=device) if precision == "auto" else []
            build += options_of(accumulate=session.ranks > 1)
            session = open_session(_build_for(model, session, data, build, reading))
    elif build:
        raise UsageError(f"the model is built already; leave out {build[0][0]}, or give the forward model")
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("", "1") and session.ranks == 1:
        raise UsageError(
            f"this process is one of {started} ranks (WORLD_SIZE), and each would train alone; give ranks='environment', so "
            "that they train together, or unset WORLD_SIZE"
        )
    if session.ranks > 1 and "accumulate" not in session.entries:
        raise UsageError("ranks share out the batches of a step: build the model with accumulate=True", "OT9003")
    entry = "accumulate" if "accumulate" in session.entries else "step"
    if entry not in session.entries:
        raise UsageError("the model has no entry point 'step'; make a training model with build", "OT5005")
    if accumulate not in (None, 1) and entry == "step":
        raise UsageError("accumulate needs a model that is built with accumulate=True", "OT9003")
    is_found = batch_size == "auto"
    given = batch_size if isinstance(batch_size, int) else None
    if not is_found and batch_size is not None and (given is None or given < 1):
        raise UsageError(f"batch_size is {batch_size!r}; it must be a whole number of at least 1, or 'auto'")
    if memory_limit is not None and not is_found:
        raise UsageError("memory_limit is the limit of batch_size='auto'")
    samples = options_of(
        limit=limit,
        val_split=val_split,
        folds=folds,
        fold=fold,
        overfit_batches=overfit_batches,
        class_balance=class_balance or None,
        drop_last=drop_last or None,
    )
    is_scaled = scale is not None or preprocess is not None or bool(kept)
    opening = reading + _reading_of_run(kept, reading)
    source = Source(session, entry, data, is_scaled, opening)
    evaluation = None if eval_data is None else Source(session, "evaluate", eval_data, is_scaled, opening)
    if epochs is not None and steps is None and time_limit is None:
        source.expect_epochs(epochs)
    if reading and source.core_files() is None:
        raise UsageError(f"{reading[0][0].replace('-', '_')} is for files of data")
    if samples and checkpoint is not None:
        raise UsageError(f"checkpoint takes all samples of data; with {samples[0][0].replace('-', '_')} give folder")
    has_arrays = source.samples > 0 or (evaluation is not None and evaluation.samples > 0)
    if not has_arrays and given is not None and getattr(data, "batch_size", None) != given:
        warn(f"fit: batch_size={given} has no effect: data makes its own batches; set their size there")
    if source.samples == 0 and shuffle:
        warn("fit: shuffle=True has no effect: data has its own order; shuffle there")
    if is_found and checkpoint is not None:
        raise UsageError("checkpoint needs to know the steps of an epoch; with batch_size='auto' give folder")
    size = source.batch_size(given or kept.get("batch-size"))
    steps_per_epoch = math.ceil(source.num_batches(size) / (accumulate or kept.get("accumulate") or session.ranks))
    end = {"epochs": epochs, "steps": steps} if epochs is not None or steps is not None else kept
    totals: list[int] = [] if end.get("steps") is None else [cast(int, end["steps"])]
    if end.get("epochs") is not None and steps_per_epoch > 0 and not samples and not is_found:
        totals.append(cast(int, end["epochs"]) * steps_per_epoch)
    total = min(totals, default=None)  # None, too, where the library selects samples
    options = options_of(
        epochs=epochs,
        steps=steps,
        time_limit=time_limit,
        batch_size=batch_size if given is None else source.batch_size(given),
        memory_limit=memory_limit,
        accumulate=accumulate,
        scale=scales_of(scale),
        preprocess=preprocess,
        augment=augment,
        no_shuffle=None if shuffle is None else not shuffle,
        no_data_check=None if data_check else True,
        seed=seed,
        lr=lr,
        schedule=schedule,
        warmup=warmup,
        final_lr=final_lr,
        step_every=step_every,
        step_factor=step_factor,
        clip=clip,
        eval_every=eval_every,
        best=best,
        early_stop=early_stop,
        stop_at=stop_at,
        checkpoint_every=checkpoint_every,
        out=None if folder is None else os.fspath(folder),
        resume=resume,
        overwrite=overwrite,
        wait_for_steps=bool(callbacks) or checkpoint is not None,
    )
    history = History(session)
    with make_progress(progress, total) as shown, _Interrupt() as interrupt:
        reports = _Reports(history, list(callbacks), shown, interrupt)
        if checkpoint is not None:
            path = checkpoint
            source.save_epochs(reports, lambda: session.save(path), steps_per_epoch)
        reason = session._core.fit(
            options + samples,
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


def _reading_of_run(kept: dict[str, Any], given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """How the run has read its files, where the caller does not say it."""
    said = {name for name, _ in given}
    names = [name for name in inspect.signature(reading_options).parameters if name.replace("_", "-") not in said]
    return options_of(**{name: kept.get(name.replace("_", "-")) or None for name in names})


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
    ) -> int:
        metrics = {"grad_norm": grad_norm} if math.isnan(accuracy) else {"accuracy": accuracy, "grad_norm": grad_norm}
        if loss_scale != 0:
            metrics["loss_scale"] = loss_scale
        report = Step(step, epoch, samples, loss, learning_rate, seconds, metrics, skipped)
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
