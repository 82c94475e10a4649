"""Text in pictures: where it is, and what it says. Heights and widths are open."""

import torch
from torch import nn
from torch.nn import functional as F
from zoo.convolutions import SGD, convolution
from zoo.entry import Example, Family, ctc_example, draw, pictures, randomized

FAMILY = Family("Text in pictures")


class Binarizer(nn.Module):
    """DBNet: a pyramid of features, a map of probabilities, one of thresholds, and the step between them as a steep
    sigmoid. https://arxiv.org/abs/1911.08947"""

    def __init__(self, width=8):
        super().__init__()
        self.stages = nn.ModuleList([convolution(3, 8, 3, 2), convolution(8, 12, 3, 2), convolution(12, 16, 3, 2)])
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1, bias=False) for c in (8, 12, 16))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width // 2, 3, padding=1, bias=False) for _ in range(3))
        self.probability, self.threshold = (self.head(3 * width // 2) for _ in range(2))

    @staticmethod
    def head(channels):
        return nn.Sequential(convolution(channels, 4), nn.ConvTranspose2d(4, 4, 2, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 1))

    def forward(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        levels = [lateral(m) for lateral, m in zip(self.lateral, maps)]
        for i in (1, 0):
            levels[i] = levels[i] + F.interpolate(levels[i + 1], size=levels[i].shape[-2:], mode="nearest")
        finest = levels[0].shape[-2:]
        fused = torch.cat([F.interpolate(s(l), size=finest, mode="nearest") for s, l in zip(self.smooth, levels)], 1)
        p, t = torch.sigmoid(self.probability(fused)), torch.sigmoid(self.threshold(fused))
        return p, t, torch.reciprocal(1 + torch.exp(-10 * (p - t)))


class Reader(nn.Module):
    """CRNN: convolutions until one row is left, an LSTM in both directions along it, a letter for each column.
    https://arxiv.org/abs/1507.05717"""

    def __init__(self, letters=9, width=8):
        super().__init__()
        self.layers = nn.Sequential(
            convolution(1, 8), nn.MaxPool2d(2), convolution(8, 12), nn.MaxPool2d(2), convolution(12, 12), nn.MaxPool2d((2, 1)),
        )  # fmt: skip
        self.lstm, self.head = nn.LSTM(12, width, batch_first=True, bidirectional=True), nn.Linear(2 * width, letters)

    def forward(self, x):
        y = self.layers(x).mean(2)  # [batch, channels, columns], however high the picture is
        return self.head(self.lstm(y.transpose(1, 2))[0])


def detector():
    generator = draw()
    module = Binarizer()
    randomized(module)
    text = (torch.rand(2, 1, 24, 32, generator=generator) < 0.3).float()
    targets = {"text": text, "borders": torch.rand(2, 1, 24, 32, generator=generator)}

    def criterion(p, t, binary, text, borders):
        return F.mse_loss(p, text) + F.l1_loss(t, borders) + F.mse_loss(binary, text)

    loss = "mse(probability, text) + l1(threshold, borders) + mse(binary, text)"
    return Example(module, {"x": pictures(generator, 2, 3, 32)[:, :, :24].contiguous()}, targets, loss, criterion, ("probability", "threshold", "binary"))


def reader():
    generator = draw()
    module = Reader()
    randomized(module)
    return ctc_example(module, (3, 1, 16, 40), 9, [10, 8, 10], generator)


OPEN = {0: "batch", 2: "height", 3: "width"}
FAMILY.add("DBNet", detector, **SGD)
FAMILY.add("DBNet, any size", detector, dynamic=OPEN, **SGD)
FAMILY.add("CRNN, CTC", reader, rate=2.0**-7)
FAMILY.add("CRNN, CTC, any width", reader, dynamic={0: "batch", 3: "width"}, rate=2.0**-7, build=("--dim", "width=40"),
           notes="--dim width=40: the loss needs the number of its steps")  # fmt: skip
