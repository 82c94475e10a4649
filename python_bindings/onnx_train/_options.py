"""Options of the library, which are texts, from Python's arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Union

from ._errors import UsageError, with_suggestions

Value = Union[None, bool, int, float, str, Iterable[str], object]
Pairs = Union[None, str, Iterable[str], Mapping[str, object]]
Scale = Union[None, float, str, Mapping[str, Union[float, str]]]


def options_of(**arguments: Value) -> list[tuple[str, str]]:
    """The options with the names and forms that the command takes: ``loss_scale=2`` is ``("loss-scale", "2")``.

    None is an option that is not given. A list gives the option once for each element. Objects such as optimizers say
    with ``str`` what the command would take.
    """
    options: list[tuple[str, str]] = []
    for argument, value in arguments.items():
        name = argument.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            options.append((name, "true" if value else "false"))
        elif isinstance(value, (list, tuple, set, frozenset)):
            options.extend((name, str(element)) for element in value)
        elif isinstance(value, float):
            options.append((name, repr(value)))
        else:
            options.append((name, str(value)))
    return options


def scales_of(scale: Scale) -> Value:
    """The option ``scale``: of one input, or by name."""
    return [f"{name}={value}" for name, value in scale.items()] if isinstance(scale, Mapping) else scale


def pairs_of(pairs: Pairs) -> Value:
    """``{"rank": 8, "targets": ["q", "v"]}`` as the command takes it: rank=8, targets=q, v."""
    if not isinstance(pairs, Mapping):
        return pairs
    pieces = []
    for key, value in pairs.items():
        values = [str(v) for v in value] if isinstance(value, (list, tuple)) else [str(value)]
        if isinstance(value, bool):
            values = [str(value).lower()]
        pieces += [f"{key}={values[0] if values else ''}", *values[1:]]
    return pieces


@with_suggestions
def reading_options(
    *,
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
) -> list[tuple[str, str]]:
    """The options of the library that say how data files are read."""
    return options_of(
        block_size=block_size,
        shift_labels=shift_labels or None,
        document_end=document_end,
        token_type=token_type,
        missing=missing,
        on_bad_picture=on_bad_picture,
        mask_values=None if mask_values is None else [str(value) for value in mask_values],
        label_separator=label_separator,
        columns=None if columns is None else [f"{name}={','.join(names)}" for name, names in columns.items()],
        map=None if map is None else [f"{column}={name}" for column, name in map.items()],
    )


def check_suffix(path: str | os.PathLike[str], *suffixes: str) -> None:
    """Raises UsageError for a file name that ends with another suffix, before a file of another format is written."""
    suffix = Path(path).suffix.lower()
    if suffix and suffix not in suffixes:
        raise UsageError(f"a name that ends in {' or '.join(suffixes)} is needed, not '{os.fspath(path)}'")
