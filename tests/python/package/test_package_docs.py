"""The examples of the package's docstrings run. The pages: test_docs.py; the reference that is made of them: test_site.py."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import shutil
import sys

import pytest
import tool

import onnx_train
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
MODULES = ["onnx_train", *(m.name for m in pkgutil.walk_packages(onnx_train.__path__, "onnx_train."))]
MODULES.remove("onnx_train._core")
for other in "jax", "ray":
    if importlib.util.find_spec(other) is None:
        MODULES.remove(f"onnx_train.{other}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The models that the examples name."""
    shutil.copy(MLP, tmp_path / "model.onnx")
    shutil.copy(MLP, tmp_path / "mlp.onnx")
    shutil.copy(MLP.with_name("next.onnx"), tmp_path)
    shutil.copy(tool.ROOT / "models" / "digits_cnn.onnx", tmp_path)
    shutil.copytree(MLP.parent / "onnxruntime" / "mlp", tmp_path / "artifacts")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples_of(name):
    """The doctests of a module; an example goes on from those of its class and its module."""
    tests = {test.name: test for test in doctest.DocTestFinder().find(importlib.import_module(name))}
    own = {key: list(test.examples) for key, test in tests.items()}
    for key, test in tests.items():
        parent = key.rpartition(".")[0]
        while own[key] and parent in own:
            test.examples[:0] = own[parent]
            parent = parent.rpartition(".")[0]
    return tests


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run(folder, monkeypatch, name):
    for other in ("torch", "jax", "onnx", "ray", "tqdm"):
        if not name.endswith(other) and "onnxruntime" not in name:  # all else needs numpy only
            monkeypatch.setitem(sys.modules, other, None)
    runner = doctest.DocTestRunner()
    for test in examples_of(name).values():
        runner.run(test)
    assert runner.summarize().failed == 0


def public(name):
    """(name, thing) for the classes, functions, methods and properties of a module."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        key for key, thing in vars(module).items() if getattr(thing, "__module__", "") == name and key[0] != "_"
    ]
    for key in names:
        thing = getattr(module, key)
        if inspect.ismodule(thing):
            continue
        yield f"{thing.__module__}.{key}", thing
        for member_name, member in vars(thing).items() if isinstance(thing, type) else ():
            member = getattr(member, "__func__", member)
            if member_name[0] != "_" and (inspect.isfunction(member) or isinstance(member, property)):
                yield f"{thing.__module__}.{key}.{member_name}", member


# Single nodes and losses: the example of their module has them.
BLOCKS = tuple(f"onnx_train.onnxruntime.training.onnxblock.{name}." for name in ("blocks", "loss", "optim"))


@pytest.mark.parametrize("name", [name for name in MODULES if not name.rpartition(".")[2].startswith("_")])
def test_all_that_is_public_has_a_docstring_and_an_example(name):
    for key, thing in public(name):
        assert thing.__doc__, f"{key} has no docstring"
        assert ">>>" in thing.__doc__ or key.startswith(BLOCKS), f"the docstring of {key} has no example"


def test_the_reference_has_all_public_modules():
    named = re.findall(r"^::: (.*)$", (tool.ROOT / "docs" / "python_api.md").read_text(), re.MULTILINE)
    modules = {name for name in MODULES if "._" not in name and any(public(name))}
    assert len(named) == len(set(named)) and modules <= set(named)
