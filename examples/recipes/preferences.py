"""What docs/recipes/preferences.md starts from: gpt.onnx, a small language model, pairs.onnx, the same model as it is
compared with itself, and preferences.npz: two answers to each question, of which the first is preferred."""

import numpy as np
import same
import torch
from gpt import Gpt

TOKENS, PROMPT, ANSWER = 16, 6, 10


class Pairs(Gpt):
    """The log-probabilities of two answers, of all tokens whose label is not -100. Its weights have the names of Gpt's."""

    def log_probability(self, tokens, labels):
        logits = super().forward(tokens)
        p = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
        return (p * (labels >= 0)).sum(1)

    def forward(self, chosen_tokens, chosen_labels, rejected_tokens, rejected_labels):
        return (self.log_probability(chosen_tokens, chosen_labels),
                self.log_probability(rejected_tokens, rejected_labels))  # fmt: skip


INPUTS = ("chosen_tokens", "chosen_labels", "rejected_tokens", "rejected_labels")


def network():
    return Pairs(vocabulary=32, context=TOKENS, width=16, heads=1, blocks=1)


def make():
    torch.manual_seed(0)
    module = network()
    plain = Gpt(vocabulary=32, context=TOKENS, width=16, heads=1, blocks=1)
    plain.load_state_dict(module.state_dict())
    same.export(plain, {"tokens": torch.randint(0, 32, (2, TOKENS))}, "gpt.onnx")
    generator = np.random.default_rng(0)
    prompts = generator.integers(0, 32, (160, PROMPT))
    answers = {"chosen": generator.integers(0, 20, (160, ANSWER + 1)),  # low tokens are preferred
               "rejected": generator.integers(12, 32, (160, ANSWER + 1))}  # fmt: skip
    arrays = {}
    for kind, answer in answers.items():
        text = np.concatenate([prompts, answer], 1)
        labels = text[:, 1:].copy()
        labels[:, : PROMPT - 1] = -100  # the question does not count
        arrays |= {f"{kind}_tokens": text[:, :-1], f"{kind}_labels": labels}
    np.savez("preferences.npz", **arrays)
    inputs = {name: torch.from_numpy(arrays[name][:2]) for name in INPUTS}
    same.export(module, inputs, "pairs.onnx", outputs=("chosen", "rejected"))
