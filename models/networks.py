"""Networks for tests and benchmarks: each function gives a PyTorch module with random weights, inputs and labels.

Sizes are arguments, so a test asks for tiny ones and a benchmark for real ones. Two things make a comparison in
float64 mean something: epsilons and momenta are float32 numbers, as ONNX's attributes are, and no two tensors are
equal, as exporters store equal tensors as one.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import segmentation
import torch
from torch import nn


@dataclass
class Example:
    module: nn.Module
    inputs: dict  # name -> tensor, the batch on axis 0
    labels: torch.Tensor
    # Whether the exporter may fold constants: it folds batch normalization into convolutions, too.
    optimize: bool = True
    loss: str = "cross_entropy"  # as `build --loss` has it


def exact(value):
    """The float32 number next to `value`."""
    return float(np.float32(value))


def finish(module, inputs, labels, seed, optimize=True):
    """Makes the weights and epsilons of a fresh module what the comparison needs."""
    generator = torch.Generator().manual_seed(seed)
    for submodule in module.modules():
        for name in ("eps", "variance_epsilon"):
            if hasattr(submodule, name):
                setattr(submodule, name, exact(getattr(submodule, name)))
        if isinstance(submodule, (nn.BatchNorm2d, nn.BatchNorm3d)):
            submodule.momentum = 1 - exact(1 - submodule.momentum)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(0.1 * torch.rand(buffer.shape, generator=generator))
    return Example(module, inputs, labels, optimize)


def images(generator, batch, channels, size, classes):
    return torch.randn(batch, channels, size, size, generator=generator), torch.randint(
        0, classes, (batch,), generator=generator
    )


def mlp(batch=6, sizes=(20, 16, 16, 5), dropout=0.0, seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()] + [nn.Dropout(dropout)] * bool(dropout)
    module = nn.Sequential(*layers[: -2 if dropout else -1])
    x = torch.randn(batch, sizes[0], generator=generator)
    return finish(module, {"x": x}, torch.randint(0, sizes[-1], (batch,), generator=generator), seed)


def cnn(batch=6, width=6, classes=5, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), *[nn.Dropout(dropout)] * bool(dropout), nn.Linear(2 * width, classes),
    )  # fmt: skip
    x, labels = images(torch.Generator().manual_seed(seed), batch, 3, 8, classes)
    return finish(module, {"x": x}, labels, seed, optimize=False)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.main(x) + self.shortcut(x))


def resnet18(batch=4, width=64, size=32, classes=10, seed=0):
    """The form for CIFAR: a 3x3 stem and no pooling before the blocks."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        for block in range(2):
            layers.append(Residual(channels, width << stage, 2 if stage and not block else 1))
            channels = width << stage
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    x, labels = images(torch.Generator().manual_seed(seed), batch, 3, size, classes)
    return finish(module, {"x": x}, labels, seed, optimize=False)


class InvertedResidual(nn.Module):
    """MobileNetV2's block: expand, convolve each channel alone, project."""

    def __init__(self, inputs, outputs, stride, expansion=2):
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.main = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x):
        return x + self.main(x) if self.residual else self.main(x)


def mobilenet(batch=4, width=8, size=8, classes=5, seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(),
        InvertedResidual(width, width, 1), InvertedResidual(width, 2 * width, 2),
        InvertedResidual(2 * width, 2 * width, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )  # fmt: skip
    x, labels = images(torch.Generator().manual_seed(seed), batch, 3, size, classes)
    return finish(module, {"x": x}, labels, seed, optimize=False)


class UNet(nn.Module):
    """Group norm and SiLU, down and up again with skip connections, and a squeeze-and-excitation at the bottom."""

    def __init__(self, width, groups, classes):
        super().__init__()
        self.down, self.bottom = self.block(3, width, groups), self.block(width, 2 * width, groups)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * width, width, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip
        self.enlarge = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up = self.block(2 * width, width, groups)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def block(inputs, outputs, groups):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs), nn.SiLU())

    def forward(self, x):
        fine = self.down(x)
        coarse = self.bottom(nn.functional.max_pool2d(fine, 2))
        coarse = coarse * self.squeeze(coarse)
        return self.head(self.up(torch.cat([self.enlarge(coarse), fine], 1))).mean((2, 3))


def unet(batch=4, width=8, groups=4, size=8, classes=5, seed=0):
    torch.manual_seed(seed)
    x, labels = images(torch.Generator().manual_seed(seed), batch, 3, size, classes)
    return finish(UNet(width, groups, classes), {"x": x}, labels, seed, optimize=False)


def segmented(module, generator, batch, height, width, classes, seed):
    """A label for each pixel."""
    x = torch.randn(batch, 3, height, width, generator=generator)
    labels = torch.randint(0, classes, (batch, height, width), generator=generator)
    return finish(module, {"x": x}, labels, seed, optimize=False)


def unet_bilinear(batch=3, width=4, height=11, columns=14, classes=4, seed=0):
    torch.manual_seed(seed)
    module = segmentation.BilinearUNet(width, classes)
    return segmented(module, torch.Generator().manual_seed(seed), batch, height, columns, classes, seed)


def deeplab(batch=4, width=4, height=17, columns=22, classes=4, seed=0):
    torch.manual_seed(seed)
    module = segmentation.DeepLab(width, classes)
    return segmented(module, torch.Generator().manual_seed(seed), batch, height, columns, classes, seed)


def yolo(batch=3, width=4, size=16, numbers=6, seed=0):
    """Targets are numbers between 0 and 1, as an assignment of boxes to places would make them."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    places = 3 * ((size // 4) ** 2 + (size // 8) ** 2)
    x = torch.randn(batch, 3, size, size, generator=generator)
    labels = torch.rand(batch, places, numbers, generator=generator)
    module = segmentation.Yolo(width, numbers)
    return replace(finish(module, {"x": x}, labels, seed, optimize=False), loss="bce_with_logits")


class Bert(nn.Module):
    """A transformers model as a plain function of its tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids, attention_mask, token_type_ids).logits


class TanhGelu(nn.Module):
    """GPT-2's activation, with constants that are float32 numbers: exporters round them in float64 models, too."""

    def forward(self, x):
        inner = exact(math.sqrt(2 / math.pi)) * (x + exact(0.044715) * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class Gpt2(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids).logits


def bert(batch=3, width=32, heads=2, blocks=2, tokens=8, vocabulary=50, classes=3, seed=0):
    """BERT for sequence classification with a padding mask."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=blocks, num_attention_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=tokens, num_labels=classes,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(tokens // 2, tokens + 1, (batch,), generator=generator)
    inputs = {
        "input_ids": torch.randint(1, vocabulary, (batch, tokens), generator=generator),  # 0 pads
        "attention_mask": (torch.arange(tokens) < lengths[:, None]).long(),
        "token_type_ids": torch.randint(0, 2, (batch, tokens), generator=generator),
    }
    module = Bert(BertForSequenceClassification(config))
    return finish(module, inputs, torch.randint(0, classes, (batch,), generator=generator), seed)


def masked_lm(
    batch=3, width=32, heads=2, blocks=2, tokens=8, vocabulary=50, dropout=0.0, attention="eager", seed=0
):  # fmt: skip
    """BERT for masked language modelling, its head tied to the embedding; tokens that are not asked for have label
    -100, and a padding mask ends some sequences early."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=blocks, num_attention_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=tokens,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attn_implementation=attention,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(tokens // 2, tokens + 1, (batch,), generator=generator)
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    # Not 0, which pads: PyTorch's embedding gives its row no gradient.
    text = torch.randint(1, vocabulary, (batch, tokens), generator=generator)
    asked = (torch.rand(batch, tokens, generator=generator) < 0.15) & (mask == 1)
    asked[:, 0] = True
    inputs = {
        "input_ids": torch.where(asked, vocabulary - 1, text),  # the last word stands for [MASK]
        "attention_mask": mask,
        "token_type_ids": torch.zeros_like(text),
    }
    labels = torch.where(asked, text, -100)
    return finish(Bert(BertForMaskedLM(config)), inputs, labels, seed, optimize=False)


def perceptron(sizes, last_activation=True):
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers if last_activation else layers[:-1])


class Dlrm(nn.Module):
    """Meta's recommendation model: dense features and embeddings as vectors, their pairwise products, a classifier.
    https://arxiv.org/abs/1906.00091"""

    def __init__(self, tables, rows, bottom, top):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(rows, bottom[-1]) for _ in range(tables))
        self.bottom = perceptron(bottom)
        self.top = perceptron([bottom[-1] + tables * (tables + 1) // 2, *top, 1], last_activation=False)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1), persistent=False)

    def forward(self, dense, categories):
        x = self.bottom(dense)
        vectors = [x] + [embedding(categories[:, i]) for i, embedding in enumerate(self.embeddings)]
        t = torch.stack(vectors, 1)
        products = torch.bmm(t, t.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


def dlrm(batch=6, tables=3, rows=7, bottom=(5, 8, 4), top=(10, 6), seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "dense": torch.randn(batch, bottom[0], generator=generator),
        "categories": torch.randint(0, rows, (batch, tables), generator=generator),
    }
    labels = torch.randint(0, 2, (batch, 1), generator=generator).float()
    return replace(finish(Dlrm(tables, rows, bottom, top), inputs, labels, seed), loss="bce_with_logits")


def gpt2(batch=2, width=32, heads=2, blocks=2, tokens=8, vocabulary=50, dropout=0.0, attention="eager", tied=False,
         seed=0):  # fmt: skip
    """GPT-2; the labels are the next tokens. `tied`: its head is the embedding, as in the published model; an exporter
    that folds constants would store the head as a second, transposed tensor."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=tokens, n_embd=width, n_layer=blocks, n_head=heads, use_cache=False,
        tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, attn_implementation=attention,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, vocabulary, (batch, tokens + 1), generator=generator)
    module = Gpt2(GPT2LMHeadModel(config))
    for block in module.model.transformer.h:
        block.mlp.act = TanhGelu()
    return finish(module, {"input_ids": text[:, :-1].contiguous()}, text[:, 1:].contiguous(), seed, optimize=not tied)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class LlamaBlock(nn.Module):
    """Attention and a gated perceptron, each behind an RMS norm; positions are learned, for brevity."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = RmsNorm(width), RmsNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        heads = self.qkv(self.attention_norm(x)).reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width, heads, blocks, tokens, vocabulary):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(tokens, width))
        self.blocks = nn.Sequential(*[LlamaBlock(width, heads) for _ in range(blocks)])
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids):
        return self.head(self.norm(self.blocks(self.embedding(input_ids) + self.positions)))


def llama(batch=2, width=16, heads=2, blocks=2, tokens=6, vocabulary=20, seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, vocabulary, (batch, tokens + 1), generator=generator)
    module = Llama(width, heads, blocks, tokens, vocabulary)
    return finish(module, {"input_ids": text[:, :-1].contiguous()}, text[:, 1:].contiguous(), seed, optimize=False)


class RecurrentLanguageModel(nn.Module):
    """Words in, the next words out: an embedding, recurrent layers, a classifier for each position."""

    def __init__(self, cell, vocabulary, width, layers, bidirectional):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = cell(width, width, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(2 * width if bidirectional else width, vocabulary)

    def forward(self, input_ids):
        hidden, _ = self.recurrent(self.embedding(input_ids))
        return self.head(hidden)


def recurrent(cell, batch, width, layers, tokens, vocabulary, bidirectional, optimize, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, vocabulary, (batch, tokens + 1), generator=generator)
    module = RecurrentLanguageModel(cell, vocabulary, width, layers, bidirectional)
    return finish(module, {"input_ids": text[:, :-1].contiguous()}, text[:, 1:].contiguous(), seed, optimize)


def lstm(batch=3, width=8, layers=2, tokens=6, vocabulary=20, bidirectional=False, optimize=True, seed=0):
    """`optimize`: the exporter stores a layer's weights as ONNX has them, reordered and joined, not as PyTorch's own
    with the operators that make one of the other."""
    return recurrent(nn.LSTM, batch, width, layers, tokens, vocabulary, bidirectional, optimize, seed)


def gru(batch=3, width=8, layers=2, tokens=6, vocabulary=20, bidirectional=False, optimize=True, seed=0):
    """The same with GRU."""
    return recurrent(nn.GRU, batch, width, layers, tokens, vocabulary, bidirectional, optimize, seed)


def video(batch=2, width=4, frames=4, size=8, classes=5, seed=0):
    """Convolutions in space and time; with biases, for the exporter writes one of a wrong shape where there is none."""
    torch.manual_seed(seed)
    layers, channels = [], 3
    for outputs in (width, 2 * width, 4 * width):
        layers += [nn.Conv3d(channels, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU()]
        layers += [nn.MaxPool3d((1, 2, 2) if channels == 3 else 2)]
        channels = outputs
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, classes))
    generator = torch.Generator().manual_seed(seed)
    clips = torch.randn(batch, 3, frames, size, size, generator=generator)
    return finish(module, {"clips": clips}, torch.randint(0, classes, (batch,), generator=generator), seed, optimize=False)


class Waves(nn.Module):
    """As Wav2Vec2: strided convolutions over samples of sound, then a transformer, and a class for each frame."""

    def __init__(self, width, heads, blocks, classes):
        super().__init__()
        layers, channels = [], 1
        for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
            layers += [nn.Conv1d(channels, width, kernel, stride, bias=False), nn.GroupNorm(1, width), nn.GELU()]
            channels = width
        self.features = nn.Sequential(*layers)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([block, *(nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True,
                                                                         norm_first=True) for _ in range(blocks - 1))])  # fmt: skip
        self.head = nn.Linear(width, classes)

    def forward(self, sound):
        x = self.features(sound[:, None]).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def waves(batch=2, width=16, heads=2, blocks=2, samples=3200, classes=8, seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    sound = torch.randn(batch, samples, generator=generator)
    module = Waves(width, heads, blocks, classes)
    with torch.no_grad():
        frames = module(sound).shape[1]
    return finish(module, {"sound": sound}, torch.randint(0, classes, (batch, frames), generator=generator), seed)


EXAMPLES = {
    "mlp": mlp, "cnn": cnn, "resnet18": lambda **k: resnet18(**{"batch": 6, "width": 4, "size": 16, **k}), "mobilenet": mobilenet,
    "video": video, "waves": waves, "unet": unet, "unet_bilinear": unet_bilinear, "deeplab": deeplab, "yolo": yolo, "llama": llama,
    "bert": bert, "masked_lm": masked_lm, "gpt2": gpt2, "gpt2_tied": lambda **k: gpt2(tied=True, **k), "dlrm": dlrm,
    # Enough tokens for attention to run block by block, and for its mask to hide whole blocks.
    "gpt2_long": lambda **k: gpt2(**{"tokens": 300, "attention": "sdpa", **k}),
    "lstm": lambda **k: lstm(**{"optimize": False, **k}), "gru": lambda **k: gru(**{"optimize": False, **k}),
}  # fmt: skip
