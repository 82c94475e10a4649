"""Physics, graphs, recommendations, sequences: networks of other kinds than images and text."""

import networks
import torch
from torch import nn
from torch.nn import functional as F
from zoo.convolutions import SGD
from zoo.entry import Example, Family, choices, classifier, draw, randomized, regressor

FIXED = "--fix-shapes: the older exporter declares a wrong one"
FAMILY = Family("Physics, graphs, recommendations, recurrence")


class Field(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, t, x):
        return self.layers(torch.cat([t, x], 1))


class Burgers(nn.Module):
    """The residual u_t + u u_x - v u_xx of Burgers' equation. https://arxiv.org/abs/1711.10561"""

    def __init__(self):
        super().__init__()
        self.field = Field()
        self.viscosity = nn.Parameter(torch.tensor([0.25]))


class BackwardBurgers(Burgers):
    """Derivatives by backward passes within the forward pass."""

    def forward(self, t, x):
        with torch.enable_grad():
            t, x = t.detach().requires_grad_(), x.detach().requires_grad_()
            u = self.field(t, x)
            u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
            [u_xx] = torch.autograd.grad(u_x.sum(), x, create_graph=True)
            return u_t + u * u_x - self.viscosity * u_xx


class ForwardBurgers(Burgers):
    """Derivatives by directional derivatives, nested."""

    def forward(self, t, x):
        one, zero = torch.ones_like(x), torch.zeros_like(x)

        def along(direction):
            return lambda a, b: torch.func.jvp(self.field, (a, b), direction)[1]

        u, u_t = torch.func.jvp(self.field, (t, x), (one, zero))
        u_x, u_xx = torch.func.jvp(along((zero, one)), (t, x), (zero, one))
        return u_t + u * u_x - self.viscosity * u_xx


class TaylorBurgers(Burgers):
    """Derivatives written down: of each layer the value, both first derivatives, the second along x."""

    def forward(self, t, x):
        u = torch.cat([t, x], 1)
        one, zero = torch.ones_like(x), torch.zeros_like(x)
        u_t, u_x, u_xx = torch.cat([one, zero], 1), torch.cat([zero, one], 1), torch.zeros_like(u)
        for layer in self.field.layers:
            if isinstance(layer, nn.Linear):
                u = layer(u)
                u_t, u_x, u_xx = (F.linear(d, layer.weight) for d in (u_t, u_x, u_xx))
            else:
                u = torch.tanh(u)
                slope = 1 - u**2
                u_t, u_x, u_xx = slope * u_t, slope * u_x, slope * u_xx - 2 * u * slope * u_x**2
        return u_t + u * u_x - self.viscosity * u_xx


def burgers(build):
    def make():
        generator = draw()
        inputs = {name: torch.rand(8, 1, generator=generator) for name in ("t", "x")}
        return regressor(build(), inputs, torch.zeros(8, 1), output="residual")

    return make


class GraphConvolution(nn.Module):
    """Two layers over edges: messages are gathered and added up. https://arxiv.org/abs/1609.02907"""

    def __init__(self, how, features=6, width=8, classes=3):
        super().__init__()
        self.how, self.one, self.two = how, nn.Linear(features, width), nn.Linear(width, classes)

    def spread(self, x, sources, targets):
        nodes = x.shape[0]
        degree = torch.zeros(nodes, dtype=x.dtype).scatter_add(0, targets, torch.ones_like(targets, dtype=x.dtype)) + 1
        messages = x[sources] / degree[targets][:, None].sqrt() / degree[sources][:, None].sqrt()
        if self.how == "index_add":
            total = torch.zeros_like(x).index_add(0, targets, messages)
        elif self.how == "scatter_add":
            total = torch.zeros_like(x).scatter_add(0, targets[:, None].expand_as(messages), messages)
        else:
            total = torch.zeros_like(x).scatter_reduce(0, targets[:, None].expand_as(messages), messages, "amax")
        return total + x / degree[:, None]

    def forward(self, x, sources, targets):
        return self.spread(self.two(F.relu(self.spread(self.one(x), sources, targets))), sources, targets)


def graph(how):
    """As many edges as nodes, so that one batch holds the graph."""

    def make():
        generator = draw()
        inputs = {"x": torch.randn(10, 6, generator=generator), "sources": choices(generator, 10, 10), "targets": choices(generator, 10, 10)}
        return classifier(GraphConvolution(how), inputs, choices(generator, 3, 10))

    return make


class BagDlrm(nn.Module):
    """Each feature is a bag of categories."""

    def __init__(self, mode, tables=2, rows=12, width=4):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode=mode) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(5, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense, first, second):
        x = self.bottom(dense)
        t = torch.stack([x, self.bags[0](first), self.bags[1](second)], 1)
        products = torch.bmm(t, t.transpose(1, 2))
        return self.top(torch.cat([x, products[:, 0, 1:], products[:, 1, 2:]], 1))


def bags(mode, batch=6):
    def make():
        generator = draw()
        module = BagDlrm(mode)
        randomized(module)
        inputs = {"dense": torch.randn(batch, 5, generator=generator), "first": choices(generator, 12, batch, 3), "second": choices(generator, 12, batch, 4)}
        labels = torch.randint(0, 2, (batch, 1), generator=generator).float()
        return Example(module, inputs, {"labels": labels}, "bce_with_logits", F.binary_cross_entropy_with_logits)

    return make


def of_networks(name, **sizes):
    def make():
        example = networks.EXAMPLES[name](**sizes)
        if example.loss == "cross_entropy":
            return classifier(example.module, example.inputs, example.labels)
        randomized(example.module)
        return Example(example.module, example.inputs, {"labels": example.labels}, example.loss, F.binary_cross_entropy_with_logits)

    return make


class Translator(nn.Module):
    """An encoder whose last state starts a decoder."""

    def __init__(self, cell, width=8, vocabulary=20):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.encoder, self.decoder = (cell(width, width, batch_first=True) for _ in range(2))

    def forward(self, source, text):
        _, state = self.encoder(self.embedding(source))
        return self.head(self.decoder(self.embedding(text), state)[0])


def translator(cell):
    def make():
        generator = draw()
        text = choices(generator, 20, 3, 6)
        inputs = {"source": choices(generator, 20, 3, 5), "text": text[:, :-1].contiguous()}
        return classifier(Translator(cell), inputs, text[:, 1:].contiguous())

    return make


class Cells(nn.Module):
    """A loop of Python over cells, which exporters unroll."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.one, self.two, self.head = nn.GRUCell(4, width), nn.LSTMCell(width, width), nn.Linear(width, classes)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 8)
        g, c = h, h
        for i in range(x.shape[1]):
            h = self.one(x[:, i], h)
            g, c = self.two(h, (g, c))
        return self.head(g)


def cells():
    generator = draw()
    return classifier(Cells(), {"x": torch.randn(3, 4, 4, generator=generator)}, choices(generator, 3, 3))


class Tabular(nn.Module):
    """A transformer over columns: PyTorch's own encoder layer. https://arxiv.org/abs/2106.11959"""

    def __init__(self, columns=5, width=8):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(columns, width)), nn.Parameter(torch.randn(columns, width))
        self.token = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 3)

    def forward(self, x):
        tokens = x[..., None] * self.weight + self.bias
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
        return self.head(self.encoder(tokens)[:, 0])


def tabular():
    generator = draw()
    return classifier(Tabular(), {"x": torch.randn(6, 5, generator=generator)}, choices(generator, 3, 6))


class Capsules(nn.Module):
    """Routing by agreement, three rounds. https://arxiv.org/abs/1710.09829"""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 5, 2)
        self.weight = nn.Parameter(0.1 * torch.randn(1, 144, 4, 6, 4))

    @staticmethod
    def squash(s):
        square = s.pow(2).sum(-1, keepdim=True)
        return square / (1 + square) * s / (square + 1e-8).sqrt()

    def forward(self, x):
        u = self.squash(self.convolution(x).view(x.shape[0], 4, 4, 36).permute(0, 1, 3, 2).reshape(x.shape[0], 144, 4))
        votes = torch.matmul(self.weight, u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            v = self.squash((torch.softmax(b, 2)[..., None] * votes).sum(1))
            b = b + (votes * v[:, None]).sum(-1)
        return torch.linalg.vector_norm(v, dim=-1)


def capsules():
    generator = draw()
    return classifier(Capsules(), {"x": torch.randn(3, 3, 16, 16, generator=generator)}, choices(generator, 4, 3))


FAMILY.add("PINN, written derivatives", burgers(TaylorBurgers), quick=True, rate=2.0**-7)
FAMILY.add("PINN, backward in forward", burgers(BackwardBurgers), rate=2.0**-7, reasons={
    "torchscript": "traces no backward pass within a forward pass: write the derivatives, as above",
    "dynamo": "traces no backward pass within a forward pass: write the derivatives, as above",
})  # fmt: skip
FAMILY.add("PINN, jvp in forward", burgers(ForwardBurgers), rate=2.0**-7, reasons={
    "torchscript": "knows no torch.func.jvp: the other exporter does",
})  # fmt: skip
FAMILY.add("Graph convolution, index_add", graph("index_add"), dynamic=False, reasons={
    "torchscript": "writes index_add as a ScatterElements that keeps one of equal indices: take scatter_add",
})  # fmt: skip
FAMILY.add("Graph convolution, scatter_add", graph("scatter_add"), dynamic=False)
FAMILY.add("Graph convolution, scatter_reduce", graph("scatter_reduce"), dynamic=False, build=("--fix-shapes",), notes=FIXED)
FAMILY.add("DLRM", of_networks("dlrm"))
for mode in "sum", "mean", "max":
    FAMILY.add(f"DLRM, EmbeddingBag {mode}", bags(mode), dynamic=False)
FAMILY.add("DLRM, EmbeddingBag max, 300 bags", bags("max", 300), dynamic=False)
FAMILY.add("LSTM", of_networks("lstm"), quick=True, rate=2.0**-7)
FAMILY.add("LSTM, both directions", of_networks("lstm", bidirectional=True), rate=2.0**-7)
FAMILY.add("GRU", of_networks("gru"), rate=2.0**-7)
FAMILY.add("GRU, encoder and decoder", translator(nn.GRU))
FAMILY.add("LSTM, encoder and decoder", translator(nn.LSTM))
FAMILY.add("RNN, encoder and decoder", translator(nn.RNN))
FAMILY.add("Cells, unrolled", cells)
FAMILY.add("FT-Transformer", tabular, quick=True)
FAMILY.add("Capsules", capsules, **SGD)
