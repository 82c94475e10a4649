"""Sound in pieces: voice activity as Silero's networks find it, a Conformer, a state-space model as a loop of a script."""

import torch
from export import quiet, strip_stack_traces
from torch import nn
from torch.nn import functional as F
from zoo.entry import Example, Family, choices, classifier, ctc_example, draw, randomized

FAMILY = Family("Voice, scripts")


class Rate(nn.Module):
    """The network of one sample rate: a spectrum of learned filters, convolutions, an LSTM whose state goes in and out."""

    def __init__(self, size, width=8):
        super().__init__()
        self.spectrum = nn.Conv1d(1, 2 * width, size, size // 2, bias=False)
        self.encoder = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, width, 3, 2, 1), nn.ReLU())
        self.lstm, self.decoder = nn.LSTMCell(width, width), nn.Conv1d(width, 1, 1)

    def forward(self, x, state):
        real, imaginary = self.spectrum(x.unsqueeze(1)).chunk(2, 1)
        y = self.encoder(torch.sqrt(real * real + imaginary * imaginary + 1e-4)).mean(2, keepdim=True)
        h, c = self.lstm(y.squeeze(-1), (state[0], state[1]))
        return torch.sigmoid(self.decoder(F.relu(h).unsqueeze(-1))).squeeze(2).mean(1), torch.stack([h, c])


class Silero(nn.Module):
    """An If over the sample rate, around one network for each."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = Rate(16), Rate(8)

    def forward(self, x, state, sr):
        if bool(sr == 16000):
            result = self.wide(x, state)
        else:
            result = self.narrow(x, state)
        return result


class Choice(nn.Module):
    """The same If as torch.cond, whose branches give no view of an input."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, state, sr):
        return torch.cond(sr == 16000, self.model.wide, self.model.narrow, (x, state))


class At(nn.Module):
    """Silero's model at one sample rate, as `--set sr=16000` makes it."""

    def __init__(self, model, rate):
        super().__init__()
        self.model, self.rate = model, torch.tensor(rate)

    def forward(self, x, state):
        return self.model(x, state, self.rate)


def silero():
    generator = draw()
    module = At(Silero(), 16000)
    randomized(module)
    inputs = {"x": torch.randn(5, 96, generator=generator), "state": torch.randn(2, 5, 8, generator=generator)}
    targets = {"labels": torch.randint(0, 2, (5,), generator=generator).float()}
    return Example(module, inputs, targets, "mse(speech, labels)", lambda speech, state, labels: F.mse_loss(speech, labels),
                   ("speech", "next_state"), fixed={"sr": module.rate})  # fmt: skip


def silero_names(example):
    return dict(input_names=[*example.inputs, "sr"], output_names=list(example.outputs))


def scripted_silero(example, path):
    arguments = (*example.inputs.values(), example.module.rate)
    axes = {"x": {0: "batch"}, "state": {1: "batch"}, "speech": {0: "batch"}, "next_state": {1: "batch"}}
    with quiet():
        torch.onnx.export(torch.jit.script(example.module.model), arguments, str(path), dynamo=False, opset_version=17,
                          dynamic_axes=axes, **silero_names(example))  # fmt: skip


def torch_cond(example, path):
    arguments, batch = (*example.inputs.values(), example.module.rate), torch.export.Dim("batch")
    with quiet():
        torch.onnx.export(Choice(example.module.model), arguments, str(path), dynamo=True, external_data=False, verbose=False,
                          dynamic_shapes=({0: batch}, {1: batch}, {}), **silero_names(example))  # fmt: skip
    strip_stack_traces(path)


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, a gated convolution, half a feed-forward. https://arxiv.org/abs/2005.08100"""

    def __init__(self, width, heads=2, kernel=5):
        super().__init__()
        self.heads = heads
        self.before, self.after = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.attention_norm, self.qkv, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.positions = nn.Parameter(0.1 * torch.randn(heads, 2 * 16 - 1))  # a bias for each distance
        self.convolution_norm, self.expand = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.batch_norm, self.point, self.norm = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1), nn.LayerNorm(width)

    def forward(self, x):
        x = x + 0.5 * self.before(x)
        batch, time, width = x.shape
        q, k, v = (p.view(batch, time, self.heads, -1).transpose(1, 2) for p in self.qkv(self.attention_norm(x)).chunk(3, -1))
        steps = torch.arange(time)
        bias = self.positions[:, steps[None, :] - steps[:, None] + 15]
        weights = torch.softmax(q @ k.transpose(2, 3) * (width // self.heads) ** -0.5 + bias, -1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(batch, time, width))
        y = self.depth(F.glu(self.expand(self.convolution_norm(x).transpose(1, 2)), 1))
        x = x + self.point(F.silu(self.batch_norm(y))).transpose(1, 2)
        return self.norm(x + 0.5 * self.after(x))


class Conformer(nn.Module):
    """Subsampling by convolutions, two blocks, a letter for each frame."""

    def __init__(self, mels=8, width=12, letters=7):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU())
        self.project = nn.Linear(4 * mels // 4, width)
        self.blocks, self.head = nn.Sequential(ConformerBlock(width), ConformerBlock(width)), nn.Linear(width, letters)

    def forward(self, x):
        y = self.subsample(x.unsqueeze(1)).transpose(1, 2).flatten(2)
        return self.head(self.blocks(self.project(y)))


def conformer():
    generator = draw()
    module = Conformer()
    randomized(module)
    return ctc_example(module, (3, 48, 8), 7, [12, 10, 12], generator)


@torch.jit.script
def selective_scan(x, rate, into, out_of, a):
    """h_t = exp(rate_t a) h_(t-1) + rate_t into_t x_t,  y_t = out_of_t · h_t"""
    h = torch.zeros_like(x[:, 0].unsqueeze(-1) * a)
    ys = []
    for t in range(x.size(1)):
        r = rate[:, t].unsqueeze(-1)
        h = torch.exp(r * a) * h + r * into[:, t].unsqueeze(1) * x[:, t].unsqueeze(-1)
        ys.append((h * out_of[:, t].unsqueeze(1)).sum(-1))
    return torch.stack(ys, 1)


class StateSpace(nn.Module):
    """Mamba's selective scan as a loop, which the older exporter keeps and the other one unrolls.
    https://arxiv.org/abs/2312.00752"""

    def __init__(self, width=6, states=4, vocabulary=20):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.select, self.rate = nn.Linear(width, 2 * states), nn.Linear(width, width)
        self.decay, self.skip = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(width, 1)), nn.Parameter(torch.ones(width))

    def forward(self, text):
        x = self.embedding(text)
        into, out_of = self.select(x).chunk(2, -1)
        y = selective_scan(x, F.softplus(self.rate(x)), into, out_of, -torch.exp(self.decay))
        return self.head(y + self.skip * x)


def state_space():
    generator = draw()
    text = choices(generator, 20, 3, 9)
    return classifier(StateSpace(), {"text": text[:, :-1].contiguous()}, text[:, 1:].contiguous())


RATE = ("--set", "sr=16000")
FAMILY.add("Voice activity (Silero)", silero, exporters=(scripted_silero, torch_cond), build=RATE, rate=2.0**-7, notes="--set sr=16000")
FAMILY.add("Conformer, CTC", conformer)
FAMILY.add("Selective scan, a loop", state_space, rate=2.0**-7)
