"""What docs/recipes/bert_lora.md starts from: bert.onnx, a small BERT that classifies sequences in two classes, and
reviews.npz, sequences of 12 tokens of three classes: which of the tokens 1, 2, 3 they hold."""

import math

import numpy as np
import same
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

TOKENS, VOCABULARY = 12, 40


class Bert(nn.Module):
    """A model of transformers as a plain function of its tensors."""

    def __init__(self, classes):
        super().__init__()
        config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=TOKENS, num_labels=classes, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, attn_implementation="eager",
        )  # fmt: skip
        self.model = BertForSequenceClassification(config)

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids, attention_mask).logits


class Lora(nn.Linear):
    """What PEFT makes of a linear layer: W x + b + alpha / rank B A x, where A and B alone are trained."""

    def __init__(self, layer, rank, alpha):
        super().__init__(layer.in_features, layer.out_features)
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        self.scaling = alpha / rank

    def forward(self, x):
        return super().forward(x) + self.scaling * self.lora_B(self.lora_A(x))


def with_lora(module, rank, alpha, targets):
    """`module` with adapters beside the layers whose last name is one of `targets`; all but these and the classifier
    is frozen, as with PEFT's `modules_to_save=["classifier"]`."""
    for name, layer in list(module.named_modules()):
        parent, _, last = name.rpartition(".")
        if last in targets:
            setattr(module.get_submodule(parent), last, Lora(layer, rank, alpha))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("lora_" in name or "classifier" in name)
    return module


def make():
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    lengths = generator.integers(TOKENS // 2, TOKENS + 1, 240)
    mask = (np.arange(TOKENS) < lengths[:, None]).astype(np.int64)
    words = generator.integers(4, VOCABULARY, (240, TOKENS))
    labels = generator.integers(0, 3, 240)
    words[np.arange(240), generator.integers(0, TOKENS // 2, 240)] = labels + 1
    np.savez("reviews.npz", input_ids=words * mask, attention_mask=mask, labels=labels)
    inputs = {"input_ids": torch.from_numpy((words * mask)[:4]), "attention_mask": torch.from_numpy(mask[:4])}
    module = Bert(classes=2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)  # a trained network's weights are larger
            parameter.add_(1e-3 * torch.randn(parameter.shape) / math.sqrt(32))  # no two tensors are equal
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=TOKENS)}
    same.export(module, inputs, "bert.onnx", optimize=True, sizes=sizes)
