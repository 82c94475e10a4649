"""Dropout's mask is defined to the bit: ONNX Runtime draws what Philox4x32-10 says, as our kernel does."""

import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
import tool

TOOL = tool.BUILD / "tests" / "pass_tool"
LOW = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)


def philox(seed, counter, stream, size):
    """The random words of elements 0 ... size - 1; an implementation of its own, from the paper."""
    block = np.arange((size + 3) // 4, dtype=np.uint64)
    c = [block & LOW, block >> WORD, np.full_like(block, stream), np.full_like(block, counter & 0xFFFFFFFF)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> WORD) ^ c[1] ^ np.uint64(k[0]), p1 & LOW, (p0 >> WORD) ^ c[3] ^ np.uint64(k[1]), p0 & LOW]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1).reshape(-1)[:size]


def keeps(seed, counter, stream, shape, ratio):
    words = philox(seed, counter, stream, int(np.prod(shape)))
    uniform = (words >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
    return (uniform >= np.float32(ratio)).reshape(shape)


def run_tool(*arguments):
    subprocess.run([TOOL, *map(str, arguments)], check=True, timeout=tool.PATIENCE)


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """The step of two Dropouts in a row, on ONNX Runtime, with what they give as outputs."""
    folder = tmp_path_factory.mktemp("dropout")
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,M] x) => (float[N,M] z) <float first = {0.3}, float second = {0.5}> {
          y = Dropout (x, first)
          z = Dropout (y, second)
        }""")
    onnx.save(model, folder / "forward.onnx")
    run_tool("training-mode", folder / "forward.onnx", folder / "train.onnx")
    training = onnx.load(folder / "train.onnx")
    for name in ("train/y", "train/z"):
        training.training_info[0].algorithm.output.add(name=name).type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(training, folder / "train.onnx")
    run_tool("flatten", folder / "train.onnx", folder / "step.onnx", "step")
    return onnxruntime.InferenceSession(folder / "step.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (64, 129), (0, 4)])
@pytest.mark.parametrize("key", [(0, 0), (2**63 + 12345, 2**32 + 7)])
def test_masks_are_those_of_philox(step, shape, key):
    x = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    names = ["train/y", "train/z", "next/state/random_key"]
    y, z, next_key = step.run(names, {"x": x, "state/random_key": np.array(key, np.uint64)})
    np.testing.assert_array_equal(y, np.where(keeps(*key, 0, shape, 0.3), x / np.float32(1 - np.float32(0.3)), 0))
    np.testing.assert_array_equal(z, np.where(keeps(*key, 1, shape, 0.5), y * 2, 0))
    assert next_key.tolist() == [key[0], key[1] + 1]
