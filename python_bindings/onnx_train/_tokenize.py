"""Text to files of tokens."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Union

from ._errors import DataError, UsageError
from ._options import check_suffix

_HEADER = 256  # of int32: llm.c's
_UINT16, _UINT32 = (20240520, 1, "H"), (20240801, 7, "I")  # magic number, version, type
_MOST_TOKENS = 2**31 - 1

Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]


@dataclass(frozen=True)
class TokenFile:
    """What `tokenize` wrote.

    Attributes:
        tokens, documents: their numbers.
        dtype: ``"uint16"`` or ``"uint32"``.
        document_end: the token after each document, which ``fit(document_end=...)`` takes; None where there is none.

    >>> import onnx_train
    >>> onnx_train.TokenFile(tokens=5, documents=1, dtype="uint16", document_end=0).tokens
    5
    """

    tokens: int
    documents: int
    dtype: str
    document_end: int | None


def tokenize(
    tokenizer: Any, texts: Paths, path: str | os.PathLike[str], *, document_end: int | str | None = None
) -> TokenFile:
    """Writes the tokens of texts as a file that `fit` and the command read: llm.c's header, then uint16 or uint32.

    Args:
        tokenizer: the path of a ``tokenizer.json`` of Hugging Face, which needs the package tokenizers, or of a
            ``.model`` of SentencePiece, which needs sentencepiece; or any object whose ``encode(text)`` gives a list of
            integers, or an object with such a list as ``ids``. Nothing is added at the ends of texts.
        texts: a file or several: ``.jsonl`` has one document a line, ``{"text": ...}``, any other file is one document.
        path: of the ``.bin`` file to write.
        document_end: the token to write after each document, as a number, or as a text that the tokenizer knows, such
            as ``"<|endoftext|>"``.

    Raises:
        DataError: for a text that is not read, tokens of more than 32 bits, and 2^31 tokens or more: write several files.
        UsageError: for a tokenizer that is not installed, or a document_end that it does not know.

    >>> import onnx_train
    >>> class Letters:
    ...     def encode(self, text):
    ...         return [ord(letter) - ord("a") for letter in text]
    >>> with open("words.jsonl", "w") as file:
    ...     file.write('{"text": "abc"}\\n{"text": "de"}\\n') > 0
    True
    >>> onnx_train.tokenize(Letters(), "words.jsonl", "words.bin", document_end=26)
    TokenFile(tokens=7, documents=2, dtype='uint16', document_end=26)
    """
    check_suffix(path, ".bin")
    known = Tokenizer(tokenizer)
    end = known.number_of(document_end) if isinstance(document_end, str) else document_end
    files = [texts] if isinstance(texts, (str, os.PathLike)) else list(texts)
    tokens, documents = array("I"), 0
    for file in files:
        for text in _documents(Path(file)):
            ids = known.encode(text)
            try:
                tokens.extend(ids if end is None else [*ids, end])
            except (OverflowError, TypeError) as error:
                raise DataError(f"{os.fspath(file)}: the tokenizer gives tokens that are no uint32: {error}") from None
            documents += 1
            if len(tokens) > _MOST_TOKENS:
                raise DataError("a file holds at most 2^31 - 1 tokens; write several, each of some of the texts")
    if not tokens:
        raise DataError(f"{', '.join(os.fspath(file) for file in files) or 'no files'}: there is no text, so no tokens")
    magic, version, code = _UINT32 if len(tokens) > 0 and max(tokens) > 0xFFFF else _UINT16
    header = array("i", [magic, version, len(tokens)] + [0] * (_HEADER - 3))
    partial = Path(f"{os.fspath(path)}.partial")
    with open(partial, "wb") as out:
        header.tofile(out)
        (tokens if code == "I" else array(code, tokens)).tofile(out)
    partial.replace(path)
    return TokenFile(len(tokens), documents, "uint32" if code == "I" else "uint16", end)


class Tokenizer:
    """Any tokenizer, with the functions that the package needs; a path is loaded."""

    def __init__(self, tokenizer: Any) -> None:
        self._own = load_tokenizer(os.fspath(tokenizer)) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
        # One that would add a first or a last token does it to no text in the middle of a file.
        has_special_tokens = hasattr(self._own, "token_to_id") or hasattr(self._own, "convert_tokens_to_ids")
        self._plain = {"add_special_tokens": False} if has_special_tokens else {}

    def encode(self, text: str) -> Sequence[int]:
        encoded = self._own.encode(text, **self._plain)
        ids: Sequence[int] = getattr(encoded, "ids", encoded)
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        if not hasattr(self._own, "decode"):
            raise UsageError("the tokenizer has no function decode, so its tokens become no text")
        return str(self._own.decode(list(tokens)))

    def has_token(self, text: str) -> bool:
        """Whether a text is one token of its own."""
        for name in ("token_to_id", "convert_tokens_to_ids"):
            find = getattr(self._own, name, None)
            if find is not None:
                return find(text) is not None and find(text) != getattr(self._own, "unk_token_id", None)
        return len(self.encode(text)) == 1

    def number_of(self, token: str) -> int:
        for name in ("token_to_id", "convert_tokens_to_ids", "piece_to_id", "encode_single_token"):
            find = getattr(self._own, name, None)
            number = find(token) if find is not None else None
            if number is not None:
                return int(number)
        raise UsageError(f"the tokenizer knows no token '{token}'; give its number")


def load_tokenizer(path: str) -> Any:
    kind = Path(path).suffix
    try:
        if kind == ".json":
            return import_module("tokenizers").Tokenizer.from_file(path)
        if kind == ".model":
            return import_module("sentencepiece").SentencePieceProcessor(model_file=path)
    except ImportError as error:
        raise UsageError(f"'{path}' needs the package {error.name}: pip install {error.name}") from None
    except Exception as error:  # what the packages raise for a file that they cannot read
        raise DataError(f"cannot read the tokenizer '{path}': {error}") from None
    raise UsageError(f"'{path}' is no tokenizer: a .json of Hugging Face or a .model of SentencePiece")


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(number, value) of the lines of a file that are not empty."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path}, line {number} is no JSON: {error}") from None
                yield number, value
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def _documents(path: Path) -> Iterator[str]:
    if path.suffix == ".jsonl":
        for number, document in json_lines(path):
            if not isinstance(document, dict) or not isinstance(document.get("text"), str):
                raise DataError(f'{path}, line {number} is no JSON object with a "text"')
            yield document["text"]
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    yield text
