"""What docs/recipes/chat.md starts from: gpt.onnx, a small GPT over ASCII characters with fresh weights, and
chats.jsonl, conversations about digits."""

import json

import language_model
import numpy as np
import torch

DIGITS = "zero one two three four five six seven eight nine".split()


class Characters:
    """A tokenizer: the characters' own numbers."""

    def encode(self, text):
        return [ord(character) for character in text]


def make():
    torch.manual_seed(0)
    language_model.export(language_model.network(), "gpt.onnx")
    generator = np.random.default_rng(0)
    with open("chats.jsonl", "w") as file:
        for digit in generator.integers(0, 10, 120):
            question, answer = {"role": "user", "content": str(digit)}, {"role": "assistant", "content": DIGITS[digit]}
            file.write(json.dumps({"messages": [question, answer] * generator.integers(1, 3)}) + "\n")
