"""What wheels hold beside compiled code; scripts/wheel builds them."""

import shutil
import subprocess
import sys
import zipfile

import tool

sys.path.append(str(tool.ROOT / "python_bindings"))  # after the built package, whose sources are there, too
import cuda_wheel  # noqa: E402


def test_the_installed_command_is_the_program_itself(tmp_path):
    """Arguments, output and status are the program's, and neither the package nor numpy is imported before it starts."""
    shutil.copy(tool.ROOT / "python_bindings" / "_onnx_train_command.py", tmp_path)
    (tmp_path / "onnx_train").mkdir()
    (tmp_path / "onnx_train" / "__init__.py").write_text("raise AssertionError('the package is imported')")
    (tmp_path / "onnx_train" / "onnx-train").symlink_to(tool.COMMAND)
    start = "import _onnx_train_command as c, sys; assert not {'numpy', 'onnx_train'} & set(sys.modules); c.main()"

    def run(*arguments):
        return subprocess.run([sys.executable, "-c", start, *arguments], cwd=tmp_path, capture_output=True, text=True)

    assert run("devices").stdout.startswith("cpu ")
    wrong = run("no such command")
    assert wrong.returncode == 2 and "no such command" in wrong.stderr


def test_the_wheel_for_cuda_fits_one_version_and_asks_for_libraries(tmp_path, monkeypatch):
    package = tmp_path / "onnx_train-1.2.3-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("onnx_train-1.2.3.dist-info/METADATA", "Metadata-Version: 2.1\nName: onnx-train\nVersion: 1.2.3\n")
    monkeypatch.setattr(cuda_wheel, "with_run_path", lambda module: b"the module")
    with zipfile.ZipFile(cuda_wheel.make(tmp_path / "libonnx_train_cuda.so", package, tmp_path)) as archive:
        assert archive.read("onnx_train/libonnx_train_cuda.so") == b"the module"  # the folder that the library looks into
        metadata = archive.read("onnx_train_cuda-1.2.3.dist-info/METADATA").decode()
        record = archive.read("onnx_train_cuda-1.2.3.dist-info/RECORD").decode()
        assert sorted(line.split(",")[0] for line in record.splitlines()) == sorted(archive.namelist())
    assert "Requires-Dist: onnx-train==1.2.3" in metadata
    assert "Requires-Dist: cuda-toolkit[cublas,nvrtc]>=13" in metadata
    assert "Requires-Dist: nvidia-cudnn-cu13>=9" in metadata
