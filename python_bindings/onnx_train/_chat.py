"""Conversations to arrays of tokens whose labels are the answers alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ._errors import DataError, UsageError, warn
from ._options import check_suffix
from ._tokenize import Paths, Tokenizer, json_lines, load_tokenizer

_IGNORED = -100  # cross_entropy's default ignore_index
_ANSWERS = "assistant"  # the role whose tokens are learned
_CHATML = {role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ("system", "user", _ANSWERS)}

Messages = list[dict[str, str]]
Part = tuple[Sequence[int], bool]  # tokens, and whether they are learned


@dataclass(frozen=True)
class ChatFile:
    """What `tokenize_chats` wrote.

    Attributes:
        samples: the conversations in the file.
        answer_tokens: the labels that count.
        cut: the conversations that were longer than the samples.
        left_out: those without an answer in their first tokens, which are not in the file.

    >>> import onnx_train
    >>> onnx_train.ChatFile(samples=2, answer_tokens=9, cut=0, left_out=0).samples
    2
    """

    samples: int
    answer_tokens: int
    cut: int
    left_out: int


def tokenize_chats(
    tokenizer: Any,
    chats: Paths,
    path: str | os.PathLike[str],
    *,
    length: int,
    template: Mapping[str, tuple[str, str]] | None = None,
    pad: int = 0,
) -> ChatFile:
    """Writes conversations as an .npz file that `fit` and the command read, to train on answers alone.

    The file holds ``input_ids``, ``labels`` and ``attention_mask``, int32[samples, length]. A label is the token that
    follows, and -100 where that is no part of an answer: `cross_entropy` ignores it. Models with other names for their
    inputs take ``--map input_ids=tokens``.

    Args:
        tokenizer: as `tokenize` takes it. One of transformers that has a chat template writes conversations as its
            `apply_chat_template` does, unless `template` is given; an answer is what its template has between
            ``{% generation %}`` and ``{% endgeneration %}``, or else what it adds to the conversation before it. So does
            the path of a ``tokenizer.json`` whose folder has a chat template (``chat_template.jinja``, or in
            ``tokenizer_config.json``), with the package transformers.
        chats: a ``.jsonl`` file or several, with one conversation a line:
            ``{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}``, or
            ``{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}``, or
            ``{"prompt": "...", "completion": "..."}``, or Alpaca's ``{"instruction": "...", "input": "...", "output": "..."}``.
            A content may be a list of ``{"type": "text", "text": "..."}``.
        path: of the ``.npz`` file to write.
        length: of each sample, in tokens. Longer conversations are cut at their end, shorter ones padded.
        template: what is written before and after the content of a message, by its role; by default ChatML's
            ``{"user": ("<|im_start|>user\\\\n", "<|im_end|>\\\\n"), ...}``. What comes after an answer is learned with it.
        pad: the token that fills short samples. It has no label, and ``attention_mask`` is 0 there.

    Raises:
        DataError: for a file or line that is not read, a role without a template, and a chat template that writes the
            beginning of a conversation in another way once it goes on.
        UsageError: for a tokenizer that is not installed, a chat template beside it that cannot be used, and a length
            below 1.

    Warns:
        UserWarning: for markers of the template, such as ``<|im_start|>``, that are no tokens of the tokenizer.

    >>> import onnx_train
    >>> class Letters:
    ...     def encode(self, text):
    ...         return [ord(letter) for letter in text]
    >>> with open("chats.jsonl", "w") as file:
    ...     file.write('{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]}') > 0
    True
    >>> template = {"user": ("?", ""), "assistant": ("!", ".")}
    >>> onnx_train.tokenize_chats(Letters(), "chats.jsonl", "chats.npz", length=6, template=template)
    ChatFile(samples=1, answer_tokens=2, cut=0, left_out=0)
    >>> onnx_train.load_data("chats.npz")["labels"].tolist()  # c and . follow ?ab!
    [[-100, -100, -100, 99, 46, -100]]
    """
    import numpy as np

    check_suffix(path, ".npz")
    if length < 1:
        raise UsageError(f"length is {length}; it must be at least 1")
    if isinstance(tokenizer, (str, os.PathLike)):
        has_own = template is None and _has_chat_template(Path(tokenizer).parent)
        tokenizer = _with_chat_template(Path(tokenizer)) if has_own else load_tokenizer(os.fspath(tokenizer))
    own = getattr(tokenizer, "chat_template", None) if template is None else None
    if isinstance(own, str) and "{% generation" in own.replace("{%-", "{%").replace("{%generation", "{% generation"):
        parts_of = _by_marked_template(tokenizer)
    elif own:
        parts_of = _by_chat_template(tokenizer)
    else:
        markers = _CHATML if template is None else template
        known = Tokenizer(tokenizer)
        _warn_of_pieces(known, markers, "ChatML's" if template is None else "template's")
        parts_of = _by_template(known.encode, markers)

    rows: list[tuple[list[int], list[int]]] = []
    cut = left_out = 0
    roles: set[str] = set()
    for where, messages in _conversations(chats):
        roles.update(message["role"] for message in messages)
        tokens: list[int] = []
        answers: list[bool] = []
        try:
            for ids, is_answer in parts_of(messages):
                tokens.extend(ids)
                answers.extend([is_answer] * len(ids))
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        labels = [token if is_answer else _IGNORED for token, is_answer in zip(tokens[1:], answers[1:])][:length]
        if any(label != _IGNORED for label in labels):
            cut += len(tokens) > length + 1
            rows.append((tokens[: len(labels)], labels))
        else:
            left_out += 1
    if roles and _ANSWERS not in roles:
        raise DataError(f"no message has the role '{_ANSWERS}', whose tokens are learned; the roles are {', '.join(sorted(roles))}")
    if not rows:
        raise DataError(f"no conversation has an answer in its first {length} tokens; give a greater length")
    words, targets, mask = (np.full((len(rows), length), fill, np.int32) for fill in (pad, _IGNORED, 0))
    for i, (tokens, labels) in enumerate(rows):
        words[i, : len(tokens)] = tokens
        targets[i, : len(labels)] = labels
        mask[i, : len(tokens)] = 1
    partial = Path(f"{os.fspath(path)}.partial")
    with open(partial, "wb") as out:
        np.savez(out, input_ids=words, labels=targets, attention_mask=mask)
    partial.replace(path)
    return ChatFile(len(rows), int((targets != _IGNORED).sum()), cut, left_out)


def _has_chat_template(folder: Path) -> bool:
    """Whether the files beside a tokenizer, as transformers writes them, say how conversations are written."""
    if (folder / "chat_template.jinja").exists() or (folder / "chat_template.json").exists():
        return True
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))


def _with_chat_template(path: Path) -> Any:
    """The tokenizer of transformers in the folder of a file."""
    way_out = "give transformers' AutoTokenizer.from_pretrained(folder) as tokenizer, or template, which says what is written"
    if os.path.basename(path) != "tokenizer.json":
        raise UsageError(f"tokenize_chats: the folder of '{path}' has a chat template, which belongs to a tokenizer.json; {way_out}")
    load_tokenizer(os.fspath(path))  # which says what is wrong with the file
    try:
        transformers = import_module("transformers")
    except ImportError:
        raise UsageError(
            f"tokenize_chats: the folder of '{path}' has a chat template, which needs the package transformers: "
            f"pip install transformers; or give template, which says what is written"
        ) from None
    try:
        return transformers.PreTrainedTokenizerFast.from_pretrained(os.fspath(path.parent), local_files_only=True)
    except Exception as error:  # what the package raises for files that it cannot read
        raise DataError(f"cannot read the chat template in the folder of '{path}': {error}; {way_out}") from None


def _warn_of_pieces(tokenizer: Tokenizer, template: Mapping[str, tuple[str, str]], whose: str) -> None:
    """Warns of markers such as <|im_start|> that are no token of their own."""
    texts = [text for pair in template.values() for text in pair]
    markers = dict.fromkeys(marker for text in texts for marker in re.findall(r"<\|[^<>\s]*\|>|</?[^<>\s]+>", text))
    spelled = [marker for marker in markers if not tokenizer.has_token(marker)]
    if spelled:
        warn(
            f"tokenize_chats: {', '.join(spelled)} of {whose} markers are no tokens of the tokenizer, and are spelled in "
            "pieces; give template with markers that it knows, or add these to the tokenizer and train their embeddings"
        )


def _by_template(
    encode: Callable[[str], Sequence[int]], template: Mapping[str, tuple[str, str]]
) -> Callable[[Messages], Iterator[Part]]:
    def parts_of(messages: Messages) -> Iterator[Part]:
        for message in messages:
            role = message["role"]
            if role not in template:
                raise DataError(f"the template has no role '{role}'; it has {', '.join(template)}")
            before, after = template[role]
            yield encode(before), False
            yield encode(message["content"]), role == _ANSWERS
            yield encode(after), role == _ANSWERS

    return parts_of


def _by_marked_template(tokenizer: Any) -> Callable[[Messages], Iterator[Part]]:
    """By a tokenizer of transformers whose template marks what an assistant generates."""

    def parts_of(messages: Messages) -> Iterator[Part]:
        written = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        for token, is_answer in zip(written["input_ids"], written["assistant_masks"]):
            yield [token], bool(is_answer)

    return parts_of


def _by_chat_template(tokenizer: Any) -> Callable[[Messages], Iterator[Part]]:
    """By a tokenizer of transformers: an answer is what is written beyond the conversation before it, which ends with
    what introduces an answer."""

    def write(messages: Messages, introduces: bool) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=introduces)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    def parts_of(messages: Messages) -> Iterator[Part]:
        written: list[int] = []
        for end in [i for i, message in enumerate(messages) if message["role"] == _ANSWERS]:
            before, after = write(messages[:end], True), write(messages[: end + 1], False)
            if not written and before == write(messages[:end], False):
                warn(
                    "tokenize_chats: the tokenizer's chat template does not read add_generation_prompt, so that what "
                    "introduces an answer is learned with it; {% generation %} in the template, or template, says what is"
                )
            if before[: len(written)] != written or after[: len(before)] != before:
                raise DataError("the tokenizer's chat template changes what it wrote before an answer; give template")
            yield before[len(written) :], False
            yield after[len(before) :], True
            written = after

    return parts_of


def _conversations(chats: Paths) -> Iterator[tuple[str, Messages]]:
    """("FILE, line N", messages)"""
    for file in [chats] if isinstance(chats, (str, os.PathLike)) else chats:
        for number, record in json_lines(Path(file)):
            messages = _plain(_messages_of(record))
            if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
                raise DataError(
                    f'{os.fspath(file)}, line {number} is no JSON object with "messages", each with "role" and "content", a text or a list of texts'
                )
            yield f"{os.fspath(file)}, line {number}", messages


def _messages_of(record: Any) -> Any:
    if not isinstance(record, dict):
        return None
    if "prompt" in record and "completion" in record:
        pair = zip(("user", _ANSWERS), (record["prompt"], record["completion"]))
        return [{"role": role, "content": content} for role, content in pair]
    if "instruction" in record and "output" in record:
        words = [record["instruction"], *([record["input"]] if record.get("input") else [])]
        asked = "\n\n".join(words) if all(isinstance(word, str) for word in words) else None
        return [{"role": "user", "content": asked}, {"role": _ANSWERS, "content": record["output"]}]
    turns = record.get("conversations")
    if isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns):
        names = {"human": "user", "gpt": _ANSWERS}
        return [{"role": names.get(turn.get("from"), turn.get("from")), "content": turn.get("value")} for turn in turns]
    return record.get("messages")


def _plain(messages: Any) -> Any:
    """Contents that are lists of texts as one text."""
    if not isinstance(messages, list):
        return messages
    plain = []
    for message in messages:
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, list) and all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
        ):
            message = {**message, "content": "".join(part["text"] for part in parts)}
        plain.append(message)
    return plain


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
