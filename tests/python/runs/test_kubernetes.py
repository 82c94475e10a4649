"""The manifests of the examples: their fields are those of the operators, and their commands train as one process does."""

import os
import socket
import subprocess

import pytest
import tool
import yaml
from kubernetes_fields import META, SPECS, wrong
from test_mpi import ENVIRONMENT, MODULE, MPIRUN
from test_ranks import BIN, same_files

FOLDER = tool.ROOT / "examples/kubernetes"
MANIFESTS = sorted(path.name for path in FOLDER.glob("*.yaml"))
JOBS = [name for name in MANIFESTS if "job" in name]


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def of_kind(name, kind):
    return next(document for document in documents(name) if document["kind"] == kind)


@pytest.mark.parametrize("name", MANIFESTS)
def test_fields_are_those_of_the_operators(name):
    for document in documents(name):
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        spec = SPECS[document["apiVersion"], document["kind"]]
        assert wrong(document["metadata"], META, "metadata") + wrong(document["spec"], spec, "spec") == []


def test_a_field_that_does_not_exist_is_found():
    job = of_kind("trainjob_torchrun.yaml", "TrainJob")["spec"]
    job["trainer"] |= {"numProcPerNode": "auto", "image": 3, "restarts": 2}
    found = wrong(job, SPECS["trainer.kubeflow.org/v1alpha1", "TrainJob"], "spec")
    assert sorted(line.split(":")[0] for line in found) == ["spec.trainer.image", "spec.trainer.numProcPerNode", "spec.trainer.restarts"]


@pytest.mark.parametrize("name", JOBS)
def test_none_but_the_pods_of_a_job_reach_its_ports(name):
    policy = of_kind(name, "NetworkPolicy")["spec"]
    job = next(d for d in documents(name) if d["kind"] in ("TrainJob", "MPIJob"))
    label = "jobset.sigs.k8s.io/jobset-name" if job["kind"] == "TrainJob" else "training.kubeflow.org/job-name"
    own = {"matchLabels": {label: job["metadata"]["name"]}}
    assert policy == {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}


@pytest.mark.parametrize("name", JOBS)
def test_names_that_a_job_refers_to_exist(name):
    text = (FOLDER / name).read_text()
    assert of_kind("data.yaml", "PersistentVolumeClaim")["metadata"]["name"] == "onnx-train" and "claimName: onnx-train" in text
    if "trainjob" in name:
        reference = of_kind(name, "TrainJob")["spec"]["runtimeRef"]
        runtime = of_kind(name, reference["kind"])
        assert runtime["metadata"]["name"] == reference["name"]
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:  # the operators look for this container
            assert [c["name"] for c in job["template"]["spec"]["template"]["spec"]["containers"]] == ["node"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The volume of the jobs, and a run there that one process made."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "digits_train.npz").symlink_to(tool.ROOT / "models/data/digits_train.npz")
    tool.run("build", tool.ROOT / "models/digits_cnn.onnx", "-o", folder / "train.onnx", "--loss", "cross_entropy", "--accumulate")
    tool.run("fit", folder / "train.onnx", "--data", folder / "digits_train.npz", "--accumulate", 4, "--epochs", 1, "--threads", 1,
             "--out", folder / "one")  # fmt: skip
    return folder


def train(words, data, out, **environment):
    """Runs a job's command with the volume's folder on this machine, for one epoch."""
    words = [str(data / (out if word == "/data/run" else word[6:])) if word.startswith("/data/") else word for word in words]
    words[words.index("--epochs") + 1] = "1"
    path = f"{BIN}:{tool.COMMAND.parent}:{os.environ['PATH']}"
    done = subprocess.run([*words, "--threads", "1"], capture_output=True, text=True, timeout=tool.PATIENCE,
                          env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes share out the 4 batches of a step" in done.stdout
    same_files(data / "one", data / out)


def test_the_command_for_torchrun_trains_with_what_the_operator_says(data):
    """Kubeflow Trainer's PET_ variables, as for one machine with two processes."""
    trainer = of_kind("trainjob_torchrun.yaml", "TrainJob")["spec"]["trainer"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    train(trainer["command"] + trainer["args"], data, "torchrun", PET_NNODES="1", PET_NPROC_PER_NODE="2", PET_NODE_RANK="0",
          PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=str(port))  # fmt: skip


@pytest.mark.parametrize("name", [name for name in JOBS if "mpi" in name])
def test_the_command_for_mpirun_trains_with_the_hostfile_of_an_operator(data, name, tmp_path):
    if not MODULE.exists():
        pytest.skip(f"{MODULE.name} was not built: CMake has found no MPI")
    if not MPIRUN.exists():
        pytest.skip("mpirun is not installed: scripts/bootstrap --tests")
    if name == "mpijob.yaml":
        (container,) = of_kind(name, "MPIJob")["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    else:
        container = of_kind(name, "TrainJob")["spec"]["trainer"]
    (tmp_path / "hostfile").write_text("localhost slots=2\n")
    words = [word.replace("/etc/mpi/hostfile", str(tmp_path / "hostfile")) for word in container["command"] + container["args"]]
    train(words, data, name, **ENVIRONMENT)
