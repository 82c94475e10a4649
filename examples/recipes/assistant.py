"""What docs/recipes/assistant.md starts from: model/, a folder as people download it, with a small GPT, its tokenizer and a
chat template, and chats.jsonl, conversations about digits."""

import json
from pathlib import Path

import bert_lora
import numpy as np
import same
import tokenizers
import torch
from chat import DIGITS
from gpt import Gpt
from tokenizers import decoders, models, pre_tokenizers, trainers

CONTEXT = 96
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(texts):
    """A BPE of bytes, as GPT-2 has, of 300 tokens."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    return made


def network():
    """With weights that are as large as those of a trained network."""
    torch.manual_seed(0)
    module = Gpt(vocabulary=300, context=CONTEXT, width=64, heads=4, blocks=2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(5.0 if parameter.dim() == 2 else 1.0)
    return module


def with_lora(module):
    """`--lora rank=8,alpha=16`: adapters beside all linear layers but the last."""
    module.requires_grad_(False)
    for name, layer in list(module.named_modules()):
        if isinstance(layer, torch.nn.Linear) and name != "head":
            lora = bert_lora.Lora(layer, rank=8, alpha=16)
            for own in lora.weight, lora.bias:
                own.requires_grad_(False)
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, lora)
    return module


def make():
    generator = np.random.default_rng(0)
    with open("chats.jsonl", "w") as file:
        for turns in generator.integers(1, 4, 160):
            asked = generator.integers(0, 10, turns)
            messages = [{"role": role, "content": text} for n in asked for role, text in (("user", str(n)), ("assistant", DIGITS[n]))]
            file.write(json.dumps({"messages": messages}) + "\n")
    folder = Path("model")
    folder.mkdir()
    tokenizer(["user", "assistant", *map(str, range(10)), *DIGITS]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": CONTEXT}))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=CONTEXT)}
    same.export(network(), {"input_ids": torch.randint(0, 300, (4, 16))}, folder / "model.onnx", optimize=True, sizes=sizes)
