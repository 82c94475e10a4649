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

UNIT_TESTS = tool.BUILD / "tests" / "unit_tests"


def without_unread_nodes(model):
    """The model without what its outputs do not need: of some operators ONNX Runtime has no kernel in float64, but it
    can run their gradients (Resize)."""
    needed, kept = {output.name for output in model.graph.output}, []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    return model.SerializeToString()


def run(path, values):
    return run_model(onnx.load(path), values)


def run_model(model, values):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(without_unread_nodes(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = {i.name: values[i.name] for i in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds)))


def compare(got, values, tolerance=1e-6):
    """What is wrong with a case; empty when nothing is."""
    for name, value in got.items():
        wanted = values[name]
        if value.shape != wanted.shape:
            return f"{name} has shape {value.shape} instead of {wanted.shape}"
        scale = max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1e-3)
        if not np.allclose(value, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return f"{name} differs by {np.abs(value - wanted).max()}"
    return ""


def is_missing(error):
    """ONNX Runtime has no kernel for the type, says wrongly that ONNX does not define it (Celu), or cannot Scan nothing."""
    return any(text in error for text in ("NOT_IMPLEMENTED", "Type 'tensor(double)'", "not support double", "layout == 1",
                                        "Dimension 0 is 0"))  # fmt: skip


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


def in_float32(tensor):
    array = onnx.numpy_helper.to_array(tensor)
    return onnx.numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array, tensor.name)


def run_in_float32(path, values):
    """The case with floats in place of doubles, for which ONNX Runtime has more kernels."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for tensor in model.graph.initializer:
        tensor.CopyFrom(in_float32(tensor))
    floats = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in values.items()}
    return run_model(model, floats)


def by_definition(path, values):
    """LRN, which ONNX's reference implementation sums for as many channels as there are samples, and ONNX Runtime takes in
    odd sizes only."""
    (node,) = onnx.load(path).graph.node
    assert node.op_type == "LRN"
    get = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}.get
    x, size = values[node.input[0]], get("size")
    sums = np.stack([(x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1) for c in range(x.shape[1])], 1)
    return {node.output[0]: x / (get("bias", 1.0) + get("alpha", 1e-4) / size * sums) ** get("beta", 0.75)}


# From the most precise one on, with what their results may differ by.
IMPLEMENTATIONS = ((reference, 1e-6), (run, 1e-6), (run_in_float32, 1e-4), (by_definition, 1e-6))


# Each runtime draws numbers of its own; tests/python/operators/test_random_numbers.py has what can be said of ours.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def has_empty_sequence(operator, values):
    """The standard does not say what a recurrent network computes from a sequence without steps. Ours keeps the initial
    state; ONNX Runtime does that in one direction only."""
    return operator in ("RNN", "GRU", "LSTM") and "x4" in values and (values["x4"] == 0).any()


def test_results_are_those_of_other_implementations(recorded):
    """One that agrees is enough: each of them has mistakes and gaps, which our results do not share."""
    right, unable, wrong = collections.Counter(), collections.Counter(), []
    for case, operator, path, values in cases(recorded, forward=True):
        if operator.startswith("onnx_train_"):  # a function of ours: the unit tests hold its kernel to its body
            continue
        if operator in RANDOM:
            continue
        problems = []
        for implementation, tolerance in IMPLEMENTATIONS:
            try:
                problems.append(compare(implementation(path, values), values, tolerance))
            except Exception:  # it has no such kernel, or fails in it
                continue
            if not problems[-1]:
                break
        if not problems or problems[-1] and has_empty_sequence(operator, values):
            unable[operator] += 1
        elif problems[-1]:
            wrong.append(f"{case}: {problems}")
        else:
            right[operator] += 1
    print(f"{sum(right.values())} results right, of {len(right)} operators; computed by nothing else: "
          f"{sum(unable.values())} cases, of {dict(unable)}")  # fmt: skip
    assert sum(right.values()) > 0
    alone = sorted(set(unable) - set(right))
    assert not alone, f"no case of these operators is computed by anything else: {alone}"
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
