"""Conversations to arrays whose labels are the answers alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from ._errors import DataError, UsageError
from ._options import check_suffix
from ._tokenize import Paths, Tokenizer

IGNORED = -100  # what cross_entropy and dpo leave out, as PyTorch's do

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """How messages become text: ``start``, then for each message ``head``, its content, ``end`` and ``separator``.

    Attributes:
        head: before the content; ``{role}`` is the message's role.
        end: after the content. Of an answer it is learned, so that a model learns to stop.
        separator: after that; never learned.
        start: before the first message.

    >>> import onnx_train
    >>> onnx_train.ChatTemplate(head="[{role}] ", end="</s>").end
    '</s>'
    """

    head: str
    end: str
    separator: str = ""
    start: str = ""


# By the names that model cards use. Sources: OpenAI's ChatML; Meta's prompt format of Llama 3; Hugging Face's Zephyr.
TEMPLATES = {
    "chatml": ChatTemplate("<|im_start|>{role}\n", "<|im_end|>", "\n"),
    "llama3": ChatTemplate("<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>", "", "<|begin_of_text|>"),
    "zephyr": ChatTemplate("<|{role}|>\n", "</s>", "\n"),
    "plain": ChatTemplate("{role}: ", "\n"),
}


@dataclass(frozen=True)
class ChatFile:
    """What `tokenize_chats` wrote.

    Attributes:
        samples: rows of the arrays.
        tokens: in them, without padding.
        answer_tokens: of them, those that are learned.
        shortened: conversations that were longer than a block.
        left_out: conversations of which no answer is in the block.

    >>> import onnx_train
    >>> onnx_train.ChatFile(samples=1, tokens=9, answer_tokens=4, shortened=0, left_out=0).answer_tokens
    4
    """

    samples: int
    tokens: int
    answer_tokens: int
    shortened: int
    left_out: int


def tokenize_chats(
    tokenizer: Any,
    chats: Paths,
    path: str | os.PathLike[str],
    *,
    block_size: int,
    template: Union[str, ChatTemplate] = "chatml",
    learned: Union[str, Sequence[str]] = "assistant",
    pad: int | str = 0,
) -> ChatFile:
    """Writes conversations as an ``.npz`` file that `fit` and the command read, with loss on the answers only.

    The arrays are ``input_ids`` int64[samples, block_size], ``labels`` likewise, and ``attention_mask`` likewise. A label
    is the token that follows, if an answer holds it, else -100, which ``cross_entropy`` ignores. What is left of a row is
    ``pad``, with mask 0 and label -100. A conversation that is longer than a block loses its end.

    Each piece of text, a head, a content with its end, is tokenized by itself, so that the border of an answer is a
    border of tokens.

    Args:
        tokenizer: as `tokenize` has it.
        chats: a ``.jsonl`` file or several, a conversation a line: ``{"messages": [{"role": ..., "content": ...}]}``,
            ``{"conversations": [{"from": ..., "value": ...}]}`` (human and gpt are user and assistant), or ``{"prompt":
            ..., "completion": ...}``, which are texts or lists of messages.
        path: of the ``.npz`` file to write.
        block_size: tokens of a row.
        template: ``"chatml"``, ``"llama3"``, ``"zephyr"``, ``"plain"``, or a `ChatTemplate`.
        learned: the roles whose contents are learned.
        pad: a token as a number, or as a text that the tokenizer knows.

    Raises:
        DataError: for a line that is no conversation, with its number, and where no answer is in any block.
        UsageError: for a template that is not known, and as `tokenize`.

    >>> import onnx_train
    >>> class Bytes:
    ...     def encode(self, text):
    ...         return list(text.encode())
    >>> with open("chats.jsonl", "w") as file:
    ...     file.write('{"prompt": "2+2?", "completion": "4"}\\n') > 0
    True
    >>> onnx_train.tokenize_chats(Bytes(), "chats.jsonl", "chats.npz", block_size=64, template="plain")
    ChatFile(samples=1, tokens=23, answer_tokens=2, shortened=0, left_out=0)
    """
    import numpy as np

    check_suffix(path, ".npz")
    if block_size < 1:
        raise UsageError(f"block_size is a number of tokens from 1, not {block_size}")
    if isinstance(template, str):
        if template not in TEMPLATES:
            raise UsageError(f"no template '{template}': {', '.join(TEMPLATES)}, or a ChatTemplate")
        template = TEMPLATES[template]
    roles = {learned} if isinstance(learned, str) else set(learned)
    known = Tokenizer(tokenizer)
    padding = known.number_of(pad) if isinstance(pad, str) else pad
    rows, labels = [], []
    shortened = left_out = 0
    for file in [chats] if isinstance(chats, (str, os.PathLike)) else chats:
        for messages in _conversations(Path(file)):
            tokens, is_learned = _encoded(messages, template, roles, known)
            shortened += len(tokens) > block_size + 1
            targets = [token if learn else IGNORED for token, learn in zip(tokens, is_learned)][1 : block_size + 1]
            if all(target == IGNORED for target in targets):
                left_out += 1
                continue
            rows.append(tokens[:-1][:block_size])
            labels.append(targets)
    if not rows:
        raise DataError(f"no answer ({', '.join(sorted(roles))}) is within a block of {block_size} tokens")
    shape = len(rows), block_size
    arrays = {"input_ids": np.full(shape, padding, np.int64), "labels": np.full(shape, IGNORED, np.int64),
              "attention_mask": np.zeros(shape, np.int64)}  # fmt: skip
    for i, (row, targets) in enumerate(zip(rows, labels)):
        arrays["input_ids"][i, : len(row)] = row
        arrays["labels"][i, : len(row)] = targets
        arrays["attention_mask"][i, : len(row)] = 1
    partial = Path(f"{os.fspath(path)}.partial")
    with open(partial, "wb") as out:
        np.savez(out, **arrays)
    partial.replace(path)
    answer_tokens = int((arrays["labels"] != IGNORED).sum())
    return ChatFile(len(rows), sum(map(len, rows)), answer_tokens, shortened, left_out)


def _encoded(messages: Sequence[tuple[str, str]], template: ChatTemplate, roles: set[str], tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """The tokens of a conversation, and whether each is learned."""
    tokens: list[int] = []
    is_learned: list[bool] = []

    def add(text: str, learn: bool) -> None:
        ids = list(tokenizer.encode(text)) if text else []
        tokens.extend(ids)
        is_learned.extend([learn] * len(ids))

    add(template.start, False)
    for role, content in messages:
        add(template.head.replace("{role}", role), False)
        add(content + template.end, role in roles)
        add(template.separator, False)
    return tokens, is_learned


def _conversations(path: Path) -> Iterator[list[tuple[str, str]]]:
    """(role, content) of the messages of each line."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = list(enumerate(file, 1))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    for number, line in lines:
        if not line.strip():
            continue
        try:
            messages = _messages(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number} is no JSON: {error}") from None
        if not messages:
            raise DataError(
                f'{path}, line {number} is no conversation: {{"messages": [{{"role": "user", "content": "..."}}, '
                '{"role": "assistant", "content": "..."}]} is one'
            )
        yield messages


def _messages(line: Any) -> list[tuple[str, str]]:
    """The messages of a line; none of what has another form."""
    if not isinstance(line, dict):
        return []
    if "prompt" in line and "completion" in line:
        prompt, answer = _turn(line["prompt"], "user"), _turn(line["completion"], "assistant")
        return prompt + answer if prompt and answer else []
    return _turn(line.get("messages", line.get("conversations")), "user")


def _turn(turn: Any, role: str) -> list[tuple[str, str]]:
    if isinstance(turn, str):
        return [(role, turn)]
    if not isinstance(turn, list):
        return []
    names = {"human": "user", "gpt": "assistant"}
    messages = []
    for message in turn:
        if not isinstance(message, dict):
            return []
        who, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if not isinstance(who, str) or not isinstance(content, str):
            return []
        messages.append((names.get(who, who), content))
    return messages
