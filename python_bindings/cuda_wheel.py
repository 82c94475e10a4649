"""Makes the wheel onnx-train-cuda: the device module, which is installed into the folder of the package onnx_train.

    cuda_wheel.py libonnx_train_cuda.so onnx_train-VERSION-....whl FOLDER

It has the version of the wheel that is given, requires it, and fits no other one. scripts/wheel calls this.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# Where pip puts NVIDIA's libraries, seen from the module.
LIBRARIES = "$ORIGIN:$ORIGIN/../nvidia/cu13/lib:$ORIGIN/../nvidia/cudnn/lib"


def requirements(version):
    """The library of the same build, and NVIDIA's of the versions that cuda-requirements.txt builds with."""
    lines = (REPOSITORY / "cuda-requirements.txt").read_text().split()
    toolkit = next(line.split("==")[1] for line in lines if line.startswith("cuda-toolkit"))
    cudnn = next(line.split("==")[1] for line in lines if line.startswith("nvidia-cudnn-cu"))
    major = toolkit.split(".")[0]
    return [
        f"onnx-train=={version}",
        f"cuda-toolkit[cublas,nvrtc]>={toolkit},<{int(major) + 1}",
        f"nvidia-cudnn-cu{major}>={cudnn},<10",
    ]


def metadata_of(package):
    with zipfile.ZipFile(package) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def with_run_path(module):
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / module.name
        shutil.copy(module, copy)
        subprocess.run(["patchelf", "--set-rpath", LIBRARIES, copy], check=True)
        return copy.read_bytes()


def make(module, package, folder):
    version = metadata_of(package)["Version"]
    info = f"onnx_train_cuda-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1", "Name: onnx-train-cuda", f"Version: {version}",
        "Summary: NVIDIA GPUs for onnx-train: the module behind --device cuda", "License: Apache-2.0",
        "Requires-Python: >=3.10", *(f"Requires-Dist: {name}" for name in requirements(version)),
    ]  # fmt: skip
    wheel = ["Wheel-Version: 1.0", "Generator: onnx-train", "Root-Is-Purelib: false", "Tag: py3-none-linux_x86_64"]
    files = {
        f"onnx_train/{module.name}": with_run_path(module),
        f"{info}/METADATA": "\n".join([*metadata, ""]).encode(),
        f"{info}/WHEEL": "\n".join([*wheel, ""]).encode(),
        f"{info}/licenses/LICENSE": (REPOSITORY / "LICENSE").read_bytes(),
        f"{info}/licenses/NOTICE": (REPOSITORY / "NOTICE").read_bytes(),
    }
    record = [f"{name},{digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"onnx_train_cuda-{version}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
