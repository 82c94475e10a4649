"""The workloads of peers.py, their files, and what a step of each has to hold in memory whoever computes it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = ROOT / "build" / "onnx-train"
RATE, DECAY, BETAS, EPSILON = 1e-4, 0.01, (0.9, 0.999), 1e-8  # of AdamW, everybody's

sys.path.insert(0, str(ROOT / "models"))


@dataclass
class Workload:
    title: str
    network: str  # a function of models/networks.py or models/loops.py
    sizes: dict  # its arguments
    dropout: bool = False  # exported in train mode; the losses of two random streams differ
    loops: bool = False  # exported by the older exporter from torch.jit.script, which keeps loops

    def networks(self):
        import loops
        import networks

        return loops if self.loops else networks

    def example(self):
        return getattr(self.networks(), self.network)(**self.sizes)

    def exists(self):
        return hasattr(self.networks(), self.network)


WORKLOADS = [
    Workload("MLP 784-512-512-10, batch 128", "mlp", dict(batch=128, sizes=(784, 512, 512, 10))),
    Workload("ResNet-18 for CIFAR, batch 32", "resnet18", dict(batch=32)),
    Workload(
        "GPT-2, 2 blocks 768 wide, 12 heads, 256 tokens, batch 2, vocabulary 8,192",
        "gpt2",
        dict(batch=2, width=768, heads=12, blocks=2, tokens=256, vocabulary=8192, attention="sdpa"),
    ),
    Workload(
        "DLRM, 26 tables of 10,000 x 16, dot interaction, batch 2,048",
        "dlrm",
        dict(batch=2048, tables=26, rows=10000, bottom=(13, 512, 256, 64, 16), top=(512, 256)),
    ),
    Workload(
        "LSTM, 2 layers of 256, 64 steps, batch 32, vocabulary 2,000",
        "lstm",
        dict(batch=32, width=256, layers=2, tokens=64, vocabulary=2000),
    ),
    Workload(
        "BERT-base with 2 layers, masked language model, 128 tokens, batch 8, dropout 0.1",
        "masked_lm",
        dict(batch=8, width=768, heads=12, tokens=128, vocabulary=30522, dropout=0.1, attention="sdpa"),
        dropout=True,
    ),
    Workload("U-Net with Resize, 32 wide, 128 x 128, batch 4", "unet_bilinear",
             dict(batch=4, width=32, height=128, columns=128, classes=8)),
    Workload("DeepLab with dilations, 32 wide, 129 x 129, batch 4", "deeplab",
             dict(batch=4, width=32, height=129, columns=129, classes=8)),
    Workload("MobileNet v2 blocks (depthwise), 32 wide, 64 x 64, batch 16", "mobilenet", dict(batch=16, width=32, size=64, classes=10)),
    Workload("GRU, 2 layers of 256, 64 steps, batch 32, vocabulary 2,000", "gru",
             dict(batch=32, width=256, layers=2, tokens=64, vocabulary=2000)),
    Workload("Conv3d, 16 wide, 8 frames of 64 x 64, batch 4", "video", dict(batch=4, width=16, frames=8, size=64)),
    Workload("Wav2Vec2-like, 256 wide, 2 blocks, 32,000 samples, batch 2", "waves",
             dict(batch=2, width=256, heads=4, samples=32000, classes=32)),
    Workload("LSTM written as a loop, 256 wide, 64 steps, batch 32, vocabulary 2,000", "loop_lstm",
             dict(batch=32, width=256, tokens=64, vocabulary=2000), loops=True),
]  # fmt: skip


def loss_function(example):
    """loss(logits, labels) of PyTorch, as `build --loss` names it."""
    from torch.nn import functional

    if example.loss == "cross_entropy":
        def cross_entropy(logits, labels):
            by_pixel = logits.dim() == 4
            return functional.cross_entropy(logits if by_pixel else logits.flatten(0, -2), labels if by_pixel else labels.flatten())

        return cross_entropy
    if example.loss == "bce_with_logits":
        return functional.binary_cross_entropy_with_logits
    raise ValueError(f"no loss function for {example.loss}")


def inherent_bytes(example):
    """Of weights, buffers, two moments for each weight, and the batch."""

    def size(tensors):
        return sum(t.numel() * t.element_size() for t in tensors)

    return (
        3 * size(example.module.parameters())
        + size(example.module.buffers())
        + size([*example.inputs.values(), example.labels])
    )


@dataclass
class Files:
    data: Path
    training: Path
    step: Path  # the training step flattened, for other runtimes


def takes_precision():
    """Whether this onnx-train builds training models in mixed precision."""
    text = subprocess.run([COMMAND, "build", "--help"], capture_output=True, text=True).stdout
    return "--precision" in text


def make_files(workload, example, precision, folder):
    import numpy as np
    import torch
    from export import export

    forward, files = folder / "forward.onnx", Files(folder / "data.npz", folder / "train.onnx", folder / "step.onnx")
    module, exporter = (torch.jit.script(example.module), "torchscript") if workload.loops else (example.module, "dynamo")
    export(module, example.inputs, forward, exporter=exporter, optimize=example.optimize, train=workload.dropout)
    np.savez(files.data, labels=example.labels.numpy(), **{k: v.numpy() for k, v in example.inputs.items()})
    options = [] if precision == "float32" else ["--precision", precision]
    for arguments in (
        ["build", forward, "-o", files.training, "--loss", example.loss,
         "--optimizer", f"adamw(lr={RATE},weight_decay={DECAY})", "--decay", "*", *options],
        ["flatten", files.training, "--entry", "step", "-o", files.step],
    ):  # fmt: skip
        result = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"onnx-train {arguments[0]}: {result.stderr.strip()}")
    return files
