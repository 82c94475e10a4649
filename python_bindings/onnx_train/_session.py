"""Sessions: the state of a training model on a device, and the runs of its entry points."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from ._errors import DataError, UsageError, warn
from ._model import Model, Patterns, _as_model
from ._option_types import SessionOptions
from ._options import Scale, options_of, reading_options, takes
from ._pictures import images_of, paths_of, picture_file, pixels_of
from ._plan import Plan
from ._result import Port, Result, _Outputs
from ._state import State
from ._tables import as_file, is_table

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A metric of the outputs of all samples and the data.
Metric = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


class _Entry:
    """Names of the inputs and outputs of an entry point."""

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self.data = [port.name for port in inputs if port.default is None]
        self.inputs = {port.name for port in inputs}
        self.keys = frozenset(self.data)
        roles = {port.role: port.name for port in inputs if port.role}
        self.learning_rate = roles.get("learning_rate")
        self.clip_norm = roles.get("clip_norm")
        self.outputs = _Outputs(outputs)
        self.statistics = [port.name for port in outputs if port.role == "statistic"]


class Session:
    """The state of a training model on one device, and the plans that run it.

    The first run for each set of input shapes makes a plan; after that a run allocates no memory but that of its
    outputs, and buffers of about 1 MB that the products of oneDNN take and return. The interpreter lock is released
    while a run is in progress. A session belongs to one thread at a time, and raises `UsageError` when two use it at the
    same time; sessions share nothing.

    A model without training entry points has the entry point ``predict`` only.

    >>> import numpy as np
    >>> import onnx_train
    >>> session = onnx_train.Session(onnx_train.build("mlp.onnx", "cross_entropy", "sgd(lr=0.1)"))
    >>> x, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
    >>> first = session.step(x, labels).loss
    >>> session.step({"x": x, "labels": labels}).loss < first
    True
    """

    @takes(SessionOptions)
    def __init__(self, model: Any, device: str = "cpu", **options: Unpack[SessionOptions]) -> None:
        """A session of its own state, which begins as the model's.

        With ``ranks="environment"`` the first such session of a process waits up to five minutes for the others, and
        `threads` are by default this process's share of the machine. With `pipeline` a run of ``"accumulate"`` takes one
        batch, or several, whose inputs are ``"x"``, ``"x/micro_batch1"``, ... A step whose loss is NaN or infinite is a
        `DataError`, and on the CPU no state has changed then; models with loss scaling skip such updates.

        Args:
            model: a `Model`, or anything that `load` takes; it is copied.
            device: a name that ``onnx-train devices`` lists: ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
            options: `SessionOptions`.
        """
        self._core = _core.Session(_as_model(model)._core, options_of(device=device, **options))
        self._device = device
        self._entries: dict[str, _Entry] = {}
        self._state = State(self._core)

    @property
    def state(self) -> State:
        """The state by name, to read and write.

        >>> session.state["fc1.weight"].shape
        (4, 16)
        """
        return self._state

    @property
    def rank(self) -> int:
        """This process's number among those that train together, from 0 on.

        >>> session.rank
        0
        """
        return self._core.ranks()[0]

    @property
    def ranks(self) -> int:
        """How many processes train together.

        >>> session.ranks
        1
        """
        return self._core.ranks()[1]

    @property
    def entries(self) -> list[str]:
        """The names of the entry points that give outputs: ``predict``, ``evaluate``, ``step``, ... What the model has of
        ``initialize``, which draws the state and gives nothing, is the method of that name.

        >>> session.entries
        ['predict', 'step', 'evaluate']
        """
        return self._core.entries()

    def inputs(self, entry: str) -> list[Port]:
        """The inputs of an entry point, those of the forward model first.

        Raises:
            UsageError: for a name of no entry point; so do the methods below.

        >>> [port.name for port in session.inputs("step")]
        ['x', 'labels', 'learning_rate', 'clip_norm']
        """
        return [Port(*port) for port in self._core.inputs(entry)]

    def outputs(self, entry: str) -> list[Port]:
        """The outputs of an entry point.

        >>> [port.name for port in session.outputs("step")]
        ['loss', 'loss_count', 'accuracy', 'accuracy_count', 'grad_norm']
        """
        return [Port(*port) for port in self._core.outputs(entry)]

    def states(self) -> list[Port]:
        """What the state is made of: all names of `state`, each with its role and the weight that it belongs to.

        The roles are ``"exp_avg"``, ``"momentum_buffer"`` and the like for slots of the optimizer, ``"step"``,
        ``"loss_scale"``, ``"random_key"``; weights and the statistics of batch norm have none.

        >>> adam = onnx_train.Session(onnx_train.build("mlp.onnx", optimizer="adamw"))
        >>> [port.name for port in adam.states() if port.role == "exp_avg" and port.of == "fc1.weight"]
        ['state/fc1.weight/exp_avg']
        """
        return [Port(*port) for port in self._core.state_ports()]

    def run(self, entry: str, inputs: Mapping[str, Any]) -> Result:
        """Runs an entry point and commits its updates of the state. A run that fails leaves the state as it was.

        The inputs are those of the network as they are; the methods with the names of entry points (`step`,
        `evaluate`, `predict`, ...) take data, and multiply them as the model's preprocessing says (`scale` of `fit`).

        Args:
            entry: a name of `entries`.
            inputs: arrays by name, of any library that exports buffers or DLPack, on the host or the session's device;
                numbers and lists take the type that the model expects. Dense arrays of that type are read in place; on
                the device, all must be. Inputs with a default, such as the learning rate, may be left out.

        Raises:
            DataError: for names, types and shapes that the model does not accept, for numbers out of range, and for a
                loss that is NaN or infinite, if the entry point updates the state by it.
            OutOfMemoryError: for a batch whose gradients and activations take more than `memory`.

        >>> session.run("predict", {"x": x}).logits.shape
        (4, 3)
        """
        names = self._entry(entry).outputs
        return Result(self._core.run(entry, inputs if type(inputs) is dict else dict(inputs)), names)

    def step(self, *batch: Any, lr: float | None = None, clip_norm: float | None = None) -> Result:
        """One step of training on a batch: a mapping of names to arrays, or arrays in the order of ``inputs("step")``.

        Args:
            lr: the learning rate of this step; by default that of the optimizer as built.
            clip_norm: the global norm at which this step clips its gradients.

        Returns:
            ``loss``, of the batch before the update; ``grad_norm``, the Euclidean norm of all gradients before
            clipping; and ``accuracy``, a fraction between 0 and 1, for losses over classes.

        Raises:
            DataError: as `run`; the state is as it was.

        >>> result = session.step({"x": x, "labels": labels}, lr=0.05)
        >>> sorted(result)
        ['accuracy', 'accuracy_count', 'grad_norm', 'loss', 'loss_count']
        """
        return self._run("step", batch, lr, clip_norm)

    def accumulate(self, *batch: Any) -> Result:
        """Adds the gradients of a batch to those since the last `apply`; for models built with ``accumulate=True``.

        Args:
            batch: as `step` takes it.

        Returns:
            ``loss``, and ``accuracy`` for losses over classes.

        >>> parts = onnx_train.Session(onnx_train.build("mlp.onnx", optimizer="sgd(lr=0.1)", accumulate=True))
        >>> for rows in (slice(0, 2), slice(2, 4)):
        ...     result = parts.accumulate(x[rows], labels[rows])
        >>> result = parts.apply()
        """
        return self._run("accumulate", batch)

    def apply(self, *, lr: float | None = None, clip_norm: float | None = None) -> Result:
        """Updates the weights by the gradient of the loss over all accumulated batches: that of one step on all of them.

        Each batch counts by its ``loss_count``; with ``accumulate_mean="batches"`` each the same. For losses that sum
        over the batch it is the sum of the gradients.

        Args:
            lr, clip_norm: as `step` takes them.

        Returns:
            ``grad_norm``.

        >>> parts = onnx_train.Session(onnx_train.build("mlp.onnx", optimizer="sgd(lr=0.1)", accumulate=True))
        >>> result = parts.accumulate(x, labels)
        >>> parts.apply(lr=0.05).grad_norm > 0
        True
        """
        return self._run("apply", (), lr, clip_norm)

    def evaluate(
        self,
        *batch: Any,
        batch_size: int | None = None,
        scale: Scale = None,
        metrics: Mapping[str, Metric] | None = None,
        **reading: Any,
    ) -> Result:
        """The loss and metrics of a batch, or over all data of a path, in inference mode; changes no state.

        Args:
            batch: as `step` takes it, or pictures as `predict` takes them, and their targets, or a path of data, all that
                the command's ``--data`` takes (`load_data`): loss and metrics over all that counts in them, as the
                command ``eval`` prints them.
            batch_size: samples at a time of a path; 128 by default, or as the model prescribes.
            scale: of a path, what the network's float input is multiplied by, or by name; by default as the model says.
            metrics: functions of two mappings of arrays, the outputs of the model and the data, by the name of what they
                return. They see all samples at once. `fit` and ``best.onnx`` know the metrics of `build` alone, which are
                part of the model.
            reading: of a path, as `fit` takes it: `block_size`, `shift_labels`, `document_end`, `tokenizer`, `packing`, `token_type`, `missing`, `columns`,
                `map`, `on_bad_picture`, `mask_values`, `label_separator`.

        Returns:
            ``loss``; ``accuracy`` for losses over classes; the metrics that the model was built with, as numbers, and
            what they say by class, as arrays: ``f1_per_class``, ``confusion_matrix``.

        Warns:
            UserWarning: for a path, what the command notes.

        >>> session.evaluate(x, labels).loss > 0
        True
        >>> np.savez("test.npz", x=x, labels=labels)
        >>> session.evaluate("test.npz").accuracy == session.evaluate(x, labels).accuracy
        True
        >>> def mistakes(outputs, data):
        ...     return int((outputs["logits"].argmax(axis=1) != data["labels"]).sum())
        >>> session.evaluate("test.npz", metrics={"mistakes": mistakes}).mistakes <= 4
        True
        """
        result = self._run_batch_or_files("evaluate", batch, batch_size, scale, reading)
        for name, function in (metrics or {}).items():
            if not callable(function):
                raise UsageError(
                    f"metrics: '{name}' is no function but {function!r}; metrics by name are part of the model: "
                    "build(metric=...)"
                )
        if metrics:
            outputs, data = self._outputs_and_data(batch, batch_size, scale, reading)
            for name, function in metrics.items():
                result[name] = function(outputs, data)
        return result

    def metrics(self, statistics: Mapping[str, Any]) -> Result:
        """The metrics that are made of statistics, which add up over batches.

        ``run("evaluate", ...)`` gives the statistics of a batch, the outputs with the role ``statistic``. Summed over
        batches, or over processes that share the data, they give the metrics of all data at once, exactly.

        Args:
            statistics: arrays by name; other outputs may be among them.

        >>> counted = onnx_train.Session(onnx_train.build("mlp.onnx", "cross_entropy", metric="f1"))
        >>> halves = [counted.run("evaluate", {"x": x[i : i + 2], "labels": labels[i : i + 2]}) for i in (0, 2)]
        >>> both = counted.metrics({"counts": halves[0].counts + halves[1].counts})
        >>> both.f1 == counted.evaluate(x, labels).f1
        True
        """
        from ._arrays import as_dense

        return Result(self._core.metrics({name: as_dense(value, name) for name, value in statistics.items()}))

    def predict(self, *batch: Any, batch_size: int | None = None, scale: Scale = None, **reading: Any) -> Result:
        """The outputs of the inference model for a batch, or for all samples of a path.

        Args:
            batch: as `step` takes it, without the targets, or a path, as `evaluate` takes it; files may hold targets. Or
                pictures, which are preprocessed as those in files: a list of paths, an image of Pillow or a list of
                them, or, where the model's preprocessing has other steps than scales, uint8 arrays [H, W, C],
                [N, H, W, C] or [N, C, H, W]. ``result.files`` are the paths.
            batch_size, scale, reading: as of `evaluate`.

        >>> session.predict(x).logits.argmax(axis=1).shape
        (4,)
        >>> np.savez("test.npz", x=x)
        >>> np.array_equal(session.predict("test.npz").logits, session.predict(x).logits)
        True
        """
        return self._run_batch_or_files("predict", batch, batch_size, scale, reading)

    def plan(self, entry: str | None = None, *, batch: int = 1, dim: Patterns = None) -> Plan:
        """What a run of an entry point executes: nodes, kernels, bytes. Runs nothing.

        Args:
            entry: a name of `entries`; ``step`` by default, or ``predict`` where there is none.
            batch: the first size of the inputs, where the model leaves it open.
            dim: ``"NAME=N"``: other sizes that the model leaves open; 8 by default.

        Raises:
            UsageError: for a name of no entry point.
            UnsupportedError: for a name of no open size.
            OutOfMemoryError: for a batch whose gradients and activations take more than `memory`.

        >>> plan = session.plan(batch=64)
        >>> sum(node.flops.get("float", 0) for node in plan.nodes) > 0
        True
        """
        entry = entry or ("step" if "step" in self.entries else "predict")
        return Plan(*self._core.plan(entry, options_of(batch=batch, dim=dim)))

    def swap(self, other: Session, names: str | Sequence[str] | None = None) -> None:
        """Exchanges the values of states with those of the same names in another session on the same device.

        Args:
            names: one or several states; by default all, which both sessions must have. The exchange of several is not
                atomic: no other thread may use either session meanwhile.

        Raises:
            DataError: for a state that one of the sessions lacks, or has with another type or shape.

        >>> other = onnx_train.Session(session.model())
        >>> other.state["fc2.bias"][:] = 7
        >>> session.swap(other, "fc2.bias")
        >>> session.state["fc2.bias"].tolist()
        [7.0, 7.0, 7.0]
        """
        if type(self._core) is not type(other._core):
            raise UsageError("swap: both sessions are of one runtime, onnx_train's own or ONNX Runtime")
        if names is None:
            names = list(self.state)
            for name in set(names) ^ set(other.state):
                raise DataError(f"one of the sessions alone has a state '{name}'; name those that are to be exchanged")
        for name in [names] if isinstance(names, str) else names:
            self._core.swap(other._core, name)

    def load_adapter(self, name: str, folder: str | os.PathLike[str]) -> None:
        """Reads an adapter in PEFT's format and keeps it in the session, beside others.

        Args:
            name: of the adapter in this session; one of this name is replaced.
            folder: as PEFT or `Model.save_adapter` wrote it, for layers and of the rank of the model's own adapters.
                Weights that were trained besides, such as a head, are part of it.

        Raises:
            DataError: for an adapter that does not fit the model's.
            FileError: for a folder without one.
            UsageError: for a model without adapters.

        >>> adapted = onnx_train.build("mlp.onnx", lora={"rank": 2})
        >>> adapted.save_adapter("first")
        >>> several = onnx_train.Session(adapted)
        >>> several.load_adapter("first", "first")
        >>> several.set_adapter("first")
        """
        self._core.load_adapter(name, os.fspath(folder))

    def set_adapter(self, name: str) -> None:
        """Gives the states the values of an adapter that `load_adapter` has read: the next call has them.

        Nothing is planned or built anew. What the states held is gone, unless ``session.model().save_adapter`` saved it.

        Raises:
            UsageError: for a name that no adapter has.

        >>> adapted = onnx_train.build("mlp.onnx", lora={"rank": 2})
        >>> adapted.save_adapter("second")
        >>> several = onnx_train.Session(adapted)
        >>> several.load_adapter("mine", "second")
        >>> several.set_adapter("mine")
        """
        self._core.set_adapter(name)

    def initialize(self, seed: int = 0) -> None:
        """Begins anew: weights are drawn if the model was built with ``init``, else kept; the optimizer's state and the
        number of steps are those of the start in both cases.

        Args:
            seed: the same seed gives the same state, on every device.

        >>> drawn = onnx_train.Session(onnx_train.build("mlp.onnx", optimizer="sgd", init="kaiming"))
        >>> drawn.initialize(seed=1)
        """
        self._core.initialize(seed)

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Writes the adapters with their present values, as `Model.save_adapter` does.

        >>> adapted = onnx_train.Session(onnx_train.build("mlp.onnx", lora={"rank": 2}))
        >>> adapted.save_adapter("adapter")
        """
        self.model().save_adapter(folder)

    def __repr__(self) -> str:
        """The device and the entry points.

        >>> session
        <Session on cpu: predict, step, evaluate>
        """
        return f"<Session on {self._device}: {', '.join(self.entries)}>"

    def model(self) -> Model:
        """The training model with the present state.

        >>> again = onnx_train.Session(session.model())
        >>> again.step(x, labels) == session.step(x, labels)
        True
        """
        return Model(self._core.model())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint: the training model with the present state. The write is atomic.

        Raises:
            FileError: for a file that cannot be written.

        >>> session.save("checkpoint.onnx")
        >>> again = onnx_train.Session("checkpoint.onnx")
        """
        self.model().save(path)

    def export(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Model:
        """The inference model with the present weights; also written to `path` if that is given.

        Args:
            path: an ``.onnx`` file.
            options: those of `Model.export`: ``merge``, ``dtype``, ``tta``, ``original_types``, ``cache``,
                ``adapter_inputs``, ``into``, ``base``.

        Raises:
            FileError: for a file that cannot be written.

        >>> inference = session.export("trained.onnx")
        >>> np.array_equal(onnx_train.Session(inference).predict(x).logits, session.predict(x).logits)
        True
        """
        inference = self.model().export(**options)
        if path is not None:
            inference.save(path)
        return inference

    def _run(
        self, entry: str, batch: tuple[Any, ...], lr: float | None = None, clip_norm: float | None = None
    ) -> Result:
        known = self._entry(entry)
        inputs = {name: self._scaled(name, value) for name, value in _by_name(entry, known, batch).items()}
        for value, name, option in ((lr, known.learning_rate, "lr"), (clip_norm, known.clip_norm, "clip_norm")):
            if value is not None:
                if name is None:
                    raise UsageError(f"entry point '{entry}' takes no {option}")
                inputs[name] = value
        return Result(self._core.run(entry, inputs), known.outputs)

    def _run_batch_or_files(
        self, entry: str, batch: tuple[Any, ...], batch_size: int | None, scale: Scale, reading: dict[str, Any]
    ) -> Result:
        if len(batch) == 1 and (isinstance(batch[0], (str, os.PathLike)) or is_table(batch[0])):
            with as_file(batch[0]) as file:
                files = self._core.open_data(file, entry, reading_options(**reading))
            run = self._core.evaluate if entry == "evaluate" else self._core.predict
            results, notes = run(files, options_of(batch_size=batch_size, scale=scale))
            for note in notes:
                warn(note)
            return Result(results, self._entry(entry).outputs)
        if self._takes_pictures(entry, batch):
            with picture_file(self._entry(entry).data, batch) as path:
                result = self._run_batch_or_files(entry, (path,), batch_size, scale, reading)
            result.files = paths_of(batch[0])
            return result
        arrays = [name for name in reading if any(name == port.name for port in self.inputs(entry))]
        if arrays:
            raise UsageError(f"{entry} takes arrays by name as one mapping: {entry}({{'{arrays[0]}': ...}})")
        if batch_size is not None or scale is not None or reading:
            raise UsageError(f"{entry}: batch_size, scale and others are for a path of data; a batch is run as it is")
        result = self._run(entry, batch)
        statistics = self._entry(entry).statistics
        if statistics:
            found = self.metrics({name: result.pop(name) for name in statistics})
            result.update(found)
        return result

    def _takes_pictures(self, entry: str, batch: tuple[Any, ...]) -> bool:
        """Whether the batch are pictures that the model's preprocessing brings to its input."""
        if not batch or isinstance(batch[0], Mapping):
            return False
        if paths_of(batch[0]) is not None or images_of(batch[0]) is not None:
            return True
        try:
            return pixels_of(batch[0]) is not None and self._core.scale(self._entry(entry).data[0]) < 0
        except UsageError:  # there are other steps than scales
            return True

    def _outputs_and_data(
        self, batch: tuple[Any, ...], batch_size: int | None, scale: Scale, reading: dict[str, Any]
    ) -> tuple[Result, Mapping[str, Any]]:
        """What metrics that are Python functions read: the outputs of all samples, and the data."""
        if len(batch) == 1 and (isinstance(batch[0], (str, os.PathLike)) or is_table(batch[0])):
            with as_file(batch[0]) as file:
                data = self._core.open_data(file, "evaluate", reading_options(**reading)).arrays()
            return self.predict(batch[0], batch_size=batch_size, scale=scale, **reading), data
        data = _by_name("evaluate", self._entry("evaluate"), batch)
        inputs = {name: data[name] for name in self._entry("predict").data if name in data}
        return self.predict(inputs), data

    def _scaled(self, name: str, value: Any) -> Any:
        """Data of an input as the network reads it: `fit` says how with its `scale`, and the model keeps it."""
        scale = self._core.scale(name)
        if scale == 1:
            return value
        if isinstance(value, (list, tuple)):
            from ._arrays import as_numpy

            value = as_numpy(value)
        return value * scale

    def _entry(self, entry: str) -> _Entry:
        known = self._entries.get(entry)
        if known is None:
            known = self._entries[entry] = _Entry(self.inputs(entry), self.outputs(entry))
        return known


def used(entry: str, inputs: Collection[str], needed: Collection[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `given` that the entry point has inputs for; warns of others, as of arrays in files nothing is said of
    targets where only outputs are computed. Where one that is needed is missing, all: the error names what is there."""
    arrays = {name: array for name, array in given.items() if not name.startswith("onnx_train.")}
    others = [name for name in arrays if name not in inputs]
    if any(name not in arrays for name in needed):
        return arrays
    if others and entry != "predict":
        warn(f"{entry}: the model has no input {', '.join(repr(name) for name in others)}, so that is not used")
    return {name: array for name, array in arrays.items() if name in inputs}


def _by_name(entry: str, known: _Entry, batch: tuple[Any, ...]) -> dict[str, Any]:
    if len(batch) == 1:
        if isinstance(batch[0], Mapping):
            if batch[0].keys() == known.keys:
                return dict(batch[0])
            return used(entry, known.inputs, known.data, batch[0])
        if isinstance(batch[0], (tuple, list)) and len(known.data) > 1:  # what data loaders give
            batch = tuple(batch[0])
    if len(batch) > len(known.data):
        names = ", ".join(known.data) or "none"
        raise UsageError(f"entry point '{entry}' takes {len(known.data)} arrays ({names}), not {len(batch)}")
    return dict(zip(known.data, batch))
