"""What docs/recipes/qlora.md starts from: gpt.onnx, a small GPT whose weights are as large as a trained one's, and
nanoGPT's files of tokens, book/train.bin and book/val.bin."""

import language_model
import same
import torch
from torch import nn
from torch.nn import functional as F


def int4(weight, block):
    """[out, in] as integers from -7 to 7 with a scale for each `block` of inputs, and back, as floats of the type that
    the training has."""
    blocks = weight.float().unflatten(1, (-1, block))
    scale = blocks.abs().amax(2, keepdim=True) / 7
    scale[scale == 0] = 1
    return (torch.round(blocks / scale).to(same.FLOAT) * scale.to(same.FLOAT)).flatten(1)


class Qlora(nn.Module):
    """W x + b + alpha / rank B A x, where W is rounded to integers and A and B alone are trained."""

    def __init__(self, layer, rank, alpha, block):
        super().__init__()
        self.register_buffer("weight", int4(layer.weight.detach(), block), persistent=False)
        self.bias = layer.bias
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        self.scaling = alpha / rank

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) + self.scaling * self.lora_B(self.lora_A(x))


def with_qlora(module, rank, alpha, block):
    """`module` with its layers of blocks rounded and adapters beside them; all but these is frozen."""
    for name, layer in list(module.named_modules()):
        parent, _, last = name.rpartition(".")
        if isinstance(layer, nn.Linear) and name.startswith("blocks."):
            setattr(module.get_submodule(parent), last, Qlora(layer, rank, alpha, block))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return module


def make():
    language_model.make()
    torch.manual_seed(0)
    module = language_model.network()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    language_model.export(module, "gpt.onnx")
