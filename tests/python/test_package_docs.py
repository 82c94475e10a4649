"""The page about the package, and the examples of its docstrings: all of it runs."""

import doctest
import importlib
import importlib.machinery
import importlib.util
import pkgutil
import re
import shutil

import pytest
import tool

onnx_train = pytest.importorskip("onnx_train", reason="the Python package is not built")
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
MODULES = ["onnx_train", *(m.name for m in pkgutil.walk_packages(onnx_train.__path__, "onnx_train."))]
MODULES.remove("onnx_train._core")
if importlib.util.find_spec("jax") is None:
    MODULES.remove("onnx_train.jax")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The models that the examples name."""
    shutil.copy(MLP, tmp_path / "model.onnx")
    shutil.copy(MLP, tmp_path / "mlp.onnx")
    shutil.copy(tool.ROOT / "models" / "digits_cnn.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_runs(folder):
    text = (tool.ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    names = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert (folder / "trained.onnx").exists()


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run(folder, name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    counts = {name: sum(len(t.examples) for t in finder.find(importlib.import_module(name))) for name in MODULES}
    assert sum(counts.values()) > 25, counts


def test_all_that_is_public_has_a_docstring():
    for name in onnx_train.__all__:
        thing = getattr(onnx_train, name)
        assert thing.__doc__, name
        for key, member in vars(thing).items() if isinstance(thing, type) else ():
            if callable(member) and not key.startswith("_"):
                assert member.__doc__, f"{name}.{key}"


def test_the_reference_is_that_of_the_docstrings():
    script = importlib.machinery.SourceFileLoader("api_reference", str(tool.ROOT / "scripts" / "api_reference"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(script.name, script))
    script.exec_module(module)
    assert module.TARGET.read_text() == module.page(), "docs/python_api.md is old; run scripts/api_reference"
