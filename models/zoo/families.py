"""The files of the zoo, in the order of the table."""

import importlib

FILES = [
    "encoders", "decoders", "experts", "translators", "vision", "convolutions", "dense", "reading", "generative", "audio", "voice",
    "science", "other_exporters",
]  # fmt: skip


def families():
    return [importlib.import_module(f"zoo.{name}").FAMILY for name in FILES]
