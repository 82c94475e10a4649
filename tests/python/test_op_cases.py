"""Every operator case elsewhere: what it computes, on ONNX's reference implementation or ONNX Runtime; its gradient graph,
with static and with dynamic shapes, on ONNX Runtime: what rules emit is plain ONNX, functions with bodies included, and
gives there what it gives here."""

import collections
import os
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
import tool
from onnx.reference import ReferenceEvaluator

UNIT_TESTS = tool.ROOT / "build" / "tests" / "unit_tests"


def without_unread_nodes(path):
    """The model without what its outputs do not need: of some operators ONNX Runtime has no kernel in float64, but it
    can run their gradients (Resize)."""
    model = onnx.load(path)
    needed, kept = {output.name for output in model.graph.output}, []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    return model.SerializeToString()


def run(path, values):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(without_unread_nodes(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = {i.name: values[i.name] for i in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds)))


def compare(got, values):
    """What is wrong with a case; empty when nothing is."""
    for name, value in got.items():
        wanted = values[name]
        if value.shape != wanted.shape:
            return f"{name} has shape {value.shape} instead of {wanted.shape}"
        scale = max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1e-3)
        if not np.allclose(value, wanted, rtol=1e-6, atol=1e-6 * scale, equal_nan=True):
            return f"{name} differs by {np.abs(value - wanted).max()}"
    return ""


def is_missing(error):
    """ONNX Runtime has no kernel for the type, or says wrongly that ONNX does not define it (Celu)."""
    return any(text in error for text in ("NOT_IMPLEMENTED", "Type 'tensor(double)'", "not support double", "layout == 1"))


# What ONNX Runtime's own expansion of an operator cannot do.
UNFIT = {"GroupNormalization"}  # without elements


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder of the cases' graphs, and of what they were given and computed."""
    folder = tmp_path_factory.mktemp("op_cases")
    environment = {**os.environ, "OP_CASES_FOLDER": str(folder)}
    subprocess.run([UNIT_TESTS, "--gtest_filter=All/OpCases*", "--gtest_brief=1"], env=environment, check=True)
    return folder


def cases(folder, forward):
    """(name, operator, path of the graph, values) of each."""
    for data in sorted(folder.glob("*.data.onnx")):
        case = data.name.removesuffix(".data.onnx")
        if case.endswith("_forward") != forward:
            continue
        operator = case.removesuffix("_dynamic").removesuffix("_forward").rpartition("_")[0]
        values = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(data).graph.initializer}
        yield case, operator, folder / f"{case}.onnx", values


def reference(path, values):
    model = onnx.load(path)
    names = [output.name for output in model.graph.output]
    feeds = {i.name: values[i.name] for i in model.graph.input}
    with np.errstate(all="ignore"):
        return dict(zip(names, map(np.asarray, ReferenceEvaluator(model).run(names, feeds))))


def test_results_are_those_of_other_implementations(recorded):
    right, alone, wrong = collections.Counter(), {}, []
    for case, operator, path, values in cases(recorded, forward=True):
        problems = []
        for implementation in (reference, run):
            try:
                problems.append(compare(implementation(path, values), values))
            except Exception as error:
                problems.append(None)
                alone.setdefault(operator, str(error).splitlines()[0] if str(error) else type(error).__name__)
                continue
            if not problems[-1]:
                break
        if "" in problems:
            right[operator] += 1
        elif any(problems):
            wrong.append(f"{case}: {[p for p in problems if p]}")
    nobody = {operator: why for operator, why in alone.items() if not right[operator]}
    print(f"{sum(right.values())} results right, of {len(right)} operators; nothing independent computes "
          f"{sorted(nobody)}")  # fmt: skip
    assert sum(right.values()) > 0
    assert not wrong, f"{len(wrong)} of {sum(right.values()) + len(wrong)}:\n" + "\n".join(wrong)


def test_gradients_run_on_another_runtime(recorded):
    right, missing, wrong = 0, collections.Counter(), []
    for case, operator, path, values in cases(recorded, forward=False):
        try:
            problem = compare(run(path, values), values)
        except Exception as error:
            problem = str(error)
            if is_missing(problem) or operator in UNFIT:
                missing[operator] += 1
                continue
        if problem:
            wrong.append(f"{case}: {problem.splitlines()[0]}")
        right += not problem
    print(f"{right} gradient graphs right; not to be had in ONNX Runtime: {sum(missing.values())}, of {sorted(missing)}")
    assert right > 0
    assert not wrong, f"{len(wrong)} of {right + len(wrong)}:\n" + "\n".join(wrong)
