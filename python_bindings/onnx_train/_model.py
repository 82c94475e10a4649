"""Models: forward models, training models, checkpoints. Each is one ONNX model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import _core
from ._errors import FileError, UsageError, warn
from ._option_types import BuildOptions, CheckOptions
from ._options import options_of, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .losses import Loss
    from .optimizers import Optimizer

Patterns = Union[str, Iterable[str], None]


class Finding(NamedTuple):
    """One thing that `check` found: an obstacle to training, or something worth knowing.

    Attributes:
        subject: a node, a weight, or a part of the work.
        what: what was found.
        advice: what to do; may be empty.

    >>> import onnx_train
    >>> for finding in onnx_train.check("mlp.onnx").findings:
    ...     print(f"{finding.subject}: {finding.what}")
    """

    subject: str
    what: str
    advice: str


class CheckReport:
    """What `check` found. ``print(report)`` prints what the command ``onnx-train check`` prints.

    A report is true when the model can be trained.

    Attributes:
        loss: the expression of the loss that the model was tried with.
        failure: why the model cannot be trained, in one line; empty when it can.
        obstacles: everything that is in the way of training.
        findings: what is worth knowing besides.

    >>> import onnx_train
    >>> report = onnx_train.check("mlp.onnx")
    >>> bool(report), report.loss, report.failure, report.obstacles
    (True, 'cross_entropy', '', [])
    """

    def __init__(self, core: _core.Model, options: list[tuple[str, str]]) -> None:
        self._text, self.loss, self.failure, obstacles, findings = core.check(options)
        self.obstacles = [Finding(*obstacle) for obstacle in obstacles]
        self.findings = [Finding(*finding) for finding in findings]

    def __bool__(self) -> bool:
        return not self.failure

    def __str__(self) -> str:
        return self._text + (f"error: {self.failure}\n" if self.failure else "")

    def __repr__(self) -> str:
        outcome = "can be trained" if self else f"{len(self.obstacles)} obstacles"
        return f"<onnx_train.CheckReport: {outcome}>"


class Model:
    """One ONNX model in memory: a forward model, a training model or a checkpoint. It does not change.

    `load` makes models from files, bytes and `onnx.ModelProto`. Any number of threads may use a model.

    >>> import onnx_train
    >>> model = onnx_train.load("mlp.onnx")
    >>> training = model.build("cross_entropy", "sgd(lr=0.1)")
    """

    def __init__(self, core: _core.Model, path: str | None = None) -> None:
        self._core = core
        self._path = path  # of the file that it was loaded from

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.to_bytes(),)

    def __repr__(self) -> str:
        """What kind of model it is; of a training model loss and optimizer.

        >>> training
        <Model that trains cross_entropy(logits, labels, axis=1) by sgd(lr=0.1, momentum=0, dampening=0, weight_decay=0)>
        """
        built = self.metadata
        if "onnx_train.loss" not in built:
            return "<Model without training>"
        return f"<Model that trains {built['onnx_train.loss']} by {built.get('onnx_train.optimizer', 'nothing')}>"

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata; those of a training model say what it was built with.

        >>> training.metadata["onnx_train.loss"]
        'cross_entropy(logits, labels, axis=1)'
        """
        return self._core.metadata()

    @property
    def notes(self) -> list[str]:
        """What was guessed, left out or changed when this model was made: what `check` finds with the same arguments.

        Those of a derivative name inputs without one.

        >>> training.notes
        []
        """
        return [_line_of(finding) for finding in self._core.notes()]

    @property
    def constants(self) -> dict[str, str]:
        """What a training model takes for no weight, such as buffers, masks and tables: why, by name.

        `build` trains such an initializer if `train` names it. `check` says which of these are guesses.

        >>> training.constants
        {}
        """
        prefix = "onnx_train.constant."
        return {key[len(prefix) :]: why for key, why in self.metadata.items() if key.startswith(prefix)}

    @takes(BuildOptions)
    def build(
        self,
        loss: str | Loss | Any = None,
        optimizer: str | Optimizer | None = None,
        **options: Unpack[BuildOptions],
    ) -> Model:
        """A training model: this forward model with its loss, gradients, optimizer and all their state.

        The arguments are the options of the command ``onnx-train build`` and take the same values; None is the
        command's default.

        Args:
            loss: such as ``"cross_entropy"``, the default unless this is a training model, whose loss and metrics are
                then kept; or ``onnx_train.losses.mse("y", "target")``; or a model that computes it:
                a path that ends with .onnx, bytes, an `onnx.ModelProto` or a `Model`. An input of that model whose name
                is that of a value of this model, mostly of an output, reads that value; its other inputs become inputs
                of the training model, such as targets. Its one output is the loss, a float scalar.
            optimizer: such as ``"adamw(weight_decay=0.01)"`` or ``onnx_train.optimizers.SGD(momentum=0.9)``.
            options: `BuildOptions`. `teacher` may be a `Model`, too, and lists of options mappings: ``lora={"rank": 8}``.

        Raises:
            UsageError: for an option with a wrong value.
            UnsupportedError: for a model that cannot be trained; `check` lists everything that is in the way. Also for
                a loss model that does not fit.

        >>> small = model.build("cross_entropy", "adamw(lr=1e-3)", freeze="fc1.*", clip=1.0)
        >>> [port.name for port in onnx_train.Session(small).states() if not port.role]
        ['fc2.weight', 'fc2.bias']
        """
        text = _text_of(loss)
        _expect_names(options.get("metric"))
        with _teacher_file(options.pop("teacher", None)) as path:
            given = options_of(loss=text, optimizer=optimizer, teacher=path, **options)
            if loss is not None and text is None:
                return Model(self._core.build_with_loss(_as_model(loss)._core, given))
            return warn_of_loss(Model(self._core.build(given)))

    @takes(CheckOptions)
    def check(self, loss: str | Loss | os.PathLike[str] | None = None, **options: Unpack[CheckOptions]) -> CheckReport:
        """What the model is, whether it can be trained, and everything that is in the way.

        Args:
            loss: as `build` takes it; by default one that fits the first output. A loss that is a model must be in a file.
            options: `CheckOptions`.

        Raises:
            UsageError: for an option with a wrong value.

        >>> report = model.check(loss="mse(logits, target)", dim="batch=32")
        >>> bool(report)
        True
        """
        text = _text_of(loss)
        if loss is not None and text is None:
            raise UsageError("check takes a loss that is a model as a path; save it first")
        return CheckReport(self._core, options_of(loss=text, **options))

    def export(
        self,
        *,
        merge: bool = False,
        dtype: Patterns = None,
        tta: str | None = None,
        original_types: bool = False,
        cache: bool = False,
        adapter_inputs: bool = False,
        into: str | os.PathLike[str] | None = None,
        base: str | os.PathLike[str] | None = None,
    ) -> Model:
        """The inference model of a training model: no training entry points, no state but the weights.

        Args:
            merge: fold adapters into the weights beside them.
            dtype: store the weights as ``"float16"``, ``"bfloat16"``, ``"int8"`` or ``"int4"``; of integers
                ``"int4,block=64"`` says how many weights have one scale (32).
            tta: average the outputs over views of the pictures: ``"flip, shift(1)"``.
            original_types: weights, inputs and outputs that were float16 or bfloat16 before training are so again.
            cache: of a language model, inputs ``past_key_values.N.key`` and ``.value`` float[batch, heads, earlier tokens,
                size] and outputs ``present.N.*``, which are the next inputs: it then reads new tokens alone. Masks are of
                all tokens. UnsupportedError names a node that mixes tokens in another way than by attention.
            adapter_inputs: take the adapters out and make them inputs that may be left out, which ONNX Runtime's
                `LoraAdapter` fills from files of `save_adapter`.
            into: a model, or a folder that holds one, with the same weights under other names, transposed or in
                another type: the result is that model with trained weights.
            base: with `into`, the model that was trained, as it was before (the model of `into`).

        Raises:
            UnsupportedError: for a model without training entry points, and where an option has nothing to do.
            DataError: for weights that `into` does not hold.

        >>> inference = training.export(dtype="int8")
        >>> onnx_train.Session(inference).entries
        ['predict']
        """
        pieces = dtype.split(",") if isinstance(dtype, str) else dtype
        options = options_of(
            merge=merge or None,
            dtype=pieces,
            tta=tta,
            original_types=original_types or None,
            cache=cache or None,
            adapter_inputs=adapter_inputs or None,
            into=None if into is None else os.fspath(into),
            base=None if base is None else os.fspath(base),
        )
        return Model(self._core.export(options))

    def export_into(
        self,
        into: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        merge: bool = False,
        adapter_inputs: bool = False,
        base: str | os.PathLike[str] | None = None,
    ) -> list[str]:
        """Writes a model, or a folder of Optimum or GenAI's model builder, anew with trained weights.

        All else of it stays: nodes, inputs, outputs, caches of keys and values, and the other files of a folder.

        Args:
            into: the model, or the folder that holds it, with the same weights under other names, transposed or in
                another type.
            path: the ``.onnx`` file or the folder to write.
            merge: fold adapters into the weights beside them.
            adapter_inputs: adapters are inputs that may be left out, which ONNX Runtime's `LoraAdapter` fills from
                files of `save_adapter`.
            base: the model that was trained, as it was before (the model of `into`).

        Returns:
            What was written, guessed or left out, in lines.

        Raises:
            DataError: for weights that `into` does not hold; nothing is written then.
            FileError: for what cannot be read or written.
            UsageError: for adapters without `merge` or `adapter_inputs`, and for a `path` within `into`.

        >>> training.export_into("model.onnx", "served.onnx")  # doctest: +SKIP
        ['served.onnx: 4 trained weights in 4 tensors']
        """
        options = options_of(
            merge=merge or None,
            adapter_inputs=adapter_inputs or None,
            into=os.fspath(into),
            base=None if base is None else os.fspath(base),
        )
        return self._core.export_into(os.fspath(path), options).splitlines()

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Writes the adapters of a training model, and the other weights that it trains, as PEFT has them.

        The folder gets ``adapter_config.json`` and ``adapter_model.safetensors``; ``build(adapter=folder)`` and
        ``peft.PeftModel.from_pretrained`` read them. A path that ends in ``.onnx_adapter`` is a file of ONNX Runtime's,
        for the model that ``export(adapter_inputs=True)`` gives.

        Raises:
            UnsupportedError: for a model without adapters.
            FileError: for a folder that cannot be written.

        >>> adapted = model.build(loss="cross_entropy", lora="rank=2")
        >>> adapted.save_adapter("adapter")
        """
        self._core.save_adapter(os.fspath(folder))

    def flatten(self, entry: str) -> Model:
        """One entry point as a plain ONNX model: each state is an input, its next value an output.

        Any runtime can run it: it has standard operators and functions of them only.

        Args:
            entry: ``"step"``, ``"evaluate"``, ``"predict"``, ``"accumulate"`` or ``"apply"``.

        Raises:
            UsageError: for a name of no entry point; the message lists those that there are.

        >>> [port.name for port in onnx_train.Session(training.flatten("evaluate")).inputs("predict")]
        ['x', 'labels', 'fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']
        """
        return Model(self._core.flatten(entry))

    def _build_evaluation(self, loss: Any, **options: Any) -> Model:
        """The entry point ``evaluate`` alone, as `build` makes it, also of a model without weights."""
        text = _text_of(loss)
        listed = [*options_of(loss=text, **options), ("evaluation", "true")]
        if loss is not None and text is None:
            return Model(self._core.build_with_loss(_as_model(loss)._core, listed))
        return Model(self._core.build(listed))

    def derivative(
        self,
        kind: str,
        loss: str | Loss | Any = None,
        *,
        train: Patterns = None,
        freeze: Patterns = None,
        mode: str | None = None,
        dtype: str | None = None,
        dim: Patterns = None,
    ) -> Model:
        """A derivative of a forward model as a plain ONNX model, which any runtime can run.

        y are the float outputs, w the weights and float inputs, J = dy/dw. Inputs ``vector/<name>`` hold the vectors.
        Weights are inputs with the file's values as defaults.

        Args:
            kind: ``"gradient"`` of the loss by each w; ``"vjp"``, uᵀ J by each w, for u of each y; ``"jvp"``, J v for each
                y, for v of each w; ``"hvp"``, the loss's Hessian times v for each w, likewise; ``"outputs"``, none.
            loss, train, freeze, mode, dtype, dim: as `build` takes them.

        Raises:
            UnsupportedError: for a node that cannot be differentiated, for ``"jvp"`` and ``"hvp"`` twice.

        >>> derivative = model.derivative("jvp", train="fc2.*")
        >>> [port.name for port in onnx_train.Session(derivative).inputs("predict") if port.role == "direction"]
        ['vector/fc2.weight', 'vector/fc2.bias', 'vector/x']
        """
        text = _text_of(loss)
        loss_model = None if loss is None or text is not None else _as_model(loss)._core
        options = options_of(loss=text, train=train, freeze=freeze, mode=mode, dtype=dtype, dim=dim)
        return Model(self._core.derivative(kind, loss_model, options))

    def with_weights(
        self, weights: Mapping[str, Any] | str | os.PathLike[str], *, strict: bool = True
    ) -> Model:
        """A copy of this model, a forward or a training model, with other weights.

        Args:
            weights: arrays by name, of any library, or a .safetensors or .npz file of such. They have the shapes of the
                model's weights; floats of another type are converted. Weights that are left out stay.
            strict: whether names that are no weights of the model are errors; else they are left out.

        Raises:
            DataError: for a name that is no weight of the model, and for another shape or kind of type.
            FileError: for a file that cannot be read.

        >>> import numpy as np
        >>> shifted = model.with_weights({"fc2.bias": np.ones(3)})
        >>> x = np.zeros((1, 4), np.float32)
        >>> onnx_train.Session(shifted).predict(x).logits.shape
        (1, 3)
        """
        from . import _safetensors
        from ._arrays import as_dense

        if isinstance(weights, (str, os.PathLike)):
            weights = _safetensors.read(weights)[0]
        arrays = {name: as_dense(value, name) for name, value in weights.items()}
        return Model(self._core.with_weights(arrays, strict))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model atomically: an existing file is complete and old, or complete and new.

        Raises:
            UsageError: for a name that ends with another suffix than ``.onnx``.
            FileError: for a file that cannot be written.

        >>> training.save("train.onnx")
        >>> onnx_train.Session("train.onnx").entries
        ['predict', 'step', 'evaluate']
        """
        self._core.save(os.fspath(path))

    def to_bytes(self) -> bytes:
        """The serialized model, at most 2 GiB.

        Raises:
            UnsupportedError: for a larger model; `save` writes any size.

        >>> onnx_train.load(training.to_bytes()).to_bytes() == training.to_bytes()
        True
        """
        return self._core.to_bytes()

    def to_onnx(self) -> Any:
        """The model as `onnx.ModelProto`, or as bytes where the package onnx is not installed.

        >>> proto = training.to_onnx()
        """
        data = self.to_bytes()
        try:
            import onnx
        except ImportError:
            return data
        return onnx.load_from_string(data)


def load(source: str | os.PathLike[str] | bytes | bytearray | memoryview | Any) -> Model:
    """A model from a path, from the bytes of a file, or from an `onnx.ModelProto`.

    Large tensors of a file are mapped: the file must not be changed in place while the model lives. Writing a new file
    of the same name, as all tools do, is safe. A run of ONNX Runtime's training is read as `import_ort` reads it.

    Raises:
        FileError: for a file that cannot be read or is no ONNX model.

    >>> import onnx_train
    >>> model = onnx_train.load("mlp.onnx")
    >>> same = onnx_train.load(open("mlp.onnx", "rb").read())
    """
    if isinstance(source, (str, os.PathLike)):
        return Model(_core.Model.load(os.fspath(source)), os.fspath(source))
    if hasattr(source, "SerializeToString"):
        return Model(_core.Model.from_bytes(source.SerializeToString()))
    if not isinstance(source, (bytes, bytearray, memoryview)):
        raise UsageError(f"a model is a path, the bytes of a file or an onnx.ModelProto, not {type(source).__name__}")
    return Model(_core.Model.from_bytes(bytes(source)))


def import_ort(path: str | os.PathLike[str]) -> Model:
    """The training model of a run of ONNX Runtime's on-device training, with its weights, moments and steps done.

    The command ``onnx-train import-ort`` has options for files of other names, another optimizer and metrics.

    Args:
        path: the folder with ``training_model.onnx``, ``eval_model.onnx``, ``optimizer_model.onnx`` and ``checkpoint``; or
            a checkpoint beside these models, a file or a folder that ``CheckpointState.save_checkpoint`` has written.

    Raises:
        FileError: for files that are missing, cut off, or not of one run.
        UnsupportedError: for an optimizer that is no AdamW or SGD, and a model that cannot be trained.

    >>> import onnx_train
    >>> training = onnx_train.import_ort("artifacts")
    >>> training.metadata["onnx_train.optimizer"]
    'hf_adamw(lr=0.02, betas=(0.9, 0.999), eps=1e-06, weight_decay=0)'
    """
    model = load(path)
    if "onnxruntime.checkpoint" not in model.metadata:
        raise FileError(f"'{os.fspath(path)}' is no run of ONNX Runtime's training: take the folder with its models and checkpoint")
    return model


def _line_of(finding: tuple[str, str, str]) -> str:
    subject, what, advice = finding
    return "; ".join(filter(None, (" ".join(filter(None, (subject, what))), advice)))


def warn_of_loss(training: Model) -> Model:
    """The training model; a warning for each term of its loss that doubles what its prediction has already."""
    for finding in training._core.notes():
        if finding[0] == "loss":
            warn("; ".join(finding[1:]))
    return training


def _text_of(loss: Any) -> str | None:
    """The loss as the command takes it: an expression or a path; None for a loss that is a model in memory."""
    from .losses import Loss

    if isinstance(loss, os.PathLike):
        return str(os.fspath(loss))
    return str(loss) if isinstance(loss, (str, Loss)) else None


def _expect_names(metric: Any) -> None:
    is_one = isinstance(metric, str) or callable(metric) or not isinstance(metric, Iterable)
    for given in [metric] if is_one else metric:
        if callable(given):
            raise UsageError(
                "build takes metrics by name, which become part of the graph: a Python function has none; give it to "
                "Session.evaluate(data, metrics={...}), which calls it on arrays"
            )


@contextlib.contextmanager
def _teacher_file(teacher: Any) -> Iterator[str | None]:
    """The path of a teacher; one that no file holds is written to a temporary one."""
    if teacher is None or isinstance(teacher, (str, os.PathLike)):
        yield None if teacher is None else os.fspath(teacher)
        return
    model = _as_model(teacher)
    if model._path is not None:
        yield model._path
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "teacher.onnx")
        model.save(path)
        yield path


def _as_model(source: Any) -> Model:
    return source if isinstance(source, Model) else load(source)


def build(model: Any, *arguments: Any, **options: Any) -> Model:
    """`Model.build` of a model or of anything that `load` takes.

    >>> import onnx_train
    >>> training = onnx_train.build("mlp.onnx", "cross_entropy", "sgd(lr=0.1, momentum=0.9)")
    """
    return _as_model(model).build(*arguments, **options)


def check(model: Any, **options: Any) -> CheckReport:
    """`Model.check` of a model or of anything that `load` takes.

    >>> import onnx_train
    >>> assert onnx_train.check("mlp.onnx")
    """
    return _as_model(model).check(**options)
