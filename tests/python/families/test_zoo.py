"""Exports of real models against their framework and ONNX Runtime: the quick ones. models/zoo/run.py checks all."""

import pytest
from zoo.check import check
from zoo.families import families

QUICK = [entry for family in families() for entry in family.entries if entry.quick]


@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: entry.name)
def test_an_export_trains_as_in_its_framework(entry, tmp_path):
    row = check(entry, entry.exporters[0], tmp_path)
    assert row.ok, row
    assert row.check == "yes" and row.gradient and row.curve and row.runtime


def test_a_wrong_module_does_not_pass(tmp_path):
    """The checks notice a gradient that is another: of a network whose weights moved after the export."""
    [entry] = [entry for entry in QUICK if entry.name == "MLP-Mixer"]

    def moved(example, path):
        from export import export

        export(example.module, example.inputs, path, "torchscript")
        for parameter in example.module.parameters():
            parameter.data[..., :1] += 0.5

    row = check(entry, moved, tmp_path)
    assert not row.ok and row.check == "yes" and row.notes.startswith("gradient of ")
    assert not row.exported and row.notes.endswith("ONNX Runtime's outputs are not PyTorch's either")
