"""Ranks on GPUs: CUDA and NCCL on the host, a process a rank."""

import itertools
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
import tool

OPTIONS = "--batch-size", 3, "--lr", 0.01, "--seed", 5
SECONDS = 10  # in which ranks end when one has


def gpus(count=2, *options):
    return "--devices", ",".join(f"cuda:{i}" for i in range(count)), *options


GPUS = gpus()
STAGES = gpus(2, "--pipeline", 2)


@pytest.fixture(scope="module")
def digits(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    example, path = exported("cnn", train=True)
    (folder / "cnn.onnx").write_bytes(path.read_bytes())
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", "cross_entropy", "--accumulate", "--clip", 1)
    return folder / "train.onnx", tool.save(folder / "data.npz", reference.repeated(example, 9))


def line(digits, out, *options):
    model, data = digits
    accumulate = () if "--accumulate" in options else ("--accumulate", 2)
    return tuple(map(str, ("fit", model, "--data", data, *OPTIONS, *accumulate, "--out", out, *options)))


def start(arguments, **environment):
    return subprocess.Popen([tool.CUDA_ON_HOST, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=os.environ | {"OMP_NUM_THREADS": "1", "GPU_HOST_DEVICES": "4"} | environment)  # fmt: skip


def run(arguments, **environment):
    process = start(arguments, **environment)
    output, errors = process.communicate(timeout=tool.PATIENCE)
    return process.returncode, output, errors


def weights(run):
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(run / "last.onnx").graph.initializer}


def same_runs(one, other, tolerance=1e-5, states=True):
    """Losses within the tolerance, and weights and states, relative to their largest element."""
    losses = [[step["loss"] for step in tool.metrics(run)] for run in (one, other)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=tolerance)
    values, others = weights(one), weights(other)
    for name, value in values.items():
        if name.startswith("state/") and not states:
            continue
        largest = np.abs(value).max(initial=0)
        np.testing.assert_allclose(others[name], value, rtol=0, atol=tolerance * largest, err_msg=name)


@pytest.fixture(scope="module")
def alone(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    assert run(line(digits, out, "--steps", 4, "--device", "cuda"))[0] == 0
    return out


@pytest.mark.parametrize("options", [(), ("--zero", 1), ("--zero", 2)], ids=["data", "zero 1", "zero 2"])
def test_two_gpus_train_as_one_that_accumulates(digits, alone, tmp_path, options):
    status, printed, errors = run(line(digits, tmp_path / "run", "--steps", 4, *GPUS, *options))
    assert status == 0, errors
    assert "2 processes" in printed and "device         cuda" in printed
    same_runs(alone, tmp_path / "run")


def test_a_step_of_several_rounds_has_plans_that_share_memory(tmp_path):
    """The memory of one rank grows when it plans the last round, and that of another does not: both exchange as often."""
    tool.run("build", tool.ROOT / "models/digits_cnn.onnx", "-o", tmp_path / "train.onnx", "--loss", "cross_entropy", "--accumulate", "--optimizer", "sgd")
    model = tmp_path / "train.onnx", tool.ROOT / "models/data/digits_train.npz"
    options = "--accumulate", 4, "--steps", 3
    status, _, errors = run(line(model, tmp_path / "run", *options, *GPUS))
    assert status == 0, errors
    assert run(line(model, tmp_path / "one", *options, "--device", "cuda"))[0] == 0
    same_runs(tmp_path / "one", tmp_path / "run")


@pytest.mark.parametrize("options", [("--zero", 1), ("--pipeline", 2)], ids=["zero 1", "2 stages"])
def test_each_gpu_offloads_the_states_that_it_keeps(digits, tmp_path, options):
    for out, offload in ("without", "none"), ("offloaded", "optimizer"):
        status, printed, errors = run(line(digits, tmp_path / out, "--steps", 3, *GPUS, *options, "--offload", offload))
        assert status == 0, errors
        assert ("optimizer's states in the host's memory" in printed) == (offload == "optimizer")
    assert (tmp_path / "without" / "last.onnx").read_bytes() == (tmp_path / "offloaded" / "last.onnx").read_bytes()


@pytest.mark.parametrize("count, stages", [(2, 2), (3, 3), (4, 2)], ids=["2 stages", "3 stages", "mesh"])
def test_stages_on_gpus_train_as_one_gpu(digits, tmp_path, count, stages):
    """With evaluations, whose batches go through the stages, too."""
    options = "--steps", 3, "--accumulate", 4, "--eval-data", digits[1]
    assert run(line(digits, tmp_path / "one", *options, "--device", "cuda"))[0] == 0
    # Adam makes steps of full size of the rounding of gradients that are 0, as of a bias before batch normalization.
    exact = gpus(count, "--pipeline", stages, "--reduction", "exact")
    status, printed, errors = run(line(digits, tmp_path / "run", *options, *exact))
    assert status == 0, errors
    assert f"{count} processes, stages " in printed and "device         cuda" in printed
    same_runs(tmp_path / "one", tmp_path / "run", 1e-6)


@pytest.mark.parametrize("ranks, tolerance", [(gpus(4, "--pipeline", 2), 1e-5), (gpus(2, "--reduction-type", "bf16"), 2e-2)],
                         ids=["mesh", "bf16"])  # fmt: skip
def test_gpus_add_up_once_a_step(digits, tmp_path, ranks, tolerance):
    tool.run("build", digits[0].parent / "cnn.onnx", "-o", tmp_path / "t.onnx", "--loss", "cross_entropy", "--accumulate",
             "--optimizer", "sgd(momentum=0.9)")  # fmt: skip
    options = "--steps", 3, "--accumulate", 4
    given = tmp_path / "t.onnx", digits[1]
    assert run(line(given, tmp_path / "one", *options, "--device", "cuda"))[0] == 0
    status, printed, errors = run(line(given, tmp_path / "run", *options, *ranks, "--reduction", "fast"))
    assert status == 0, errors
    assert "once a step" in printed
    same_runs(tmp_path / "one", tmp_path / "run", tolerance, states=False)


def test_each_axis_of_a_mesh_has_a_communicator(digits, tmp_path):
    """Two pipelines of two stages: one for ranks of a stage, one for a pipeline, one for each direction in it."""
    trace = tmp_path / "trace"
    options = "--steps", 1, "--accumulate", 4, *gpus(4, "--pipeline", 2)
    status, _, errors = run(line(digits, tmp_path / "run", *options), GPU_HOST_NCCL_TRACE=str(trace))
    assert status == 0, errors
    exchanges = [each.split() for each in trace.read_text().splitlines()]
    for rank in "0123":
        calls = {}  # by communicator
        for _, communicator, size, call in (each for each in exchanges if each[0] == rank):
            assert size == "2"  # none is of all ranks
            calls.setdefault(communicator, set()).add(call)
        assert len(calls) == 4
        (sums,) = (c for c in calls if "ncclAllReduce" in calls[c])
        assert calls[sums] <= {"ncclAllReduce", "ncclAllGather"}
        assert sorted(min(calls[c]) for c in calls if calls[c] & {"ncclSend", "ncclRecv"}) == ["ncclRecv", "ncclSend"]
        assert all(len(calls[c]) == 1 for c in calls if calls[c] & {"ncclSend", "ncclRecv"})


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_gpt_with_tied_embeddings_trains_in_stages(exported, tmp_path, precision):
    """The first stage sends the embedding to the last one, and gets its gradient from there."""
    example, path = exported("gpt2")
    data = tool.save(tmp_path / "data.npz", reference.repeated(example, 8))
    options = "--precision", precision, "--optimizer", "sgd(momentum=0.9)"
    tool.run("build", path, "-o", tmp_path / "train.onnx", "--loss", example.loss, "--accumulate", *options)
    runs = {"one": ("--device", "cuda"), "two": STAGES}
    if precision == "float32":
        runs |= {"three": gpus(3, "--pipeline", 3), "mesh": gpus(4, "--pipeline", 2)}
    for name, devices in runs.items():
        status, _, errors = run(line((tmp_path / "train.onnx", data), tmp_path / name, "--accumulate", 5, "--steps", 2, *devices))
        assert status == 0, errors
        same_runs(tmp_path / "one", tmp_path / name, *((1e-6,) if precision == "float32" else (1e-2, False)))


def graphs(trace):
    """The nodes of each graph that a process has captured, as (lane, what, event)."""
    for text in trace.read_text().split("graph\n")[1:]:
        yield [(int(lane), what, int(event) if event else None)
               for lane, what, event in ((each + " ").split(" ")[:3] for each in text.splitlines())]  # fmt: skip


def test_sums_of_gradients_run_beside_the_backward_pass(digits, tmp_path):
    """In the captured graph a sum begins where its gradient is ready, and kernels follow that do not wait for it."""
    trace = tmp_path / "trace"
    assert run(line(digits, tmp_path / "run", "--steps", 2, *GPUS), GPU_HOST_TRACE=str(trace))[0] == 0
    beside = []
    for nodes in graphs(trace):
        if not any(lane == 1 for lane, _, _ in nodes):
            continue
        ends = {event: at for at, (lane, what, event) in enumerate(nodes) if lane == 0 and what == "waits"}
        begun = None
        for at, (lane, what, event) in enumerate(nodes):
            if lane == 1 and what == "work":
                begun = at
            if lane == 1 and what == "records" and begun is not None:
                beside.append(sum(node[:2] == (0, "work") for node in nodes[begun : ends[event]]))
    assert len(beside) > 6
    assert sum(kernels >= 3 for kernels in beside) >= 4, beside


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("devices", [GPUS, STAGES], ids=["data", "stages"])
def test_each_call_of_nccl_that_fails_ends_all_ranks(digits, tmp_path, devices, rank):
    """One line of each rank, that says what has failed; and nothing hangs."""
    for call in itertools.chain(range(3), itertools.count(3, step=9)):
        out = tmp_path / str(call)
        begin = time.monotonic()
        status, _, errors = run(line(digits, out, "--steps", 1, *devices), GPU_HOST_NCCL_FAILS=f"{rank}:{call}")
        if status == 0:
            break
        assert status == 1 and errors.count("\n") == 2, errors
        assert errors.count("NCCL: ") >= 1 and "unhandled system error" in errors, errors
        if (out / "last.onnx").exists():  # the state before the first step
            onnx.checker.check_model(out / "last.onnx")
        assert time.monotonic() - begin < 6 * SECONDS
    assert call > 20


@pytest.mark.parametrize("devices", [GPUS, STAGES], ids=["data", "stages"])
def test_a_rank_that_is_killed_ends_the_other(digits, tmp_path, devices):
    out = tmp_path / "run"
    process = start(line(digits, out, "--steps", 100000, "--checkpoint-every", 1, *devices))
    end = time.monotonic() + tool.PATIENCE
    while not (out / "last.onnx").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    killed = time.monotonic()
    _, errors = process.communicate(timeout=tool.PATIENCE)
    assert time.monotonic() - killed < SECONDS
    assert process.returncode == 1 and errors.count("\n") == 1
    assert "rank 1 " in errors and "is gone" in errors or "NCCL: " in errors, errors
    onnx.checker.check_model(out / "last.onnx")


def test_without_nccl_ranks_say_what_to_install(digits, tmp_path):
    status, _, errors = run(line(digits, tmp_path / "run", "--steps", 1, *GPUS), GPU_HOST_NCCL="off")
    assert status == 1 and "pip install nvidia-nccl-cu13" in errors
    status, _, errors = run(line(digits, tmp_path / "run", "--steps", 1, "--devices", "cuda:0,cuda"))
    assert status == 2 and "given twice" in errors


def test_each_rank_writes_its_shard_of_a_checkpoint(digits, tmp_path):
    """From the memory of its GPU: the same bits that rank 0 collects."""
    states = []
    for shards in "off", "on":
        arguments = line(digits, tmp_path / shards, "--steps", 4, "--checkpoint-every", 2, *gpus(2, "--zero", 3), "--checkpoint-shards", shards)
        status, _, errors = run(arguments)
        assert status == 0, errors
        assert len(list((tmp_path / shards).glob("step-*/*.data"))) == (2 if shards == "on" else 0)
        model = onnx.load(tmp_path / shards / "last.onnx", load_external_data=False)
        graphs = [model.graph, *(info.algorithm for info in model.training_info)]
        states.append({t.name: onnx.numpy_helper.to_array(t, str(tmp_path / shards)) for graph in graphs for t in graph.initializer})
    assert states[0].keys() == states[1].keys()
    assert [name for name in states[0] if states[0][name].tobytes() != states[1][name].tobytes()] == []


@pytest.mark.parametrize("count, options", [(2, ()), (4, ()), (4, ("--zero", 1))], ids=["a group", "a mesh", "zero 1"])
def test_ranks_compute_products_together(tmp_path, count, options):
    build = "--accumulate", "--clip", 1, "--optimizer", "sgd(lr=0.1, momentum=0.9)"
    tool.run("build", tool.ROOT / "tests/fixtures/mlp.onnx", "-o", tmp_path / "train.onnx", *build)
    x = np.random.default_rng(0).standard_normal((36, 4)).astype(np.float32)
    model = tmp_path / "train.onnx", tool.save(tmp_path / "data.npz", {"x": x, "labels": x[:, :3].argmax(1)})
    printed = []
    for name, devices in ("one", ("--device", "cuda")), ("many", gpus(count, "--tensor-parallel", 2, *options)):
        status, output, errors = run(line(model, tmp_path / name, "--epochs", 2, *devices))
        assert status == 0, errors
        printed.append(" ".join(output.split()))
    assert "2 compute together 2 of 2 products and lookups, 85% of the trained weights" in printed[1], printed[1]
    assert ("in 2 groups that share out the 2 batches of a step" in printed[1]) == (count == 4)
    assert ("and the states of the optimizer" in printed[1]) == bool(options)
    same_runs(tmp_path / "one", tmp_path / "many")
