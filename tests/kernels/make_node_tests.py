"""Writes ONNX's own node tests into a folder, for node_test.cc to run.

    make_node_tests.py FOLDER

FOLDER/<case>/ holds model.onnx, input_<i>.pb and output_<i>.pb; FOLDER/cases.txt one line per case: its name, its
operator, rtol, atol. FOLDER/skipped.txt counts what is left out, by reason. Does nothing when FOLDER was written by
this version of the script and of onnx.
"""

import collections
import hashlib
import pathlib
import shutil
import sys
import warnings

import numpy
import onnx
from onnx import TensorProto, defs, numpy_helper, version_converter

OPSET = 21
TYPES = {
    getattr(TensorProto, name)
    for name in "FLOAT DOUBLE INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL".split()
}
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
CONTROL = {"If", "Loop", "Scan"}


def reason_to_skip(model):
    """Why the runtime does not promise to run this model; empty when it does."""
    graph = model.graph
    ops = {node.op_type for node in graph.node}
    domains = {node.domain for node in graph.node} - {"", "ai.onnx"}
    if domains:
        return "operators of " + ", ".join(sorted(domains))
    if ops & CONTROL:
        return "control flow"
    if ops & RANDOM:
        return "random numbers"
    if "Dropout" in ops and len(graph.input) > 2:
        return "random numbers"
    for value in [*graph.input, *graph.output]:
        if not value.type.HasField("tensor_type"):
            return "sequences, optionals and maps"
        dtype = value.type.tensor_type.elem_type
        if dtype == TensorProto.STRING:
            return "strings"
        if dtype not in TYPES:
            return f"type {TensorProto.DataType.Name(dtype)}"
    return ""


def since(op, opset):
    return defs.get_schema(op, opset).since_version


def at_least_opset(model):
    """The model at opset 21 or later; None where ONNX's converter cannot."""
    opset = next((o for o in model.opset_import if o.domain in ("", "ai.onnx")), None)
    if opset is None or opset.version >= OPSET:
        return model
    if all(since(node.op_type, opset.version) == since(node.op_type, OPSET) for node in model.graph.node):
        opset.version = OPSET
        return model
    try:
        return version_converter.convert_version(model, OPSET)
    except Exception:
        return None


def operator_of(case, operators):
    """The operator that a case tests: that of the plain case for one whose function body is written out."""
    plain = case.name.split("_expanded")[0]
    return operators.get(plain) or case.model.graph.node[0].op_type


def array_of(value):
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else numpy.asarray(value)


def outputs_of(case):
    """What a case expects. Of an inverse DFT in double: where it is 0, ONNX has 2e-7 left of float32 sums near 1."""
    inputs, outputs = case.data_sets[0]
    node = case.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type != "DFT" or not attributes.get("inverse") or attributes.get("onesided"):
        return outputs
    given = dict(zip(filter(None, node.input), map(array_of, inputs)))
    x = given[node.input[0]]
    read = [given.get(name) for name in node.input] + [None, None]
    axis = attributes.get("axis", 1 if case.model.opset_import[0].version < 20 else -2)
    axis = int(read[2]) if read[2] is not None else axis
    y = numpy.fft.ifft(x[..., 0] + 1j * x[..., 1].astype(float), None if read[1] is None else int(read[1]),
                       axis=axis % x.ndim)  # fmt: skip
    return [numpy.stack([y.real, y.imag], axis=-1).astype(x.dtype)]


def write_case(case, model, folder):
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    inputs, outputs = case.data_sets[0][0], outputs_of(case)
    for kind, values in (("input", inputs), ("output", outputs)):
        for i, value in enumerate(values):
            tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(numpy.asarray(value))
            (folder / f"{kind}_{i}.pb").write_bytes(tensor.SerializeToString())


def main(folder):
    stamp = onnx.__version__ + " " + hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    if (folder / "stamp").exists() and (folder / "stamp").read_text() == stamp:
        return
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cases = load_model_tests(kind="node")
    operators = {case.name: case.model.graph.node[0].op_type for case in cases if "_expanded" not in case.name}
    skipped = collections.Counter()
    lines = []
    for case in cases:
        reason = reason_to_skip(case.model)
        model = None if reason else at_least_opset(case.model)
        if model is None:
            skipped[reason or f"no conversion to opset {OPSET}"] += 1
            continue
        write_case(case, model, folder / case.name)
        op = operator_of(case, operators)
        lines.append(f"{case.name} {op} {case.rtol:g} {case.atol:g}\n")
    (folder / "cases.txt").write_text("".join(sorted(lines)))
    (folder / "skipped.txt").write_text("".join(f"{n} {reason}\n" for reason, n in sorted(skipped.items())))
    (folder / "stamp").write_text(stamp)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
