"""Losses and building blocks: each adds nodes to a forward model and gives the name of its output."""

from . import blocks, loss, optim
from .blocks import Block

__all__ = ["Block", "blocks", "loss", "optim"]
