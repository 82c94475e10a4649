"""Makes the wheel of another processor from one of this machine's, whose Python files it has, and a folder of that processor's build.

    arm_wheel.py onnx_train-VERSION-...linux_x86_64.whl build-arm64 FOLDER

Every program and library of the package is replaced by that of the build; what the build does not have, such as oneDNN, is
left out. Prints the path of the wheel. scripts/wheel calls this.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

FROM, TO = "x86_64", "aarch64"


def run(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def built(build, name):
    """The file of the build that has the place of `name` in the package; None if there is none."""
    found = [build / name, build / "python" / "onnx_train" / name.replace(FROM, TO)]
    return next((path for path in found if path.exists()), None)


def put(file, build):
    source = built(build, file.name)
    file.unlink()
    if source is None:
        return
    copy = file.with_name(source.name)
    run(f"{TO}-linux-gnu-strip", "-o", copy, source)
    run("patchelf", "--set-rpath", "$ORIGIN", copy)


def make(wheel, build, folder):
    tags = wheel.stem.split("-")[2:]
    assert tags[-1] == f"linux_{FROM}", tags
    with tempfile.TemporaryDirectory() as temporary:
        run("wheel", "unpack", "-d", temporary, wheel)
        (unpacked,) = Path(temporary).iterdir()
        for file in [path for path in unpacked.rglob("*") if path.is_file() and is_elf(path)]:
            put(file, build)
        (info,) = unpacked.glob("*.dist-info/WHEEL")
        info.write_text(info.read_text().replace(tags[-1], f"linux_{TO}"))
        run("wheel", "pack", "-d", folder, unpacked)
    return folder / wheel.name.replace(FROM, TO)


if __name__ == "__main__":
    print(make(*(Path(word) for word in sys.argv[1:4])))
