"""Tables of other programs, as the CSV files that the library reads: Parquet, Arrow, Feather, frames of pandas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ._errors import UsageError

_SUFFIXES = (".parquet", ".feather", ".arrow")


def convert_table(table: Any, path: str | os.PathLike[str]) -> None:
    """Writes a table as a CSV file, which `fit` and the command read.

    Args:
        table: the path of a ``.parquet``, ``.feather`` or ``.arrow`` file, which needs the package pyarrow; or a table of
            pyarrow, or a frame of pandas or polars. `fit` takes all of them without this function, too.
        path: of the file to write. Numbers are written so that they are read again to the last bit.

    Raises:
        UsageError: for a file of another kind, or without pyarrow.

    >>> import onnx_train
    >>> class Frame:
    ...     "What onnx_train uses of a frame of pandas."
    ...     columns = ["x0"]
    ...     def to_csv(self, path, index):
    ...         open(path, "w").write("x0\\n1.5\\n")
    >>> onnx_train.convert_table(Frame(), "table.csv")
    >>> open("table.csv").read()
    'x0\\n1.5\\n'
    """
    target = os.fspath(path)
    if isinstance(table, (str, os.PathLike)):
        table = _read(os.fspath(table))
    if hasattr(table, "to_csv"):  # pandas
        table.to_csv(target, index=False)
    elif hasattr(table, "write_csv"):  # polars
        table.write_csv(target)
    elif type(table).__module__.startswith("pyarrow"):
        import_module("pyarrow.csv").write_csv(table, target)
    else:
        raise UsageError(f"a table is a file, or of pyarrow, pandas or polars, not {type(table).__name__}")


def _read(path: str) -> Any:
    if not path.endswith(_SUFFIXES):
        raise UsageError(f"'{path}' is no table that pyarrow reads: {', '.join(_SUFFIXES)}")
    try:
        reader = import_module("pyarrow.parquet" if path.endswith(".parquet") else "pyarrow.feather")
    except ImportError:
        raise UsageError(f"reading '{path}' needs the package pyarrow: pip install pyarrow") from None
    return reader.read_table(path)


def is_table(data: Any) -> bool:
    """Whether data are a table that `convert_table` takes, and no file that the library reads itself."""
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data).endswith(_SUFFIXES)
    is_frame = hasattr(data, "columns") and (hasattr(data, "to_csv") or hasattr(data, "write_csv"))
    return is_frame or (type(data).__module__.startswith("pyarrow") and hasattr(data, "column_names"))


@contextmanager
def as_file(data: Any) -> Iterator[str]:
    """The path of data that the library reads: for a table, that of a CSV file which is there meanwhile."""
    if not is_table(data):
        yield os.fspath(data)
        return
    import tempfile  # here: it takes a sixth of the time that importing the package may take

    with tempfile.TemporaryDirectory() as folder:
        name = Path(data).name if isinstance(data, (str, os.PathLike)) else "table"
        path = os.path.join(folder, f"{name}.csv")
        convert_table(data, path)
        yield path
