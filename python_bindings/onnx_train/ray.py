"""Ranks that Ray Train starts: a trainer, its backend, and a callback that reports to Ray.

Each worker runs the same function, in which ``fit(..., ranks="environment")`` shares out the batches of a step:

>>> import onnx_train
>>> import onnx_train.ray
>>> from ray.train import ScalingConfig
>>> def train():
...     model = onnx_train.build("mlp.onnx", accumulate=True)
...     onnx_train.fit(model, "train.npz", epochs=3, ranks="environment", callbacks=[onnx_train.ray.Report()])
>>> trainer = onnx_train.ray.RanksTrainer(train, scaling_config=ScalingConfig(num_workers=2))
>>> result = trainer.fit()  # doctest: +SKIP

Only this module imports Ray: ``pip install 'ray[train]'``.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections import Counter
from typing import Any

import ray  # type: ignore[import-not-found,unused-ignore]
import ray.train  # type: ignore[import-not-found,unused-ignore]
import ray.util  # type: ignore[import-not-found,unused-ignore]
from ray.train.backend import Backend, BackendConfig  # type: ignore[import-not-found,unused-ignore]

from ._fit import Callback, Evaluation
from ._session import Session

if hasattr(ray.train, "UserCallback"):  # Ray Train 2, which newer versions of Ray take unless RAY_TRAIN_V2_ENABLED=0
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # type: ignore[import-not-found,unused-ignore]
else:
    from ray.train.data_parallel_trainer import DataParallelTrainer  # type: ignore[import-not-found,unused-ignore]

__all__ = ["RanksConfig", "RanksTrainer", "Report"]


class RanksConfig(BackendConfig):  # type: ignore[misc,unused-ignore]
    """The ``backend_config`` of a ``DataParallelTrainer`` whose workers are ranks of one training.

    Before the function of a worker begins, its environment says what a launcher such as torchrun says: ``RANK``,
    ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``. A worker with GPUs sees
    all those of its machine that the training has, and ``device="cuda"`` takes the one of its number there.

    >>> onnx_train.ray.RanksConfig().backend_cls.share_cuda_visible_devices
    True
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray Train calls when its workers have started.

        >>> issubclass(onnx_train.ray.RanksConfig().backend_cls, ray.train.backend.Backend)
        True
        """
        return _Ranks


class _Ranks(Backend):  # type: ignore[misc,unused-ignore]
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: RanksConfig) -> None:
        """Worker i of the group is rank i: in Ray Train 1 and 2 alike, whose context of a worker comes at other times."""
        machines: list[str] = worker_group.execute(_machine)
        address, port = worker_group.execute_single(0, _address_and_port)
        ray.get(
            [
                worker_group.execute_single_async(rank, os.environ.update, variables)
                for rank, variables in enumerate(_variables(machines, address, port))
            ]
        )


def _machine() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _address_and_port() -> tuple[str, int]:
    """Where rank 0 can wait for the others: a port that is free now."""
    address = str(ray.util.get_node_ip_address())
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as free:
        free.bind(("", 0))
        return address, int(free.getsockname()[1])


def _variables(machines: list[str], address: str, port: int) -> list[dict[str, str]]:
    """What the environment of each rank says; `machines` has the machine of each."""
    sizes, seen = Counter(machines), Counter[str]()
    result = []
    for rank, machine in enumerate(machines):
        numbers = {"RANK": rank, "WORLD_SIZE": len(machines), "LOCAL_RANK": seen[machine],
                   "LOCAL_WORLD_SIZE": sizes[machine], "MASTER_PORT": port}  # fmt: skip
        result.append({"MASTER_ADDR": address, **{name: str(number) for name, number in numbers.items()}})
        seen[machine] += 1
    return result


class RanksTrainer(DataParallelTrainer):  # type: ignore[misc,unused-ignore]
    """Ray Train's ``DataParallelTrainer`` with `RanksConfig`: each worker is a rank, as in ``TorchTrainer``.

    Args:
        train_loop_per_worker: a function of nothing, or of ``train_loop_config``, that each worker runs.
        options: those of ``DataParallelTrainer``: ``scaling_config``, ``run_config``, ...

    >>> trainer = onnx_train.ray.RanksTrainer(train, scaling_config=ScalingConfig(num_workers=4, use_gpu=True))
    """

    def __init__(self, train_loop_per_worker: Any, *, backend_config: RanksConfig | None = None, **options: Any) -> None:
        super().__init__(train_loop_per_worker, backend_config=backend_config or RanksConfig(), **options)


class Report(Callback):
    """A callback of `fit` that tells Ray Train what each evaluation found.

    Every worker has it, since Ray waits for all of them in a report. Metrics are those of the `Evaluation`, with
    ``step``, ``epoch`` and ``train_loss``. The checkpoint is written by rank 0 and has one file, ``last.onnx``: the training
    model with its present state, which `Session` opens and ``onnx-train`` trains on, evaluates and exports. It is not the
    folder of a run; to go on to the bit after a failure, give `fit` a ``folder`` that all workers reach.

    Args:
        checkpoint: ``"best"`` sends a checkpoint after the best evaluation so far, ``"all"`` after each, ``"none"`` never.

    Raises:
        ValueError: for another `checkpoint`.

    >>> report = onnx_train.ray.Report(checkpoint="all")
    """

    def __init__(self, checkpoint: str = "best") -> None:
        if checkpoint not in ("best", "all", "none"):
            raise ValueError(f"checkpoint is {checkpoint!r}; it must be 'best', 'all' or 'none'")
        self._checkpoint = checkpoint

    def on_evaluation(self, session: Session, evaluation: Evaluation) -> None:
        """Reports; waits until all workers have.

        >>> report.on_evaluation  # doctest: +ELLIPSIS
        <bound method Report.on_evaluation of ...>
        """
        metrics = {"step": evaluation.step, "epoch": evaluation.epoch, "train_loss": evaluation.train_loss, **evaluation.metrics}
        if self._checkpoint == "none" or (self._checkpoint == "best" and not evaluation.best):
            ray.train.report(metrics)
            return
        model = session.model()  # of all ranks together, which may have shared out its states
        if session.rank > 0:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            model.save(os.path.join(folder, "last.onnx"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
