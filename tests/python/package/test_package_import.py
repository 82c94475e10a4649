"""The package beside others in one process, its time to import, and its types."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time

import pytest
import tool

import onnx_train

FOLDER = tool.COMMAND.parent / "python"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1"}
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"


def python(program, *options):
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program)], env=ENVIRONMENT, capture_output=True, text=True
    )


def test_all_orders_of_imports_work():
    """A tree of processes: each imports one module more than its parent, and the leaves use all four. Each module is first
    before every other one; what is left then follows in one order."""
    program = f"""
        import importlib, os, sys, traceback

        MODULES = ["torch", "onnx", "onnxruntime", "onnx_train"]

        def use():
            import numpy as np, onnx, onnx_train, onnxruntime, torch
            torch.set_num_threads(1)
            model = onnx.load({str(MLP)!r})
            x = np.eye(4, dtype=np.float32)
            expected = onnx_train.Session(model, threads=1).predict(x).logits
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            assert np.allclose(session.run(None, {{"x": x}})[0], expected, atol=1e-6)
            training = onnx_train.build(model, optimizer="sgd")
            onnx.checker.check_model(training.flatten("step").to_onnx(), full_check=True)
            assert onnx_train.Session(training, threads=1).step(x, [0, 1, 2, 0]).loss > 0
            assert torch.allclose(torch.from_numpy(x) @ torch.ones(4), torch.ones(4))

        def visit(imported):
            if len(imported) == 4:
                use()
                print(" ".join(imported), flush=True)
                return
            children = []
            left = [module for module in MODULES if module not in imported]
            for module in left if len(imported) < 2 else left[:1]:
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        importlib.import_module(module)
                        visit([*imported, module])
                        status = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        sys.stdout.flush()
                        sys.stderr.flush()
                        os._exit(status)
                children.append((child, module))
                if len(imported) > 0:  # two at a time
                    wait(children, imported)
            wait(children, imported)

        def wait(children, imported):
            while children:
                child, module = children.pop()
                if os.waitpid(child, 0)[1] != 0:
                    raise SystemExit(f"failed after importing {{[*imported, module]}}")

        visit([])
    """
    result = python(program)
    assert result.returncode == 0, result.stderr
    assert len(set(result.stdout.splitlines())) == 12


def test_import_takes_less_than_that_of_numpy():
    """Of the processor's time, in one process, so that a slow or busy machine changes nothing. The least of a few."""
    program = """
        import time
        start = time.process_time()
        import onnx_train
        middle = time.process_time()
        import numpy
        print(middle - start, time.process_time() - middle)
    """
    ours, numpys = (min(c) for c in zip(*[map(float, python(program).stdout.split()) for _ in range(5)]))
    print(f"\nimport onnx_train: {1e3 * ours:.0f} ms of the processor, numpy: {1e3 * numpys:.0f} ms")
    assert ours < numpys


def test_import_brings_neither_numpy_nor_torch():
    program = "import sys, onnx_train; print({'numpy', 'torch', 'onnx', 'tqdm'} & set(sys.modules))"
    assert python(program).stdout == "set()\n"


def test_the_module_exports_nothing_but_itself():
    """Symbols of nanobind would meet those of another module."""
    (module,) = (FOLDER / "onnx_train").glob("_core*.so")
    lines = subprocess.run(["nm", "-D", "--defined-only", module], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1].split("@")[0] for line in lines.splitlines()]
    assert names == ["PyInit__core"]


EXAMPLE = '''
import numpy as np
import onnx_train

import onnx_train.torch
from onnx_train import optimizers


class Losses(onnx_train.Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, session: onnx_train.Session, step: onnx_train.Step) -> bool | None:
        self.losses.append(step.loss)
        return None


def train(path: str) -> float:
    model: onnx_train.Model = onnx_train.load(path).build("cross_entropy", optimizers.AdamW(lr=1e-3))
    session = onnx_train.Session(model, threads=1)
    callback = Losses()
    data = {"x": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    history: onnx_train.History = onnx_train.fit(session, data, epochs=2, callbacks=[callback])
    weight = session.state["fc1.weight"]
    module = onnx_train.torch.Module(path)
    for parameter in module.parameters():
        print(parameter.shape)
    kernels: list[str] = [node.kernel for node in session.plan(batch=4).nodes]
    print(kernels, model.with_weights({"fc1.bias": np.zeros(16)}))
    return float(weight.sum()) + history.steps[-1].loss


WRONG: int = onnx_train.__version__
onnx_train.load(3.5).build(los="mse")
'''


def test_mypy_accepts_the_package_and_a_program(tmp_path):
    """mypy --strict finds the two mistakes of the program, and nothing else in it or in the package."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    (tmp_path / "example.py").write_text(EXAMPLE)
    sources = sorted(str(path) for path in (FOLDER / "onnx_train").rglob("*") if path.suffix in (".py", ".pyi"))
    assert str(FOLDER / "onnx_train" / "_core.pyi") in sources  # made with the module
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10",
         "--cache-dir", tool.COMMAND.parent / "mypy_cache", "example.py", *sources],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(FOLDER)}, capture_output=True, text=True,
    )  # fmt: skip
    errors = [line for line in result.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 2 and all(line.startswith("example.py:") for line in errors), result.stdout + result.stderr
    assert "[assignment]" in errors[0] and "[call-arg]" in errors[1]


def test_pyright_accepts_a_program(tmp_path):
    """In its strict mode it finds the two mistakes of the program, and nothing else."""
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    (tmp_path / "example.py").write_text(EXAMPLE)
    options = {"typeCheckingMode": "strict", "pythonVersion": "3.10", "extraPaths": [str(FOLDER)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"include": ["example.py"], **options}))
    result = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(result.stdout)["generalDiagnostics"]
    assert [item["rule"] for item in found] == ["reportAssignmentType", "reportCallIssue"], result.stdout


def test_without_its_compiled_module_the_package_says_what_to_do(tmp_path):
    source = tool.ROOT / "python_bindings" / "onnx_train"

    def message(folder):
        result = subprocess.run([sys.executable, "-c", "import onnx_train"], env=os.environ | {"PYTHONPATH": str(folder)},
                                capture_output=True, text=True)  # fmt: skip
        assert result.returncode == 1 and "circular" not in result.stderr
        return result.stderr.strip().splitlines()[-1]

    text = message(source.parent)
    assert text.startswith(f"ImportError: onnx_train: {source} has no compiled module _core") and "pip install ." in text
    shutil.copytree(source, tmp_path / "onnx_train", symlinks=False)
    (tmp_path / "onnx_train" / "_core.abi3.so").write_bytes(b"no library")
    text = message(tmp_path)
    assert "cannot load the compiled module, " in text and "_core.abi3.so" in text and "build/python" in text
