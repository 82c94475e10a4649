"""Convolutional classifiers of images, with batch norm in training mode."""

import torch
from torch import nn
from torch.nn import functional as F
from zoo.entry import Family, choices, classifier, draw, pictures

FAMILY = Family("Convolutional classifiers")


def convolution(inputs, outputs, kernel=3, stride=1, groups=1, activation=nn.ReLU):
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *[activation()] if activation else [])


class Bottleneck(nn.Module):
    """ResNet-50's block. https://arxiv.org/abs/1512.03385"""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.main = nn.Sequential(convolution(inputs, width, 1), convolution(width, width, 3, stride),
                                  convolution(width, 4 * width, 1, activation=None))  # fmt: skip
        self.shortcut = convolution(inputs, 4 * width, 1, stride, activation=None)

    def forward(self, x):
        return F.relu(self.main(x) + self.shortcut(x))


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Bottleneck(8, 4, 1), Bottleneck(16, 8, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


class DenseBlock(nn.Module):
    """Each layer reads all before it. https://arxiv.org/abs/1608.06993"""

    def __init__(self, channels, growth, layers):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(channels + i * growth), nn.ReLU(),
                          nn.Conv2d(channels + i * growth, growth, 3, padding=1, bias=False))
            for i in range(layers)
        )  # fmt: skip

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet():
    return nn.Sequential(
        convolution(3, 8), DenseBlock(8, 4, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2, 2),
        DenseBlock(10, 4, 2), nn.BatchNorm2d(18), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 5),
    )  # fmt: skip


class Squeeze(nn.Module):
    def __init__(self, channels, hidden, gate, activation=nn.ReLU):
        super().__init__()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, hidden, 1), activation(),
                                  nn.Conv2d(hidden, channels, 1), gate())  # fmt: skip

    def forward(self, x):
        return x * self.gate(x)


class Inverted(nn.Module):
    """The block of MobileNet v2 and v3 and of EfficientNet. https://arxiv.org/abs/1905.02244"""

    def __init__(self, inputs, outputs, stride, activation, squeeze=None):
        super().__init__()
        hidden = 3 * inputs
        self.residual = stride == 1 and inputs == outputs
        self.main = nn.Sequential(
            convolution(inputs, hidden, 1, activation=activation),
            convolution(hidden, hidden, 3, stride, hidden, activation),
            *[squeeze(hidden)] if squeeze else [], convolution(hidden, outputs, 1, activation=None),
        )  # fmt: skip

    def forward(self, x):
        return x + self.main(x) if self.residual else self.main(x)


def mobile(activation, squeeze=None):
    return nn.Sequential(
        convolution(3, 8, 3, 2, activation=activation), Inverted(8, 8, 1, activation, squeeze),
        Inverted(8, 12, 2, activation, squeeze), convolution(12, 16, 1, activation=activation),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


class Shuffle(nn.Module):
    """ShuffleNet v2's unit: half of the channels pass, then the halves are interleaved. https://arxiv.org/abs/1807.11164"""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(convolution(half, half, 1), convolution(half, half, 3, 1, half, None), convolution(half, half, 1))

    def forward(self, x):
        kept, changed = x.chunk(2, 1)
        y = torch.cat([kept, self.branch(changed)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet():
    return nn.Sequential(convolution(3, 8, 3, 2), Shuffle(8), Shuffle(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class Inception(nn.Module):
    """Parallel paths of several sizes. https://arxiv.org/abs/1409.4842"""

    def __init__(self, inputs, width):
        super().__init__()
        self.paths = nn.ModuleList([
            convolution(inputs, width, 1), nn.Sequential(convolution(inputs, width, 1), convolution(width, width, 3)),
            nn.Sequential(convolution(inputs, width, 1), convolution(width, width, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(inputs, width, 1)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), convolution(inputs, width, 1)),
        ])  # fmt: skip

    def forward(self, x):
        return torch.cat([path(x) for path in self.paths], 1)


def inception():
    return nn.Sequential(convolution(3, 8, 3, 2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(5), Inception(8, 4),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 5))  # fmt: skip


def vgg():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(),
                         nn.Dropout(0.0), nn.Linear(16, 5))  # fmt: skip


class ConvMixer(nn.Module):
    """https://arxiv.org/abs/2201.09792"""

    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.GELU(), nn.BatchNorm2d(width))
        self.depth = nn.Sequential(nn.Conv2d(width, width, 3, groups=width, padding="same"), nn.GELU(), nn.BatchNorm2d(width))
        self.point = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.point(x + self.depth(x)).mean((-2, -1)))


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(tokens, 8), nn.GELU(), nn.Linear(8, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x):
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Mixer(nn.Module):
    """MLP-Mixer. https://arxiv.org/abs/2105.01601"""

    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(MixerBlock(16, width), MixerBlock(16, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x).flatten(2).transpose(1, 2))).mean(1))


def conv3d():
    return nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, (1, 3, 3)),
                         nn.InstanceNorm3d(8, affine=True), nn.ReLU(), nn.AvgPool3d((2, 1, 1)), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
                         nn.Linear(8, 5))  # fmt: skip


def image_classifier(build, size=16, batch=4):
    def make():
        generator = draw()
        module = build()
        return classifier(module, {"x": pictures(generator, batch, 3, size)}, choices(generator, 5, batch))

    return make


def video():
    generator = draw()
    module = conv3d()
    return classifier(module, {"x": torch.randn(3, 2, 4, 8, 8, generator=generator)}, choices(generator, 5, 3))


SGD = {"optimizer": "sgd", "rate": 2.0**-6}
FAMILY.add("ResNet (bottlenecks)", image_classifier(resnet, 24), quick=True, **SGD)
for opset in 9, 11, 13:
    FAMILY.add(f"ResNet, opset {opset}", image_classifier(resnet, 24), exporters=("torchscript",), opset=opset, **SGD)
FAMILY.add("DenseNet", image_classifier(densenet), **SGD)
FAMILY.add("MobileNet v2", image_classifier(lambda: mobile(nn.ReLU6)), **SGD)
FAMILY.add("MobileNet v3", image_classifier(lambda: mobile(nn.Hardswish, lambda c: Squeeze(c, c // 4, nn.Hardsigmoid))), quick=True, **SGD)
FAMILY.add("EfficientNet", image_classifier(lambda: mobile(nn.SiLU, lambda c: Squeeze(c, c // 4, nn.Sigmoid, nn.SiLU))), **SGD)
FAMILY.add("ShuffleNet v2", image_classifier(shufflenet), **SGD)
FAMILY.add("Inception", image_classifier(inception, 17), **SGD)
FAMILY.add("VGG", image_classifier(vgg), **SGD)
FAMILY.add("ConvMixer", image_classifier(lambda: ConvMixer(8)), **SGD)
FAMILY.add("MLP-Mixer", image_classifier(Mixer), quick=True)
FAMILY.add("Conv3d", video, **SGD)
