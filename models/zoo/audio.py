"""Sound: Wav2Vec2 and its descendants of transformers, and convolutions behind a spectrogram."""

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from zoo.entry import Example, Family, Outputs, choices, classifier, draw, randomized

FAMILY = Family("Sound")

WAVES = dict(
    vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, conv_dim=(8, 8),
    conv_stride=(4, 2), conv_kernel=(8, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
    layerdrop=0.0, apply_spec_augment=False, mask_time_prob=0.0, classifier_proj_size=8, num_labels=3, pad_token_id=0,
)  # fmt: skip


def waves(kind, task="SequenceClassification", **changes):
    def make():
        generator = draw()
        config = getattr(transformers, f"{kind}Config")(**WAVES | changes)
        inputs = {"input_values": torch.randn(3, 200, generator=generator)}
        model = Outputs(getattr(transformers, f"{kind}For{task}")(config), inputs)
        if task != "CTC":
            return classifier(model, inputs, choices(generator, 3, 3))
        randomized(model)
        labels = torch.randint(1, 12, (3, 4), generator=generator)
        lengths = torch.tensor([4, 3, 2])

        def ctc(logits, labels, frames, lengths):
            return F.ctc_loss(F.log_softmax(logits, -1).transpose(0, 1), labels, frames, lengths)

        return Example(model, inputs, {"labels": labels, "frames": torch.tensor([24, 20, 24]), "lengths": lengths}, "ctc(logits, labels, frames, lengths, time=1)", ctc)

    return make


class Spectrogram(nn.Module):
    """Conv1d over the logarithm of a short-time Fourier transform's power."""

    def __init__(self, classes=4, size=16):
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size))
        bins = size // 2 + 1
        self.layers = nn.Sequential(
            nn.Conv1d(bins, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(8, 8, 3, padding=2, dilation=2), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
            nn.Linear(8, classes),
        )  # fmt: skip
        self.gain = nn.Parameter(torch.tensor([1.5]))  # before the transform: its gradient goes through it

    def forward(self, wave):
        s = torch.stft(self.gain * wave, self.size, self.size // 2, window=self.window, center=False, return_complex=False)
        power = s.pow(2).sum(-1)
        return self.layers(torch.log(power + 1e-3))


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates. https://arxiv.org/abs/1609.03499"""

    def __init__(self, width=8, levels=16):
        super().__init__()
        self.stem = nn.Embedding(levels, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(3))
        self.mixes = nn.ModuleList(nn.Conv1d(width, width, 1) for i in range(3))
        self.head = nn.Conv1d(width, levels, 1)

    def forward(self, levels):
        x, skipped = self.stem(levels).transpose(1, 2), 0
        for i, (convolution, mix) in enumerate(zip(self.filters, self.mixes)):
            y = F.glu(convolution(F.pad(x, (2**i, 0))), 1)
            skipped = skipped + y
            x = x + mix(y)
        return self.head(F.relu(skipped)).transpose(1, 2)


def spectrogram():
    generator = draw()
    return classifier(Spectrogram(), {"wave": torch.randn(4, 96, generator=generator)}, choices(generator, 4, 4))


def wavenet():
    generator = draw()
    text = choices(generator, 16, 2, 21)
    return classifier(WaveNet(), {"levels": text[:, :-1].contiguous()}, text[:, 1:].contiguous())


FAMILY.add("Wav2Vec2", waves("Wav2Vec2"), rate=2.0**-7)
FAMILY.add("Wav2Vec2, CTC", waves("Wav2Vec2", "CTC", feat_extract_norm="layer", do_stable_layer_norm=True))
FAMILY.add("HuBERT", waves("Hubert"), rate=2.0**-7)
FAMILY.add("WavLM", waves("WavLM"), rate=2.0**-7)
FAMILY.add("STFT and Conv1d", spectrogram)
FAMILY.add("WaveNet", wavenet, build=("--fix-shapes",), notes="--fix-shapes: the older exporter declares a wrong one")
