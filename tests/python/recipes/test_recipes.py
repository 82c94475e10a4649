"""The recipes of docs/recipes: each page's own commands, with `fit --dtype float64`, train as the PyTorch program of the
page does on the same batches. What the pages print in float32 is for test_docs.py."""

import re
import sys

import pages
import pytest
import tool
import torch

sys.path.append(str(tool.ROOT / "examples" / "recipes"))
import same  # noqa: E402

RECIPES = sorted(path.stem for path in (tool.ROOT / "docs" / "recipes").glob("*.md") if path.stem != "index")
TOLERANCE = 1e-11  # of each loss, and of all weights by their norm, relative; the pages state it


def in_float64(block):
    """With `--dtype float64` for the run that is compared. Others, which have a folder of another name, stay as they are."""
    if "onnxruntime.InferenceSession" in block:
        return ""  # it quantizes no doubles
    return re.sub(r"onnx-train fit (?!(?:.*\\\n)*.*--out (?!run))", "onnx-train fit --dtype float64 ", block)


# test_detection.py compares the detector, whose loss is a model that PyTorch exported.
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "detector"])
def test_a_recipe_trains_as_pytorch_does_on_the_same_batches(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(same, "FLOAT", torch.float64)
    pages.prepare(tmp_path)
    names = {}
    pages.run(f"docs/recipes/{recipe}.md", tmp_path, names, edit=in_float64)
    losses, weights = same.distance(names["losses"], names["module"], "run")
    assert len(names["losses"]) >= 20 and losses < TOLERANCE and weights < TOLERANCE


def test_every_recipe_is_linked():
    index = pages.text_of("docs/recipes/index.md")
    assert len(RECIPES) == 16 and all(f"]({recipe}.md)" in index for recipe in RECIPES)


def test_each_program_that_makes_a_models_start_has_a_recipe():
    programs = {path.stem for path in (tool.ROOT / "examples" / "recipes").glob("*.py")}
    assert programs - {"same"} <= set(RECIPES)
