"""The Slurm script of the examples, with a srun that starts its processes on this machine, and a scontrol that says what it is told."""

import os
import signal
import subprocess
import sys
import time

import tool
from test_ranks import same_files, wait_for_steps

SCRIPT = tool.ROOT / "examples/slurm/train.sbatch"
# Passes SIGTERM on to its processes, as srun does, and ends with the greatest status of them.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
command = sys.argv[1:]
while command[0].startswith("--"):
    command.pop(0)
size = os.environ["SLURM_NTASKS"]
place = dict(SLURM_STEP_NUM_TASKS=size, SLURM_NTASKS_PER_NODE=size, SLURM_STEP_NODELIST="127.0.0.1", SLURM_STEP_ID="0")
ranks = []
signal.signal(signal.SIGTERM, lambda *_: [rank.send_signal(signal.SIGTERM) for rank in ranks])
for rank in range(int(size)):
    ranks.append(subprocess.Popen(command, env=os.environ | place | dict(SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))))
sys.exit(max(rank.wait() for rank in ranks))
"""
SCONTROL = '#!/bin/sh\necho "$@" >> scontrol.log\n'


def submit(folder, *options, job="17"):
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in ("srun", SRUN), ("scontrol", SCONTROL):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{tool.COMMAND.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": job, "SLURM_NTASKS": "2",
        "SLURM_CPUS_PER_TASK": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.Popen(["bash", SCRIPT, *map(str, options)], cwd=folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def finish(job, status=0):
    printed = job.communicate(timeout=tool.PATIENCE)[0]
    assert job.returncode == status, printed
    return printed


def training(folder, steps):
    model, data = folder / "train.onnx", tool.ROOT / "models/data/digits_train.npz"
    if not model.exists():
        tool.run("build", tool.ROOT / "models/digits_cnn.onnx", "-o", model, "--loss", "cross_entropy", "--accumulate")
    return model, "--data", data, "--batch-size", 8, "--accumulate", 2, "--steps", steps


def test_a_job_that_is_told_to_stop_saves_and_is_queued_again(tmp_path):
    options = training(tmp_path, 400)
    first = submit(tmp_path, *options, "--out", "run")
    wait_for_steps(tmp_path / "run", 3, [first])
    first.send_signal(signal.SIGTERM)
    finish(first)
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"
    done = tool.metrics(tmp_path / "run")[-1]["step"]
    assert 0 < done < 400

    assert "resumed from last.onnx" in finish(submit(tmp_path, *options, "--out", "run"))
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"  # a job that is done is not queued again
    finish(submit(tmp_path, *options, "--out", "whole"))
    same_files(tmp_path / "whole", tmp_path / "run")


def test_a_job_that_fails_says_so_and_is_not_queued_again(tmp_path):
    model, _, _, *options = training(tmp_path, 2)
    assert "none.npz" in finish(submit(tmp_path, model, "--data", "none.npz", *options, "--out", "run"), status=1)
    assert not (tmp_path / "scontrol.log").exists()


def test_a_process_that_is_told_twice_to_stop_saves(tmp_path):
    """By the launcher and by the system: Slurm's srun, torchrun and Kubernetes do so."""
    started = tool.start("fit", *training(tmp_path, 100000), "--out", tmp_path / "run", "--threads", 1)
    wait_for_steps(tmp_path / "run", 3, [started])
    for _ in range(3):
        started.terminate()
        time.sleep(0.001)
    assert started.wait(timeout=tool.PATIENCE) == 130
    lines = tool.metrics(tmp_path / "run")
    resumed = tool.run("fit", *training(tmp_path, lines[-1]["step"] + 1), "--out", tmp_path / "run", "--resume")
    assert f"resumed from last.onnx at step {lines[-1]['step']}" in resumed
