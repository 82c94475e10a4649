"""Sessions on ONNX Runtime: training on every device for which it has an execution provider.

>>> import numpy as np
>>> import onnx_train
>>> import onnx_train.ort
>>> training = onnx_train.build("mlp.onnx", "cross_entropy", "adamw")
>>> session = onnx_train.ort.Session(training, providers=["CPUExecutionProvider"])
>>> x, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
>>> first = session.step(x, labels, lr=0.01).loss
>>> session.step(x, labels, lr=0.01).loss < first
True

Only this module imports ONNX Runtime: ``pip install onnxruntime``, or the package for the device (``onnxruntime-gpu``, ...).
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Union

try:
    import onnxruntime  # type: ignore[import-untyped,unused-ignore]
except ImportError as error:
    raise ImportError(
        "onnx_train.ort needs ONNX Runtime: pip install onnxruntime, or the package for your device, such as "
        f"onnxruntime-gpu ({error})"
    ) from error
import numpy as np

from . import _core, _session
from ._arrays import as_input
from ._errors import DataError, DeviceError, Error, OutOfMemoryError, UnsupportedError, UsageError
from ._model import Model, _as_model
from ._option_types import SessionOptions
from ._result import Port, Result
from ._state import State

if TYPE_CHECKING:
    from ._session import Metric

    Array = np.ndarray[Any, Any]

__all__ = ["Session"]

Provider = Union[str, tuple[str, Mapping[str, Any]]]

# Where a provider keeps tensors, as OrtValue calls it. Those of others begin and end a run in the host's memory.
_MEMORY = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "CANNExecutionProvider": "cann",
}


class Session(_session.Session):
    """A session as `onnx_train.Session`, whose entry points ONNX Runtime runs, flattened (`Model.flatten`).

    It has the same methods, and checkpoints of one continue in the other. The state stays on the device: it is bound
    there twice, and a run reads one and writes the other, which the next run reads. So a run that fails leaves the state
    as it was, whatever the reason, and the state takes twice the memory.

    What differs:

    - ``session.state[name]`` is a copy, read-only; assigning changes the state.
    - `evaluate` and `predict` take arrays, no paths and no pictures.
    - A batch is checked before a run, and errors are those of `onnx_train.Session`, but for integers out of range: the
      provider finds these, and then one run of onnx_train's own runtime on the host names them. What ONNX Runtime alone
      refuses is an error in its words, whose ``__cause__`` is its own.
    - `fit`, `generate`, `plan`, and options of a session that this one does not take are of onnx_train's own runtime:
      `UnsupportedError` says so. `onnx_train.learning_rate` gives the rates of a loop of your own.

    One thread at a time may use a session.

    >>> session
    <Session on CPUExecutionProvider: predict, step, evaluate>
    >>> session.save("begun.onnx")
    >>> ours = onnx_train.Session("begun.onnx")
    >>> abs(ours.step(x, labels).loss - session.step(x, labels).loss) < 1e-5
    True
    """

    def __init__(
        self,
        model: Any,
        providers: Sequence[Provider] | None = None,
        *,
        threads: int | None = None,
        allow_non_finite: bool = False,
        session_options: Any = None,
        **options: Any,
    ) -> None:
        """A session of its own state, which begins as the model's.

        An entry point is flattened and given to ONNX Runtime when it is first run.

        Args:
            model: a training model or a checkpoint: a `Model`, or anything that `onnx_train.load` takes.
            providers: as `onnxruntime.InferenceSession` takes them, names or pairs of a name and options; the first one
                runs what it can, and has the state. By default the CPU's.
            threads: of the CPU's provider; all by default.
            allow_non_finite: update the state with a loss that is NaN or infinite, too; by default a `DataError`.
            session_options: an `onnxruntime.SessionOptions`, which is used as it is.
            options: those that `onnx_train.Session` takes besides raise an error.

        Raises:
            DeviceError: for a provider that ONNX Runtime does not have here.
            UnsupportedError: for another option of `onnx_train.Session`; and later, when an entry point is first run,
                for what ONNX Runtime refuses: it names the node.
        """
        for name in options:
            if name == "device" or name in SessionOptions.__annotations__:
                way_out = "; give providers" if name == "device" else ""
                raise UnsupportedError(f"{name} is an option of onnx_train's own runtime, not of ONNX Runtime{way_out}")
            raise TypeError(f"Session() has no argument '{name}'")
        if threads is not None and (session_options is not None or threads < 1):
            what = "set intra_op_num_threads of session_options" if session_options is not None else "take a number above 0"
            raise UsageError(f"threads is {threads}; {what}")
        if session_options is None:
            session_options = onnxruntime.SessionOptions()
            session_options.log_severity_level = 4  # what it logs of errors is raised; inputs with defaults are meant
            session_options.intra_op_num_threads = threads or 0
        wanted: list[Provider] = [providers] if isinstance(providers, str) else list(providers or ["CPUExecutionProvider"])
        runtime = _Runtime(session_options, wanted)
        core = _OrtCore(_as_model(model), runtime, allow_non_finite)
        self._core = core
        self._device = ", ".join(runtime.names)
        self._entries = {}
        self._state = State(core)

    def evaluate(self, *batch: Any, metrics: Mapping[str, Metric] | None = None, **reading: Any) -> Result:
        """The loss and metrics of a batch in inference mode; changes no state.

        Args:
            batch: arrays, as `step` takes them. Not a path: `onnx_train.load_data` reads its arrays, to be given in batches.
            metrics: functions of two mappings of arrays, the outputs of the model and the data, by the name of what they
                return.
            reading: what `onnx_train.Session` takes of a path is an error here.

        Returns:
            ``loss``; ``accuracy`` for losses over classes; the metrics that the model was built with, as numbers, and
            what they say by class, as arrays.

        Raises:
            UnsupportedError: for a path.

        >>> session.evaluate(x, labels).loss > 0
        True
        """
        return super().evaluate(*batch, metrics=metrics, **reading)

    def predict(self, *batch: Any, **reading: Any) -> Result:
        """The outputs of the inference model for a batch.

        Args:
            batch: arrays, as `step` takes them, without the targets. Neither a path nor pictures.
            reading: what `onnx_train.Session` takes of a path is an error here.

        Raises:
            UnsupportedError: for a path or pictures.

        >>> session.predict(x).logits.shape
        (4, 3)
        """
        return super().predict(*batch, **reading)


class _Runtime:
    """How sessions of ONNX Runtime are made, and where they have the state.

    Attributes:
        names: of the providers.
        place: the device of the first provider, as OrtValue takes it: ``("cuda", 0)``.
    """

    def __init__(self, options: Any, providers: list[Provider]) -> None:
        self._options, self._providers = options, providers
        self.names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        known = onnxruntime.get_available_providers()
        for name in self.names:
            if name not in known:
                raise DeviceError(
                    f"ONNX Runtime {onnxruntime.__version__} has no '{name}' here; it has {', '.join(known)}: install the "
                    "package that has it, such as onnxruntime-gpu, in the place of onnxruntime",
                    "OT8003",
                )
        first = providers[0]
        number = 0 if isinstance(first, str) else int(dict(first[1]).get("device_id", 0))
        kind = _MEMORY.get(self.names[0], "cpu")
        self.place = (kind, number if kind != "cpu" else 0)

    def session(self, entry: str, flat: Model) -> Any:
        """An InferenceSession of a flattened entry point."""
        try:
            data = flat.to_bytes()
        except UnsupportedError:  # above 2 GiB
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "entry.onnx")
                flat.save(path)
                return self._session(entry, path)
        return self._session(entry, data)

    def _session(self, entry: str, source: str | bytes) -> Any:
        try:
            session = onnxruntime.InferenceSession(source, self._options, providers=self._providers)
        except Exception as error:
            raise UnsupportedError(f"ONNX Runtime refuses the entry point '{entry}': {_message_of(error)}") from error
        if self.names[0] not in session.get_providers():
            raise DeviceError(
                f"ONNX Runtime cannot start '{self.names[0]}', and would run on {', '.join(session.get_providers())}; its log "
                "says what is missing"
            )
        return session


class _Entry:
    """An entry point on ONNX Runtime."""

    def __init__(self, core: _OrtCore, entry: str, flat: Model, runtime: _Runtime) -> None:
        self.inputs = {port[0]: Port(*port) for port in core.inputs(entry)}
        self.session = runtime.session(entry, flat)
        self.binding = self.session.io_binding()
        ports = [Port(*port) for port in _core.Session(flat._core, []).outputs("predict")]
        self.writes = {port.name: port.of for port in ports if port.role == "next"}  # states by the names of their outputs
        self.results = {port.name: port.role for port in ports if port.role != "next"}
        states = frozenset(core.states())
        taken = [*self.session.get_inputs(), *self.session.get_overridable_initializers()]
        names = [value.name for value in taken]
        # The types of the model's own inputs, with the names of open sizes: ("float", ["batch", 4]). Ranks may be unknown.
        self.types = {
            value.name: (value.type.removeprefix("tensor(").removesuffix(")"), value.shape)
            for value in taken
            if value.name in self.inputs and self.inputs[value.name].shape is not None
        }
        self.reads = [name for name in names if name in states]
        # An input that only the graph of another entry point reads is none of this one.
        self.unread = [name for name in self.inputs if name not in names]
        has_scaling = "loss_scale" in self.results.values()
        self.finite = [] if has_scaling or not self.writes else ["loss", "grad_norm"]  # roles


class _OrtCore(_core.Session):
    """The library's session, which knows names, roles and data, with runs by ONNX Runtime.

    The state of the library's session is the first of two buffers of each state where the device is the host, and else
    the place from which states come and to which they go. It has the present values after `_fetch`.
    """

    def __init__(self, model: Model, runtime: _Runtime, allow_non_finite: bool) -> None:
        super().__init__(model._core, [])
        self._model, self._runtime, self._allow_non_finite = model, runtime, allow_non_finite
        self._runs: dict[str, _Entry] = {}
        self._busy = threading.Lock()
        self._front = {name: self._value_of(super(_OrtCore, self).state(name), name) for name in self.states()}
        self._back: dict[str, Any] = {}  # of the states that have been written

    def run(self, entry: str, arrays: dict[str, Any]) -> dict[str, Any]:
        with self._alone():
            run = self._run_of(entry)
            self._bind(entry, run, arrays)
            try:
                run.session.run_with_iobinding(run.binding)
                values = run.binding.get_outputs()[: len(run.results)]
                results = {name: _as_python(value.numpy()) for name, value in zip(run.results, values)}
            except Exception as error:
                raise self._explained(entry, run, arrays, error) from error
            finally:  # results belong to the caller, and may be of other sizes the next time
                for name in run.results:
                    run.binding.bind_output(name)
            if not self._allow_non_finite:
                _expect_finite(entry, run, results)
            for state in run.writes.values():
                self._front[state], self._back[state] = self._back[state], self._front[state]
            return results

    def state(self, name: str) -> Array:
        array = np.array(self._front[name].numpy())
        array.flags.writeable = False
        return array

    read_state = state

    def set_state(self, name: str, value: Any) -> None:
        dtype, shape = self.describe(name)
        array = as_input(value, dtype, name)
        if array.shape != tuple(shape):
            raise DataError(f"state '{name}' has another shape than the array")
        with self._alone():
            self._front[name].update_inplace(array)

    def swap(self, other: _core.Session, name: str) -> None:
        assert isinstance(other, _OrtCore)
        if name not in self._front or name not in other._front or self.describe(name) != other.describe(name):
            raise DataError(f"one of the sessions has no state '{name}', or has it with another type or shape")
        mine, theirs = self.state(name), other.state(name)
        self.set_state(name, theirs)
        other.set_state(name, mine)

    def model(self) -> _core.Model:
        self._fetch()
        return super().model()

    def initialize(self, seed: int) -> None:
        super().initialize(seed)
        self._give()

    def set_adapter(self, name: str) -> None:
        self._fetch()
        super().set_adapter(name)
        self._give()

    def evaluate(self, data: _core.Dataset, options: Any) -> NoReturn:
        _refuse("a path of data", "onnx_train.load_data reads its arrays, to be given in batches")

    predict = evaluate

    def fit(self, *arguments: Any, **named: Any) -> NoReturn:
        _refuse("fit", "call step in a loop of your own, with the rates of onnx_train.learning_rate")

    def generate(self, *arguments: Any, **named: Any) -> NoReturn:
        _refuse("generate", "save the session and give the file to onnx_train.generate")

    def plan(self, *arguments: Any, **named: Any) -> NoReturn:
        _refuse("plan", "ONNX Runtime has enable_profiling of session_options")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise UsageError("the session is at work in another thread; wait, or make another")
        try:
            yield
        finally:
            self._busy.release()

    def _run_of(self, entry: str) -> _Entry:
        run = self._runs.get(entry)
        if run is None:
            is_forward = self.entries() == ["predict"]
            flat = self._model if is_forward else self._model.flatten(entry)
            run = self._runs[entry] = _Entry(self, entry, flat, self._runtime)
            for state in run.writes.values():
                if state not in self._back:
                    dtype, shape = self.describe(state)
                    self._back[state] = self._value_of(np.empty(shape, dtype), state)
        return run

    def _bind(self, entry: str, run: _Entry, arrays: dict[str, Any]) -> None:
        given = {}
        for name, value in arrays.items():
            if name not in run.inputs:
                names = ", ".join(run.inputs)
                raise DataError(f"entry point '{entry}' has no input '{name}'; it has {names}", "OT5002")
            given[name] = as_input(value, run.inputs[name].dtype, name)
        for name, port in run.inputs.items():
            if name not in given and port.default is None:
                dtype = _written(*run.types[name]) if name in run.types else port.dtype
                raise DataError(f"entry point '{entry}': the input '{name}', {dtype}, is missing", "OT5002")
        _expect_samples(entry, run, given)
        _expect_shapes(run, given)
        for name, port in run.inputs.items():
            if name not in run.unread:
                array = given[name] if name in given else as_input(port.default, port.dtype, name)
                run.binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for name in run.reads:
            run.binding.bind_ortvalue_input(name, self._front[name])
        for name in run.results:
            run.binding.bind_output(name)
        for name, state in run.writes.items():
            run.binding.bind_ortvalue_output(name, self._back[state])

    def _explained(self, entry: str, run: _Entry, arrays: dict[str, Any], error: Exception) -> Error:
        """Why ONNX Runtime failed. What is wrong with the data onnx_train's own runtime says, in a session that is freed."""
        text = f"entry point '{entry}' on ONNX Runtime: {_message_of(error)}"
        if "Failed to allocate memory" in text or isinstance(error, MemoryError):
            return OutOfMemoryError(text, "OT8002")
        if re.search(r"\b(CUDA|CUDNN|CUBLAS|HIP|MIOPEN) (failure|error)", text):
            return DeviceError(text)
        try:
            _core.Session(self._model._core, [("allow-non-finite", "true")]).run(entry, arrays)
        except DataError as fault:
            return fault
        except Exception:  # without memory for it, or a kernel, it cannot tell
            return DataError(text + _ranges(run, arrays))
        return UnsupportedError(text)  # ONNX Runtime alone refuses it

    def _value_of(self, array: Array, name: str) -> Any:
        """A tensor on the device. On the host it is the array's memory."""
        try:
            return onnxruntime.OrtValue.ortvalue_from_numpy(array, *self._runtime.place)
        except Exception as error:
            kind, number = self._runtime.place
            raise DeviceError(f"the state '{name}' cannot be kept on {kind}:{number}: {_message_of(error)}") from error

    def _fetch(self) -> None:
        for name in self._front:
            super().set_state(name, self.state(name))

    def _give(self) -> None:
        for name in self._front:
            self.set_state(name, super().state(name))


def _written(dtype: str, shape: Sequence[Any]) -> str:
    """A type as messages have it: ``float[batch,4]``."""
    return f"{dtype}[{','.join('?' if size is None or size == '' else str(size) for size in shape)}]"


def _expect_samples(entry: str, run: _Entry, given: Mapping[str, Array]) -> None:
    """Raises DataError as the library does for a step on no samples, which would still decay weights and moments."""
    data = [name for name, port in run.inputs.items() if port.default is None and name in run.types]
    if entry in ("step", "accumulate") and data and all(given[name].size == 0 for name in data):
        found = _written(run.types[data[-1]][0], given[data[-1]].shape)
        raise DataError(f"the batch of entry point '{entry}' is empty: '{data[-1]}' is {found}", "OT5001")


def _expect_shapes(run: _Entry, given: Mapping[str, Array]) -> None:
    """Raises DataError as the library does for shapes that the model does not take."""
    sizes: dict[str, tuple[int, str]] = {}  # by the name of the size, with the input that sets it
    for name, (dtype, declared) in run.types.items():
        if name not in given:
            continue
        shape = given[name].shape
        if len(shape) != len(declared) or any(isinstance(d, int) and d not in (-1, n) for d, n in zip(declared, shape)):
            found, expected = _written("", shape), _written(dtype, declared)
            raise DataError(f"input '{name}' has shape {found}; the model takes {expected}", "OT5001")
        for symbol, size in zip(declared, shape):
            if not isinstance(symbol, str) or not symbol:
                continue
            known, other = sizes.setdefault(symbol, (size, name))
            if known != size:
                raise DataError(
                    f"input '{name}' has {size} for '{symbol}', but input '{other}' has {known}; give both the same size",
                    "OT5001",
                )


def _ranges(run: _Entry, arrays: Mapping[str, Any]) -> str:
    """The least and largest value of each input of integers, which may be indices out of range."""
    found = ""
    for name, port in run.inputs.items():
        if name in arrays and np.dtype(port.dtype).kind in "iu":
            array = as_input(arrays[name], port.dtype, name)
            if array.size > 0:
                found += f"{', ' if found else '; '}'{name}' holds {array.min()} to {array.max()}"
    return found


def _expect_finite(entry: str, run: _Entry, results: Mapping[str, Any]) -> None:
    for name, role in run.results.items():
        if role in run.finite and not np.isfinite(results[name]):
            what = "the loss" if role == "loss" else "the norm of the gradients"
            found = "NaN" if np.isnan(results[name]) else "infinite"
            text = f"entry point '{entry}': {what} is {found}; no weight is changed: look at the inputs and the learning rate"
            raise DataError(text, "OT3006")


def _as_python(array: Array) -> Any:
    """A number for the usual scalars, and a copy of everything else."""
    is_number = array.ndim == 0 and array.dtype.name in ("float32", "float64", "int32", "int64", "bool")
    return array.item() if is_number else np.array(array)


def _refuse(what: str, way_out: str) -> NoReturn:
    raise UnsupportedError(f"{what} is for onnx_train.Session, not for one on ONNX Runtime; {way_out}")


def _message_of(error: Exception) -> str:
    """The first line of ONNX Runtime's own words, without what it puts before all of them."""
    text = str(error)
    for start in ("Error in execution: ", "[ONNXRuntimeError] : "):
        text = text.removeprefix(start)
    parts = text.split(" : ", 2)
    text = parts[2] if len(parts) == 3 and parts[0].isdigit() else text
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
