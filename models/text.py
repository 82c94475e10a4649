"""Cuts a text into what models/gpt.onnx trains on: an .npz with `tokens` and `labels`, int64 [n, context].

A token is a character's ASCII code; a label is the token that follows. Needs Python alone.

    python models/text.py models/data/devils_dictionary.txt --train train.npz --eval eval.npz
"""

import argparse
from array import array
from pathlib import Path

from npz import write_npz


def windows(codes, context):
    """Successive windows of `context` tokens; the last token of one is the last label of the one before."""
    starts = range(0, len(codes) - context, context)
    tokens, labels = array("q"), array("q")
    for start in starts:
        tokens.extend(codes[start : start + context])
        labels.extend(codes[start + 1 : start + 1 + context])
    shape = len(starts), context
    return {"tokens": (shape, tokens), "labels": (shape, labels)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--train", required=True, help="file to write: the text but for its end")
    parser.add_argument("--eval", required=True, help="file to write: the end of the text")
    parser.add_argument("--held-out", type=float, default=0.1, help="fraction of the text that is its end")
    parser.add_argument("--context", type=int, default=128)
    arguments = parser.parse_args()
    codes = arguments.text.read_bytes()
    if not codes.isascii():
        parser.error(f"{arguments.text} holds bytes beyond ASCII")
    split = round(len(codes) * (1 - arguments.held_out))
    write_npz(arguments.train, windows(codes[:split], arguments.context))
    write_npz(arguments.eval, windows(codes[split:], arguments.context))


if __name__ == "__main__":
    main()
