"""Networks whose loops stay loops in the exported model (`Loop`), by torch.jit.script and the older exporter."""

import torch
from torch import nn

from networks import finish


class Cell(nn.Module):
    """An LSTM over all positions of x, [positions, batch, width], written as a loop."""

    def __init__(self, width):
        super().__init__()
        self.input = nn.Linear(width, 4 * width)
        self.hidden = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x):
        state = torch.zeros_like(x[0])
        memory = torch.zeros_like(x[0])
        states = []
        projected = self.input(x)
        for step in range(x.size(0)):
            i, f, g, o = (projected[step] + self.hidden(state)).chunk(4, 1)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(memory)
            states.append(state)
        return torch.stack(states)


class LoopLanguageModel(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = Cell(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids):
        return self.head(self.cell(self.embedding(input_ids).transpose(0, 1)).transpose(0, 1))


def loop_lstm(batch=3, width=8, tokens=6, vocabulary=20, seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, vocabulary, (batch, tokens + 1), generator=generator)
    inputs = {"input_ids": text[:, :-1].contiguous()}
    return finish(LoopLanguageModel(vocabulary, width), inputs, text[:, 1:].contiguous(), seed, optimize=False)
