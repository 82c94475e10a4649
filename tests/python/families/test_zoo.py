"""Exports of real models against their framework and ONNX Runtime: the quick ones. models/zoo/run.py checks all."""

import onnx_train
import pytest
from zoo.check import check
from zoo.families import families

QUICK = [entry for family in families() for entry in family.entries if entry.quick]


@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: entry.name)
def test_an_export_trains_as_in_its_framework(entry, tmp_path):
    row = check(entry, entry.exporters[0], tmp_path)
    assert row.ok, row
    assert row.check == "yes" and row.gradient and row.curve and row.runtime
    assert_that_builds_say_what_check_finds(entry, tmp_path)


def assert_that_builds_say_what_check_finds(entry, folder):
    """Of the command's build, in the file that it wrote, and of Python's, by the C interface: nothing is left out."""
    path, loss = folder / "model.onnx", entry.make().loss
    options = dict(zip((key[2:].replace("-", "_") for key in entry.build[::2]), entry.build[1::2]))
    report = onnx_train.check(path, loss=loss, **options)
    # Two are advice on how to build.
    wanted = {tuple(finding) for finding in report.findings if finding.subject not in ("sizes", "batch")}
    command = onnx_train.load(folder / "train.onnx")
    python = onnx_train.build(path, loss, **options)
    for training in (command, python):
        assert {tuple(finding) for finding in training._core.notes()} == wanted
        assert len(training.notes) == len(training._core.notes()) >= len(wanted)


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
