"""Ranks that mpirun starts, and that talk over MPI: as those that talk over Gloo, in bits and in errors."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import tool
from test_ranks import same_files, wait_for_steps

MPIRUN = Path(sys.executable).parent / "mpirun"
MODULE = tool.COMMAND.parent / "libonnx_train_mpi.so"
# As root, and with more processes than cores.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
DATA = tool.ROOT / "models/data/digits_train.npz"


def start(ranks, *command, **environment):
    return subprocess.Popen([MPIRUN, "--oversubscribe", "-np", str(ranks), *map(str, command)], text=True,
                            env=os.environ | ENVIRONMENT | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def finish(process, status=0):
    output, errors = process.communicate(timeout=tool.PATIENCE)
    assert process.returncode == status, output + errors
    return output + errors


@pytest.fixture(scope="module", autouse=True)
def mpi():
    if not MODULE.exists():
        pytest.skip(f"{MODULE.name} was not built: CMake has found no MPI")
    if not MPIRUN.exists():
        pytest.skip("mpirun is not installed: scripts/bootstrap --tests")
    probe = start(2, "true")
    errors = probe.communicate(timeout=tool.PATIENCE)[1]
    if probe.returncode != 0:
        pytest.skip(f"mpirun starts no processes here: {errors.strip()[-200:]}")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "train.onnx"
    tool.run("build", tool.ROOT / "models/digits_cnn.onnx", "-o", path, "--loss", "cross_entropy", "--accumulate")
    return path


def fit(model, out, *options, data=DATA, steps=10):
    return "fit", model, "--data", data, "--batch-size", 8, "--accumulate", 4, "--steps", steps, "--threads", 1, "--out", out, \
        *options  # fmt: skip


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    tool.run(*fit(model, out))
    return out


@pytest.mark.parametrize("ranks, options", [(2, ()), (4, ()), (2, ("--zero", 1))])
def test_ranks_over_mpi_change_no_bit(model, alone, tmp_path, ranks, options):
    printed = finish(start(ranks, tool.COMMAND, *fit(model, tmp_path / "run", *options)))
    assert f"  {ranks} processes share out" in printed and ", over MPI\n" in printed
    same_files(alone, tmp_path / "run")


@pytest.mark.parametrize("ranks", [2, 4])
def test_pipelines_over_mpi_change_no_bit(model, alone, tmp_path, ranks):
    """But for the norm of all gradients, which is that of the same pipelines over Gloo."""
    tool.run(*fit(model, tmp_path / "gloo", "--pipeline", 2, "--devices", ",".join(["cpu"] * ranks)))
    printed = finish(start(ranks, tool.COMMAND, *fit(model, tmp_path / "mpi", "--pipeline", 2)))
    assert f"  {ranks} processes, stages" in printed and ", over MPI\n" in printed
    same_files(tmp_path / "gloo", tmp_path / "mpi")
    assert (alone / "last.onnx").read_bytes() == (tmp_path / "mpi/last.onnx").read_bytes()


def test_gloo_is_there_as_before(model, alone, tmp_path):
    given = finish(start(2, tool.COMMAND, *fit(model, tmp_path / "given", "--transport", "gloo")))
    said = finish(start(2, tool.COMMAND, *fit(model, tmp_path / "said"), ONNX_TRAIN_TRANSPORT="tcp"))  # its name of before
    for printed, name in (given, "given"), (said, "said"):
        assert "2 processes share out" in printed and "over MPI" not in printed
        same_files(alone, tmp_path / name)


def test_a_program_in_python(tmp_path):
    """Its ranks end with the interpreter, and mpirun takes none for failed."""
    program = f"""
        import sys
        sys.path[:0] = {[str(tool.COMMAND.parent / "python")]!r}
        import numpy as np, onnx_train
        data = {{name: array[:64] for name, array in np.load({str(DATA)!r}).items()}}
        model = onnx_train.build({str(tool.ROOT / "models/digits_cnn.onnx")!r}, "cross_entropy", accumulate=True)
        ranks = dict(ranks="environment") if sys.argv[1] == "two" else dict(accumulate=2)
        history = onnx_train.fit(model, data, epochs=1, batch_size=8, threads=1, folder={str(tmp_path)!r} + "/" + sys.argv[1], **ranks)
        print("libmpi" in open("/proc/self/maps").read(), history.session.ranks)
    """
    command = sys.executable, "-c", textwrap.dedent(program)
    assert finish(start(2, *command, "two")).split() == ["True", "2"] * 2
    assert finish(start(1, *command, "one")).split() == ["False", "1"]
    assert (tmp_path / "one/last.onnx").read_bytes() == (tmp_path / "two/last.onnx").read_bytes()


def test_the_collectives():
    """Exchanges, messages, pieces, how ranks end: C++ tests, which use MPI beside the ranks."""
    tests = tool.COMMAND.parent / "tests/mpi_tests"
    if not tests.exists():
        pytest.skip("mpi_tests was not built")
    printed = finish(start(3, tests, "--gtest_color=no"))
    assert printed.count("[  PASSED  ] 19 tests.") == 3, printed
    printed = finish(start(2, tests, "--gtest_color=no", MPI_TESTS_ONE_THREAD="1"))
    assert printed.count("[  PASSED  ] 1 test.") == 2, printed


# ---- Failures


def said(printed):
    """The error of each rank. mpirun ends the others when one has ended, which may be before they have said theirs."""
    return {int(rank or 0): text for rank, text in re.findall(r"^(?:rank (\d): )?onnx-train: (.*)$", printed, re.M)}


def test_a_rank_that_fails_ends_all_with_its_reason(model, tmp_path):
    arrays = tool.load(DATA)
    arrays["labels"][8:16] = 1000  # the first batch of rank 1
    bad = tool.save(tmp_path / "bad.npz", arrays)
    options = "--no-shuffle", "--no-data-check"
    printed = finish(start(3, tool.COMMAND, *fit(model, tmp_path / "run", *options, data=bad)), status=1)
    reasons = said(printed)
    assert reasons and all("1000" in reason for reason in reasons.values()), printed
    for rank in reasons.keys() - {1}:
        assert "rank 1 has ended: " in reasons[rank], printed
    assert len(reasons) > 1, printed  # a rank that fails waits until the others have heard why


def test_ranks_with_other_data_do_not_begin(model, tmp_path):
    arrays = tool.load(DATA)
    other = tool.save(tmp_path / "other.npz", {name: value[::-1] for name, value in arrays.items()})
    commands = [[tool.COMMAND, *fit(model, tmp_path / "run", data=data)] for data in (DATA, other)]
    printed = finish(start(1, *commands[0], ":", "-np", "1", *commands[1]), status=1)
    reasons = set(said(printed).values())
    assert reasons == {"rank 1 has other settings or data than rank 0: give all ranks the same command, and the same files [OT9001]"}, printed
    assert not (tmp_path / "run").exists()


def rank_of(pid):
    """Of a process of the command that mpirun has started; none where it is something else, or gone."""
    try:
        if Path(f"/proc/{pid}/exe").resolve() != tool.COMMAND.resolve():
            return None
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(v.split(b"=")[1]) for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")), None)


def children(pid):
    """And theirs."""
    found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return found + [grandchild for child in found for grandchild in children(child)]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_all(model, tmp_path, victim):
    process = start(2, tool.COMMAND, *fit(model, tmp_path / "run", "--checkpoint-every", 2, steps=100_000))
    wait_for_steps(tmp_path / "run", 4, [process])
    ranks = {rank_of(pid): pid for pid in children(process.pid)}
    os.kill(ranks[victim], signal.SIGKILL)
    killed = time.monotonic()
    output, errors = process.communicate(timeout=tool.PATIENCE)
    assert time.monotonic() - killed < 10 and process.returncode != 0, output + errors
    assert (tmp_path / "run/last.onnx").exists()


def test_mpi_where_it_cannot_be(model, tmp_path):
    options = fit(model, tmp_path / "run", "--transport", "mpi")
    alone = "--transport mpi is for several processes that mpirun starts: mpirun -np 2 onnx-train fit ..."
    assert tool.run(*options, status=2) == f"onnx-train: {alone}\n"
    assert alone in tool.run(*options, "--devices", "cpu,cpu", status=2)
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    done = subprocess.run([tool.COMMAND, *map(str, options)], env=os.environ | torchrun, text=True, capture_output=True, timeout=60)
    assert done.returncode == 1 and "torchrun has started these: start them with mpirun, or take gloo\n" in done.stderr, done
    assert not (tmp_path / "run").exists()


def test_without_a_library_of_mpi(model, alone, tmp_path):
    """Gloo takes its place, unless MPI is asked for by name. Beside a copy of the library is a module that does not load."""
    for name in "onnx-train", "libonnx_train.so.0", "libdnnl.so.3", "libonnxtrain_spin_limit.so", "libonnx_train_gloo.so":
        shutil.copy(tool.COMMAND.parent / name, tmp_path)
    (tmp_path / MODULE.name).write_text("no library")
    there = {"LD_LIBRARY_PATH": str(tmp_path)}
    printed = finish(start(2, tmp_path / "onnx-train", *fit(model, tmp_path / "auto"), **there))
    assert "2 processes share out" in printed and "over MPI" not in printed
    same_files(alone, tmp_path / "auto")
    command = tmp_path / "onnx-train", *fit(model, tmp_path / "mpi", "--transport", "mpi")
    printed = finish(start(2, *command, **there), status=1)
    assert "onnx-train: the transport 'mpi': " in printed and "install the library that is missing" in printed, printed
    (tmp_path / MODULE.name).unlink()
    printed = finish(start(2, *command, **there), status=1)
    assert "onnx-train: the transport 'mpi' is not in this installation: build it where CMake finds an MPI" in printed, printed
