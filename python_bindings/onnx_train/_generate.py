"""Texts that a language model writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._errors import UsageError, warn
from ._options import options_of
from ._session import Session
from ._tokenize import Tokenizer


def generate(
    model: Any,
    prompts: Any,
    *,
    tokenizer: Any = None,
    tokens: int = 100,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    end: int | str | None = None,
    stop: Any = None,
    context: int | None = None,
    seed: int = 0,
    cache: bool = True,
    on_token: Callable[[int, int], bool | None] | None = None,
) -> Any:
    """What a causal language model writes after prompts: the command ``onnx-train sample``.

    The model maps int[batch, tokens] to logits float[batch, tokens, vocabulary]. Inputs named as masks, positions and
    token types are filled. A prompt is read at once, and then each token alone, with a cache of the keys and values of
    earlier ones, which is made of the model's attention. Prompts of one length are side by side, those of others, too,
    if masks and positions are inputs of the model; each gives what it gives alone. Of a model in which tokens are mixed
    in another way, all are read anew for each token; a warning names the node.

    Args:
        model: a `Session`, with the weights that it has at present, or anything that makes one.
        prompts: tokens, or a list of lists of them for several texts; with a tokenizer a text, or a list of texts.
        tokenizer: as `tokenize` has it, with a function ``decode``; prompts and results are texts then.
        tokens: that are written after each prompt, at most.
        temperature: logits are divided by it; 0: always the most likely token.
        top_k, top_p: draw among the k most likely tokens, and of these among the fewest with that probability.
        end: the token that completes a text, as a number, or as a text that the tokenizer knows.
        stop: a text is complete where it has this, and ends with it: with a tokenizer a text, or a list of texts, which may
            begin and end inside a token; else a list of tokens, or of lists of them.
        context: how many tokens are read; by default what the model's input or its table of positions has, else
            1024; of a longer text the last ones.
        seed: text i draws from a stream of its own, of (seed, i).
        cache: False reads all tokens anew for each one.
        on_token: called with the number of a text and each token that is drawn; False ends all.

    Returns:
        What was written, without the prompt: a list of tokens or a text, or a list of these if `prompts` is one.

    Raises:
        UnsupportedError: for a model of another form, or whose logits depend on what comes after them.

    >>> import onnx_train
    >>> onnx_train.generate("next.onnx", [1, 2], tokens=3, temperature=0)  # a model that counts to 4
    [3, 4, 0]
    >>> onnx_train.generate("next.onnx", [[1, 2], [4]], tokens=2, temperature=0, end=3)
    [[3], [0, 1]]
    """
    known = None if tokenizer is None else Tokenizer(tokenizer)
    is_one = isinstance(prompts, str) if known else len(prompts) > 0 and not hasattr(prompts[0], "__len__")
    given = [prompts] if is_one else prompts
    texts = [list(known.encode(text)) if known else [int(token) for token in text] for text in given]
    if isinstance(end, str):
        if known is None:
            raise UsageError("end is the number of a token, or a text that the tokenizer knows, of which there is none")
        end = known.number_of(end)
    words = _words(stop, known)
    options = options_of(
        tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, end=end, stop=_stops(stop, known), context=context,
        seed=seed, no_cache=cache,
    )  # fmt: skip
    session = model if isinstance(model, Session) else Session(model)
    drawn: list[list[int]] = [[] for _ in texts]

    def told(text: int, token: int) -> int:
        if on_token is not None and on_token(text, token) is False:
            return _STOP
        drawn[text].append(token)
        if known is not None and words and _until(known.decode(drawn[text]), words) is not None:
            return _END_TEXT
        return _CONTINUE

    written: list[Any] = session._core.generate(texts, options, told)
    if note := session._core.generate_note():
        warn(note)
    if known is not None:
        decoded = [known.decode(text) for text in written]
        written = [text if (end_of := _until(text, words)) is None else text[:end_of] for text in decoded]
    return written[0] if is_one else written


_CONTINUE, _STOP, _END_TEXT = 0, 1, 4  # onnx_train_next


def _words(stop: Any, known: Tokenizer | None) -> list[str]:
    """Those of `stop` that are texts."""
    if stop is None or known is None:
        return []
    return [text for text in ([stop] if isinstance(stop, str) else stop) if isinstance(text, str) and text]


def _until(text: str, words: list[str]) -> int | None:
    """Where the word that is complete first ends; None without one."""
    ends = [at + len(word) for word in words if (at := text.find(word)) >= 0]
    return min(ends) if ends else None


def _stops(stop: Any, known: Tokenizer | None) -> list[str]:
    """As the option has them: the tokens of each."""
    if stop is None or len(stop) == 0:
        return []
    is_one = isinstance(stop, str) or not (isinstance(stop[0], str) or hasattr(stop[0], "__len__"))
    texts = [stop] if is_one else stop
    if known is None and any(isinstance(text, str) for text in texts):
        raise UsageError("stop is tokens, or texts for a tokenizer, of which there is none")
    lists = [known.encode(text) if known and isinstance(text, str) else text for text in texts]
    return [",".join(str(int(token)) for token in tokens) for tokens in lists]
