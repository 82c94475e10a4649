import itertools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
sys.path += [str(Path(__file__).parent / folder) for folder in ("fuzzing", "runs")]

import tool  # noqa: E402, F401  (adds the package onnx_train to the path)

import browser  # noqa: E402  (needs the path)
import exports  # noqa: E402  (needs the path)
import reference  # noqa: E402
import networks  # noqa: E402
from export import export  # noqa: E402

torch.set_num_threads(1)  # as tool.start has it
exports.remember()


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=8, help="how many times a fit is killed")
    parser.addoption("--random-models", type=int, default=12, help="how many random models are trained")
    parser.addoption("--random-gradients", type=int, default=2000, help="of how many random models gradients are tested")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A browser, for as long as a module's tests need one."""
    if not browser.PROGRAM:
        pytest.skip("no chromium here: apt-get install chromium")
    page = browser.Browser(tmp_path_factory.mktemp("browser"))
    yield page
    page.close()


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """exported(name, double, ...) -> (example, path): an example of models/networks.py and its ONNX file, made once.

    One precision goes through each of PyTorch's exporters, so that both are met; transformers' GPT-2 fits only one.
    """
    folder = tmp_path_factory.mktemp("models")
    numbers = itertools.count()
    files = {}

    def get(name, double=False, train=False, **sizes):
        example = networks.EXAMPLES[name](**sizes)
        if double:
            example = reference.to_double(example)
        key = name, double, train, *sorted(sizes.items())
        if key not in files:
            files[key] = folder / f"{name}_{next(numbers)}.onnx"
            exporter = "torchscript" if double and not name.startswith("gpt2") else "dynamo"
            export(example.module, example.inputs, files[key], exporter, example.optimize, train)
        return example, files[key]

    return get
