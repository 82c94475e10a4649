"""Losses and building blocks: each adds nodes to a forward model and gives the name of its output."""

from . import blocks, loss, optim
from ._models import TrainingBlock, base, custom_op_library, empty_base, load_checkpoint_to_model, save_checkpoint
from .blocks import Block, ForwardBlock

__all__ = [
    "Block", "ForwardBlock", "TrainingBlock", "base", "blocks", "custom_op_library", "empty_base",
    "load_checkpoint_to_model", "loss", "optim", "save_checkpoint",
]  # fmt: skip
