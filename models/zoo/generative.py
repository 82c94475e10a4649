"""Networks that make images: VAE, GAN, diffusion."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from zoo.convolutions import SGD
from zoo.entry import Example, Family, draw, pictures, randomized, regressor

FAMILY = Family("Generative")


class Vae(nn.Module):
    """The noise is an input; the divergence from the prior is a second output. https://arxiv.org/abs/1312.6114"""

    def __init__(self, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(0.25), nn.Flatten(), nn.Linear(128, 2 * latent))
        self.expand = nn.Linear(latent, 128)
        self.decoder = nn.Sequential(nn.ELU(), nn.ConvTranspose2d(8, 3, 4, 2, 1))

    def forward(self, x, noise):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.exp(0.5 * log_variance) * noise
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return self.decoder(self.expand(z).view(-1, 8, 4, 4)), divergence


class Gan(nn.Module):
    """What a generator learns from: the discriminator's answer to its images. https://arxiv.org/abs/1511.06434"""

    def __init__(self, noise=6):
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(noise, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1),
            nn.LeakyReLU(0.25), nn.Conv2d(8, 8, 4, 1, 0), nn.PReLU(8), nn.Flatten(), nn.Linear(8, 1),
        )  # fmt: skip

    def forward(self, noise):
        return self.discriminator(self.generator(noise[:, :, None, None]))


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.qkv, self.mix = nn.GroupNorm(2, channels), nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).view(n, c, h * w)).chunk(3, 1)
        weights = torch.softmax(torch.einsum("bct,bcs->bts", q, k) * c**-0.5, -1)
        return x + self.mix(torch.einsum("bts,bcs->bct", weights, v)).view(n, c, h, w)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.before = nn.Sequential(nn.GroupNorm(2, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, 2 * outputs))
        self.norm, self.after = nn.GroupNorm(2, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        y = self.before(x)
        scale, shift = self.time(time)[..., None, None].chunk(2, 1)
        return self.skip(x) + self.after(F.silu(self.norm(y) * (1 + scale) + shift))


class Diffusion(nn.Module):
    """The network of DDPM, with sinusoidal times, scale and shift, attention at the bottom.
    https://arxiv.org/abs/2102.09672"""

    def __init__(self, width=8):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 16), nn.SiLU(), nn.Linear(16, 16))
        self.stem, self.first, self.down = nn.Conv2d(3, width, 3, padding=1), Residual(width, width, 16), nn.Conv2d(width, width, 3, 2, 1)
        self.middle, self.attention = Residual(width, 2 * width, 16), Attention(2 * width)
        self.up, self.last = nn.Conv2d(2 * width, width, 3, padding=1), Residual(2 * width, width, 16)
        self.head = nn.Sequential(nn.GroupNorm(2, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        half = self.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device, dtype=x.dtype) / half)
        angles = t[:, None].to(x.dtype) * rates[None]
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.stem(x)
        kept = self.first(x, time)
        x = self.attention(self.middle(self.down(kept), time))
        x = self.up(F.interpolate(x, scale_factor=2, mode="nearest"))
        return self.head(self.last(torch.cat([x, kept], 1), time))


def vae():
    generator = draw()
    module = Vae()
    randomized(module)
    x = pictures(generator, 4, 3, 8)
    inputs = {"x": x, "noise": torch.randn(4, 4, generator=generator)}

    def criterion(y, divergence, target):
        return F.mse_loss(y, target) + 0.125 * divergence

    return Example(module, inputs, {"target": x.clone()}, "mse(y, target) + 0.125*divergence", criterion, ("y", "divergence"))


def gan():
    generator = draw()
    module = Gan()
    randomized(module)
    inputs = {"noise": torch.randn(4, 6, generator=generator)}
    return Example(module, inputs, {"labels": torch.ones(4, 1)}, "bce_with_logits", F.binary_cross_entropy_with_logits)


def diffusion():
    generator = draw()
    inputs = {"x": pictures(generator, 3, 3, 8), "t": torch.tensor([3, 250, 999])}
    return regressor(Diffusion(), inputs, pictures(generator, 3, 3, 8))


FAMILY.add("VAE", vae, quick=True)
FAMILY.add("GAN (through its judge)", gan, **SGD)
FAMILY.add("Diffusion U-Net", diffusion)
