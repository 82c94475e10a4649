"""Texts with labels to arrays of tokens."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import DataError
from ._options import check_suffix
from ._tokenize import json_lines, load_tokenizer

_CLASSES = "onnx_train.classes"  # in the .npz, as bytes of a JSON list


@dataclass(frozen=True)
class LabelledFile:
    """What `tokenize_labelled` wrote.

    Attributes:
        samples: their number.
        cut: how many texts have more tokens than a sample.
        classes: the names of the labels 0, 1, ..., where the labels are texts.

    >>> import onnx_train
    >>> onnx_train.LabelledFile(samples=2, cut=0, classes=("bad", "good")).classes[1]
    'good'
    """

    samples: int
    cut: int
    classes: tuple[str, ...]


def tokenize_labelled(
    tokenizer: Any,
    table: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    length: int,
    text: str = "text",
    label: str | None = "label",
    pad: int | None = None,
    classes: Sequence[str] = (),
) -> LabelledFile:
    """Writes the tokens of texts with a label each as arrays that `fit` and the command read: ``input_ids``,
    ``attention_mask`` and ``token_type_ids`` of BERT and its relatives, and ``labels``.

    The names of classes are in the file, too: a model that is trained on it keeps them, so that ``onnx-train predict
    -o classes.csv`` writes names.

    Args:
        tokenizer: as of `tokenize`. The first and last tokens that it puts around a text are there, also where a text
            is cut, if it is a tokenizer of Hugging Face.
        table: a ``.csv`` whose first line names the columns, or a ``.jsonl`` with an object a line.
        path: of the ``.npz`` file to write.
        length: tokens of a sample. Longer texts are cut; shorter ones are filled with `pad`, where ``attention_mask``
            is 0.
        text, label: the columns; without a label (None) the file is one to be predicted.
        pad: by default the number of ``[PAD]`` or ``<pad>``, if the tokenizer knows one, else 0.
        classes: the names of the labels, as an earlier file has them; by default the texts of the column, sorted.

    Raises:
        DataError: for a line without text or label, and a label that is not among `classes`.
        UsageError: for a tokenizer that is not installed.

    >>> import numpy as np
    >>> import onnx_train
    >>> class Letters:
    ...     def encode(self, text):
    ...         return [ord(letter) - ord("a") + 1 for letter in text]
    >>> with open("words.csv", "w") as file:
    ...     file.write("text,label\\nabcd,long\\ne,short\\n") > 0
    True
    >>> onnx_train.tokenize_labelled(Letters(), "words.csv", "words.npz", length=3)
    LabelledFile(samples=2, cut=1, classes=('long', 'short'))
    >>> np.load("words.npz")["input_ids"].tolist()
    [[1, 2, 3], [5, 0, 0]]
    """
    check_suffix(path, ".npz")
    own = load_tokenizer(os.fspath(tokenizer)) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
    rows = list(_rows(Path(table), text, label))
    if not rows:
        raise DataError(f"{os.fspath(table)} holds no texts")
    encode = _encoder(own, length)
    filler = _pad_of(own) if pad is None else pad
    shape = (len(rows), length)
    tokens, mask = np.full(shape, filler, np.int64), np.zeros(shape, np.int64)
    cut = 0
    for row, (_, words, _) in enumerate(rows):
        ids, is_cut = encode(words)
        cut += is_cut
        tokens[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
    arrays: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}
    names: tuple[str, ...] = tuple(classes)
    if label is not None:
        arrays["labels"], names = _labels([(line, value) for line, _, value in rows], table, classes)
        if names:
            arrays[_CLASSES] = np.frombuffer(json.dumps(names).encode(), np.uint8)
    partial = Path(f"{os.fspath(path)}.partial")
    with open(partial, "wb") as file:
        np.savez(file, **arrays)
    partial.replace(path)
    return LabelledFile(len(rows), cut, names)


def _rows(path: Path, text: str, label: str | None) -> Iterator[tuple[int, str, Any]]:
    """(line, text, label)"""
    for number, row in json_lines(path) if path.suffix == ".jsonl" else _csv_lines(path):
        words, value = (row.get(text), row.get(label) if label else 0) if isinstance(row, dict) else (None, None)
        if not isinstance(words, str) or value is None or value == "":
            raise DataError(f"{path}, line {number} has no '{text if not isinstance(words, str) else label}'")
        yield number, words, value


def _csv_lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            for row in reader:
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def _encoder(own: Any, length: int) -> Any:
    """A function from a text to its tokens, at most `length`, and whether there were more."""
    if hasattr(own, "enable_truncation"):  # of the package tokenizers; a copy, since it keeps such settings
        limited = type(own).from_str(own.to_str())
        limited.enable_truncation(length)
        limited.no_padding()

        def encode_limited(words: str) -> tuple[Sequence[int], bool]:
            encoded = limited.encode(words)
            return encoded.ids, bool(encoded.overflowing)

        return encode_limited

    def encode(words: str) -> tuple[Sequence[int], bool]:
        encoded = own.encode(words)
        ids = getattr(encoded, "ids", encoded)
        if len(ids) > length and hasattr(own, "convert_tokens_to_ids"):  # of transformers
            return own.encode(words, truncation=True, max_length=length), True
        return ids[:length], len(ids) > length

    return encode


def _pad_of(own: Any) -> int:
    for name in ("token_to_id", "convert_tokens_to_ids", "piece_to_id"):
        find = getattr(own, name, None)
        for token in ("[PAD]", "<pad>"):
            number = find(token) if find is not None else None
            if number is not None and number != getattr(own, "unk_token_id", None):
                return int(number)
    return 0


def _labels(
    found: Sequence[tuple[int, Any]], table: str | os.PathLike[str], classes: Sequence[str]
) -> tuple[Any, tuple[str, ...]]:
    """Whole numbers as they are, numbers as floats, texts by their places in the sorted list, with that list."""
    values = [value for _, value in found]
    if not classes:
        for kind, dtype in ((int, np.int64), (float, np.float32)):
            try:
                if kind is float or all(isinstance(value, (int, str)) for value in values):
                    return np.array([kind(value) for value in values], dtype), ()
            except ValueError:
                pass
    names = tuple(classes) or tuple(sorted({str(value) for value in values}))
    places = {name: place for place, name in enumerate(names)}
    for line, value in found:
        if str(value) not in places:
            raise DataError(f"{os.fspath(table)}, line {line}: the label '{value}' is none of {', '.join(names)}")
    return np.array([places[str(value)] for value in values], np.int64), names
