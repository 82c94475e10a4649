"""A small GPT over ASCII characters, and its export: models/gpt.onnx."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from export import export


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x):
        n, t, c = x.shape
        q, k, v = (y.view(n, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(y.transpose(1, 2).reshape(n, t, c))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    """Logits [batch, tokens, vocabulary] of the next token at each place of `tokens` [batch, tokens]."""

    def __init__(self, vocabulary=128, context=128, width=128, heads=4, blocks=4):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self.draw)

    @staticmethod
    def draw(module):
        """As GPT-2 does, but no two tensors equal: exporters store equal tensors as one."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean=1.0, std=0.001)
        if getattr(module, "bias", None) is not None:
            nn.init.normal_(module.bias, std=0.001)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


if __name__ == "__main__":
    torch.manual_seed(0)
    tokens = torch.randint(0, 128, (4, 128))
    export(Gpt(), {"tokens": tokens}, Path(__file__).with_suffix(".onnx"), optimize=True)
