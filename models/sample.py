"""Writes text with a trained character model: draws each next character from what `onnx-train predict` answers.

    python models/sample.py run/gpt.onnx --prompt "LOVE, n.  " --characters 400

Needs Python alone. Several texts are drawn side by side: one call of the command gives the next character of each.
"""

import argparse
import math
import random
import shutil
import subprocess
import tempfile
from array import array
from pathlib import Path

from npz import read_npz, write_npz

# The one that the shell finds, else the one that was built here.
COMMAND = shutil.which("onnx-train") or Path(__file__).parents[1] / "build" / "onnx-train"


class Model:
    """Calls the command for the logits behind the last token of each text."""

    def __init__(self, path, context, folder):
        self.path, self.context = path, context
        self.inputs, self.outputs = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"

    def next_logits(self, texts):
        tokens = array("q")
        for text in texts:
            window = text[-self.context :]
            tokens.extend(window + [0] * (self.context - len(window)))  # causal: what comes behind has no influence
        write_npz(self.inputs, {"tokens": ((len(texts), self.context), tokens)})
        subprocess.run([COMMAND, "predict", self.path, "--data", self.inputs, "-o", self.outputs], check=True,
                       stdout=subprocess.DEVNULL)
        (_, _, vocabulary), logits = read_npz(self.outputs)["logits"]
        for i, text in enumerate(texts):
            last = min(len(text), self.context) - 1
            start = (i * self.context + last) * vocabulary
            yield logits[start : start + vocabulary]


def draw(logits, temperature, rng):
    highest = max(logits)
    weights = [math.exp((value - highest) / temperature) for value in logits]
    return rng.choices(range(len(weights)), weights)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="inference model with input `tokens` and output `logits`")
    parser.add_argument("--prompt", default="\n", help="ASCII text to go on from")
    parser.add_argument("--characters", type=int, default=300)
    parser.add_argument("--texts", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--context", type=int, default=128, help="tokens that the model reads at a time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    texts = [list(arguments.prompt.encode("ascii")) for _ in range(arguments.texts)]
    with tempfile.TemporaryDirectory() as folder:
        model = Model(arguments.model, arguments.context, folder)
        for _ in range(arguments.characters):
            for text, logits in zip(texts, model.next_logits(texts)):
                text.append(draw(logits, arguments.temperature, rng))
    for text in texts:
        print(bytes(text).decode("ascii"), end="\n\n")


if __name__ == "__main__":
    main()
