"""The CUDA backend, executed on the host, against the CPU: gradients of the networks of models/networks.py, and training."""

import json
import re
import shutil

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


def test_devices_have_numbers():
    """The host pretends two."""
    listed = tool.run("devices", command=tool.CUDA_ON_HOST).splitlines()
    assert [line.split()[0] for line in listed if line[:1] != " "] == ["cpu", "cuda:0", "cuda:1"]


@pytest.fixture(scope="module")
def training(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    example, path = exported("mlp", sizes=(20, 16, 16, 5))
    tool.run("build", path, "-o", folder / "train.onnx")
    return folder / "train.onnx", tool.save(folder / "data.npz", reference.arrays(example))


def bench(training, device, *options, **keywords):
    model, data = training
    return tool.run("bench", model, "--data", data, "--batch-size", 6, "--seconds", 0.05, "--device", device, *options,
                    command=tool.CUDA_ON_HOST, **keywords)  # fmt: skip


def test_a_device_that_is_not_there_is_one_line(training):
    line = "there is no device 'cuda:7': this machine has 2, cuda:0 to cuda:1 [OT8003]\n"
    output = bench(training, "cuda:7", status=1)
    assert output.endswith(line) and output.count("\n") == 1
    assert "a number follows the colon, as in cuda:0" in bench(training, "cuda:first", status=1)


def test_bench_measures_the_sessions_device(training):
    cpu, first, second = (json.loads(bench(training, device, "--json")) for device in ("cpu", "cuda:0", "cuda:1"))
    assert [report["device"] for report in (cpu, first, second)] == ["cpu", "cuda", "cuda:1"]
    # The process has tens of megabytes, the device what the session put there.
    assert cpu["peak_memory_bytes"] > 10e6
    for report in first, second:
        parts = [report[name] for name in ("state_bytes", "arena_bytes", "constant_bytes", "other_bytes")]
        assert sum(parts) == report["peak_memory_bytes"] < 10e6 and min(parts[:2]) > 0
        assert 0 <= report["workspace_bytes"] <= report["arena_bytes"]
        # On a machine of fibers; a copy from the host in each run would be most of these times.
        assert 0 < report["peak_gflops"]["float"] and 0 < report["peak_gigabytes_per_second"]
        assert report["peak_gigabytes_per_second"] < cpu["peak_gigabytes_per_second"]
    table = bench(training, "cuda:1")
    assert "peak memory of cuda:1" in table and "inputs, outputs, libraries" in table


def test_offload_takes_the_states_bytes_from_the_device(training):
    """The rest of a step has the memory that it had."""
    without, offloaded = (json.loads(bench(training, "cuda", "--json", *options)) for options in ((), ("--offload", "optimizer")))
    moved = offloaded["host_state_bytes"]
    assert without["host_state_bytes"] == 0 < moved
    assert moved >= 2 / 3 * 0.9 * without["state_bytes"]  # AdamW: two moments of three tensors
    for name in "state_bytes", "peak_memory_bytes":
        assert without[name] - offloaded[name] == moved
    for name in "arena_bytes", "constant_bytes", "other_bytes":
        assert without[name] == offloaded[name]
    assert "states in the host's memory" in bench(training, "cuda", "--offload", "optimizer")
    line = "offload moves the optimizer's states from a GPU's memory to the host's, where cpu has them; leave it out\n"
    assert bench(training, "cpu", "--offload", "optimizer", status=1).endswith(line)


@pytest.mark.parametrize("name, build, options", [
    ("mlp", ("--optimizer", "adamw8bit(min_8bit_size=1)"), ()),
    ("cnn", ("--optimizer", "sgd(momentum=0.9)"), ("--tf32",)),
    ("cnn", ("--ema", 0.9, "--accumulate", "--precision", "bf16"), ("--accumulate", 2)),
])  # fmt: skip
def test_a_run_goes_on_with_another_choice_of_offload(exported, tmp_path, name, build, options):
    """In bits, with evaluations and checkpoints; what is not given stays."""
    example, path = exported(name, **(dict(train=True) if name == "cnn" else {}))
    data, model = tool.save(tmp_path / "data.npz", reference.repeated(example, batches=2)), tmp_path / "train.onnx"
    tool.run("build", path, "-o", model, "--loss", example.loss, *build)

    def fit(out, steps, *more):
        return tool.run("fit", model, "--data", data, "--eval-data", data, "--steps", steps, "--batch-size", 6, "--lr", 2**-7, "--schedule",
                        "constant", "--device", "cuda", "--out", tmp_path / out, *options, *more, command=tool.CUDA_ON_HOST)  # fmt: skip

    fit("whole", 4)
    printed = fit("first", 2, "--offload", "optimizer")
    assert re.search(r"offload +\S+ \w*B of the optimizer's states in the host's memory; a step reads and writes them there, at least "
                     r"\S+ ms at the \S+ GB/s of a copy to cuda", printed)  # fmt: skip
    assert json.loads((tmp_path / "first" / "options.json").read_text())["derived"]["memory"]["states in the host's memory"] > 0
    for folder in "same", "back":
        shutil.copytree(tmp_path / "first", tmp_path / folder)
    assert "in the host's memory" in fit("same", 4, "--resume")
    assert "in the host's memory" not in fit("back", 4, "--resume", "--offload", "none")
    for folder in "same", "back":
        assert (tmp_path / folder / "last.onnx").read_bytes() == (tmp_path / "whole" / "last.onnx").read_bytes()
    assert np.array_equal(tool.losses(tmp_path / "back"), tool.losses(tmp_path / "whole"))


def test_bench_counts_its_seconds_from_the_end_of_the_warm_up(training):
    """The first plan takes longer than all the seconds that are asked for."""
    steps = [json.loads(line) for line in bench(training, "cuda", "--each-step").splitlines()[1:]]
    assert steps[0]["ms"] > steps[-1]["ms"] and len(steps) >= 3 + 2
    # The seconds end after the last line is written, so its time is a little earlier.
    assert steps[-1]["end"] - steps[2]["end"] > 0.05 / 2


@pytest.mark.parametrize("name, optimizer, node", [
    ("dlrm", "sparse_adam", "SparseAdamRows"), ("mlp", "adamw8bit(min_8bit_size=1)", "AdamW8bit"),
])  # fmt: skip
def test_training_is_that_of_the_cpu(exported, tmp_path, name, optimizer, node):
    example, path = exported(name, **(dict(rows=40) if name == "dlrm" else {}))
    data, model = reference.repeated(example, batches=3), tmp_path / "train.onnx"
    if name == "dlrm":
        data["labels"] = (data["labels"] > 0).astype(data["labels"].dtype)
    tool.run("build", path, "-o", model, "--loss", example.loss, "--optimizer", optimizer)
    losses = {}
    for device in "cpu", "cuda":
        tool.run("fit", model, "--data", tool.save(tmp_path / "data.npz", data), "--steps", 8, "--batch-size", 6, "--lr", 2**-7,
                 "--schedule", "constant", "--no-shuffle", "--dtype", "float64", "--device", device, "--out",
                 tmp_path / device, command=tool.CUDA_ON_HOST)  # fmt: skip
        assert node in tool.run("show", model, "--plan", "--batch", 6, "--device", device, command=tool.CUDA_ON_HOST)
        losses[device] = tool.losses(tmp_path / device)
    assert np.ptp(losses["cpu"]) > 0.01
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-9)


def test_compile_fills_a_folder(training, tmp_path, monkeypatch):
    """On the host generated kernels are not in the cache; choices are, if they are made."""
    model, data = training
    folder = tmp_path / "a folder" / "train.kernels"
    compile_ = ["compile", model, "--device", "cuda", "--batch-size", 6, "-o", folder]
    monkeypatch.setenv("ONNX_TRAIN_TIMED_CHOICES", "60")
    printed = tool.run(*compile_, command=tool.CUDA_ON_HOST).splitlines()
    assert [line.split(":")[0] for line in printed[:-1]] == ["evaluate", "predict", "step"]
    choices = sorted(folder.glob("cuda/*.choice"))
    assert choices and printed[-1].startswith(f"{folder}: {len(choices)} choice, in ")
    before = [path.stat().st_mtime_ns for path in choices]
    monkeypatch.setenv("ONNX_TRAIN_CACHE", str(folder))
    bench(training, "cuda")
    assert sorted(folder.glob("cuda/*.choice")) == choices
    assert [path.stat().st_mtime_ns for path in choices] == before, "a choice was made again"
    tool.run("compile", tmp_path / "no.onnx", "-o", tmp_path / "new", "--device", "cuda", command=tool.CUDA_ON_HOST, status=1)
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    for arguments, message in (
        ([*compile_[:-1], tmp_path / "file"], "cannot be made"),
        ([*compile_, "--dim", "nothing=3"], "nothing"),
    ):
        assert message in tool.run(*arguments, command=tool.CUDA_ON_HOST, status=1)


def test_fit_says_how_it_computes(training, tmp_path):
    model, data = training
    fit = ["fit", model, "--data", data, "--steps", 1, "--batch-size", 6]
    for options, expected in (
        (["--device", "cuda"], "cuda, 1 threads\n"),
        (["--device", "cuda", "--tf32", "--deterministic", "off"],
         "cuda, 1 threads, products of float32 in TF32, not deterministic: sums in any order\n"),
        (["--tf32", "--deterministic", "off"], "cpu, 1 threads\n"),
    ):  # fmt: skip
        printed = tool.run(*fit, *options, "--out", tmp_path / str(len(options)), command=tool.CUDA_ON_HOST)
        assert f"device         {expected}" in printed, printed
    assert "on or off" in tool.run(*fit, "--deterministic", "maybe", "--out", tmp_path / "run", status=2)


@pytest.mark.parametrize("name, precision", [("lstm", "float32"), ("lstm", "bf16"), ("gru", "float32")])
def test_persistent_recurrent_kernels_train_like_the_cpu(exported, tmp_path, monkeypatch, name, precision):
    """Two directions of 24 units on 16 multiprocessors: blocks wait for each other, in whatever order they run."""
    example, path = exported(name, batch=6, width=24, layers=1, tokens=4, bidirectional=True)
    data, model = reference.repeated(example, batches=2), tmp_path / "train.onnx"
    tool.run("build", path, "-o", model, "--loss", example.loss, "--precision", precision)
    data = tool.save(tmp_path / "data.npz", data)

    def train(folder, device, order=""):
        monkeypatch.setenv("GPU_HOST_ORDER", order)
        tool.run("fit", model, "--data", data, "--steps", 5, "--batch-size", 6, "--lr", 2**-7, "--schedule", "constant",
                 "--no-shuffle", "--device", device, "--out", tmp_path / folder, command=tool.CUDA_ON_HOST)  # fmt: skip
        return tool.losses(tmp_path / folder)

    expected = train("cpu", "cpu")
    monkeypatch.setenv("GPU_HOST_PROCESSORS", "16")
    monkeypatch.setenv("ONNX_TRAIN_TIMED_CHOICES", "form=1")
    plan = tool.run("show", model, "--plan", "--batch", 6, "--device", "cuda", command=tool.CUDA_ON_HOST)
    assert plan.count("one kernel of") == 2, plan
    losses = train("cuda", "cuda")
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(losses, expected, rtol=1e-6 if precision == "float32" else 1e-3)
    for order in "backwards", "7":
        np.testing.assert_array_equal(train(f"cuda_{order}", "cuda", order), losses)
