"""What `fit` shows while it runs: a bar of tqdm, or lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Progress:
    """Shows nothing."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def step(self, epoch: int, loss: float) -> None:
        """After each step."""

    def evaluation(self, epoch: int, train_loss: float, metrics: dict[str, float]) -> None:
        """After each evaluation."""

    def close(self) -> None:
        """At the end."""


class _Lines(Progress):
    """One line for each evaluation, on stderr."""

    def evaluation(self, epoch: int, train_loss: float, metrics: dict[str, float]) -> None:
        print(_summary(epoch, train_loss, metrics), file=sys.stderr)


class _Bar(Progress):
    """A bar of tqdm over the steps, and one line for each evaluation."""

    def __init__(self, tqdm: Any, total: int | None) -> None:
        self._tqdm = tqdm
        self._bar = tqdm(total=total, unit="step")

    def step(self, epoch: int, loss: float) -> None:
        self._bar.set_postfix(epoch=epoch, loss=f"{loss:.4g}", refresh=False)
        self._bar.update()

    def evaluation(self, epoch: int, train_loss: float, metrics: dict[str, float]) -> None:
        self._tqdm.write(_summary(epoch, train_loss, metrics), file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


def _summary(epoch: int, train_loss: float, metrics: dict[str, float]) -> str:
    values = {"train loss": train_loss} | {f"eval {name}": value for name, value in metrics.items()}
    return f"epoch {epoch}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def make_progress(wanted: bool | None, total: int | None) -> Progress:
    """A bar or lines; None shows them where stderr is a terminal, or in a notebook."""
    if wanted is None:
        wanted = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not wanted:
        return Progress()
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return _Lines()
    return _Bar(tqdm, total)
