"""The CUDA backend, executed on the host, against the CPU: gradients of the zoo's networks, and training."""

import numpy as np
import pytest
import reference
import tool

TOLERANCE = {"float32": 1e-5, "float64": 1e-9}
# A machine of fibers runs the kernels: the networks are as small as their structure allows.
SIZES = {
    "resnet18": dict(batch=2, width=4, size=8),
    "mobilenet": dict(batch=2, width=4),
    "unet": dict(batch=2, width=4),
    "unet_bilinear": dict(batch=2, width=2),
    "deeplab": dict(batch=2, width=2, height=9, columns=10),
    "yolo": dict(batch=2, width=2, size=8),
    "bert": dict(batch=2, width=8),
    "masked_lm": dict(batch=2, width=8),
    "gpt2": dict(width=8),
    "gpt2_tied": dict(width=8),
    "llama": dict(width=8),
    "lstm": dict(batch=2, width=4),
    "gru": dict(batch=2, width=4),
}
NETWORKS = ["mlp", "cnn", "dlrm", *SIZES]


# In float32 the gradient of a bias that batch normalization removes is nothing but rounding.
@pytest.mark.parametrize(
    "name, dtype", [(name, "float64") for name in NETWORKS] + [(name, "float32") for name in ("mlp", "dlrm", "gpt2", "lstm")]
)
def test_gradients_are_those_of_the_cpu(exported, tmp_path, name, dtype):
    example, path = exported(name, **SIZES.get(name, {}))
    inputs = tool.save(tmp_path / "inputs.npz", reference.arrays(example))
    results = {}
    for device in "cpu", "cuda":
        output = tmp_path / f"{device}.npz"
        tool.run("grad", path, "--inputs", inputs, "--loss", example.loss, "-o", output, "--device", device, "--dtype", dtype,
                 command=tool.CUDA_ON_HOST)  # fmt: skip
        results[device] = tool.load(output)
    expected, got = results["cpu"], results["cuda"]
    assert expected.keys() == got.keys()
    floor = 1e-3 * np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for k, g in expected.items() if k.startswith("grad/")))
    errors = {k: reference.distance(got[k], expected[k], floor if k.startswith("grad") else 1e-3) for k in expected}
    wrong = {k: error for k, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not wrong, f"{len(wrong)} of {len(errors)} differ: {wrong}"
