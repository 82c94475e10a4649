"""Workers that Ray Train starts are ranks of one training."""

import importlib
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import tool

import onnx_train

EXAMPLE = tool.ROOT / "examples" / "python" / "ray_digits.py"


class Machine:
    """The environment of a process; `node` is the machine that it is on."""

    def __init__(self, node):
        self.node, self.environment = node, {}


class Group:
    """A worker group of Ray Train, whose workers are environments in this process."""

    def __init__(self, nodes, monkeypatch, ray):
        self.workers, self._patch, self._ray = [Machine(node) for node in nodes], monkeypatch, ray

    def execute_single_async(self, index, function, *arguments):
        worker = self.workers[index]
        self._ray.get_runtime_context = lambda: types.SimpleNamespace(get_node_id=lambda: worker.node)
        if getattr(function, "__name__", "") == "update":
            return worker.environment.update(*arguments)
        return function(*arguments)

    execute_single = execute_single_async

    def execute(self, function, *arguments):
        return [self.execute_single(index, function, *arguments) for index in range(len(self.workers))]


@pytest.fixture
def stub(monkeypatch):
    """onnx_train.ray on a substitute for what it takes of Ray, which needs no cluster; and that substitute."""
    modules = {name: types.ModuleType(name) for name in
               ("ray", "ray.train", "ray.util", "ray.train.backend", "ray.train.data_parallel_trainer")}  # fmt: skip
    ray = modules["ray"]
    ray.train, ray.util, ray.get = modules["ray.train"], modules["ray.util"], lambda results: results
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    ray.train.reports = []
    ray.train.report = lambda metrics, checkpoint=None: ray.train.reports.append((metrics, checkpoint))
    ray.train.Checkpoint = types.SimpleNamespace(from_directory=lambda folder: onnx_train.Session(f"{folder}/last.onnx"))
    modules["ray.train.backend"].Backend = modules["ray.train.backend"].BackendConfig = object
    modules["ray.train.data_parallel_trainer"].DataParallelTrainer = object
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "onnx_train.ray", raising=False)
    yield importlib.import_module("onnx_train.ray"), ray
    sys.modules.pop("onnx_train.ray", None)
    vars(onnx_train).pop("ray", None)


def test_the_environment_of_each_worker_says_which_rank_it_is(stub, monkeypatch):
    module, ray = stub
    config = module.RanksConfig()
    group = Group(["one", "two", "one"], monkeypatch, ray)
    config.backend_cls().on_start(group, config)
    environments = [worker.environment for worker in group.workers]
    assert [e["RANK"] for e in environments] == ["0", "1", "2"]
    assert [(e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"]) for e in environments] == [("0", "2"), ("0", "1"), ("1", "2")]
    assert {(e["WORLD_SIZE"], e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments} == {
        ("3", "127.0.0.1", environments[0]["MASTER_PORT"])
    }
    assert 0 < int(environments[0]["MASTER_PORT"]) < 65536


def test_evaluations_are_reported_and_the_best_is_a_checkpoint(stub, tmp_path):
    module, ray = stub
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    data = {"x": x, "labels": (x[:, 0] > 0).astype(np.int64)}
    model = onnx_train.build(tool.ROOT / "tests/fixtures/mlp.onnx", "cross_entropy")
    history = onnx_train.fit(model, data, eval_data=data, epochs=3, lr=0.01, threads=1, callbacks=[module.Report()])
    reports = ray.train.reports
    assert [metrics["epoch"] for metrics, _ in reports] == [1, 2, 3]
    assert [metrics["loss"] for metrics, _ in reports] == [e.loss for e in history.evaluations]
    assert [checkpoint is not None for _, checkpoint in reports] == [e.best for e in history.evaluations]
    assert reports[-1][1].evaluate(data).loss == pytest.approx(history.evaluations[-1].loss, rel=1e-5)
    with pytest.raises(ValueError, match="'best', 'all' or 'none'"):
        module.Report("last")


def ray_python():
    """The interpreter of an environment that has Ray: that of these tests, or one of its own."""
    if importlib.util.find_spec("ray"):
        return sys.executable
    python = os.environ.get("ONNX_TRAIN_RAY_PYTHON", tool.ROOT / ".deps/ray/bin/python")
    if not os.path.exists(python):
        pytest.skip("Ray is not installed: pip install 'ray[train]', or ONNX_TRAIN_RAY_PYTHON names a Python that has it")
    return python


def test_two_workers_of_ray_train_as_one_process_does(tmp_path):
    """A local cluster with two workers."""
    done = subprocess.run(
        [ray_python(), EXAMPLE, "2"], capture_output=True, text=True, timeout=tool.PATIENCE, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tool.COMMAND.parent / "python"), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    said = done.stdout + done.stderr
    ranks = dict(re.findall(r"rank (\d) of 2: loss ([\d.]+)", said))
    assert set(ranks) == {"0", "1"} and len(set(ranks.values())) == 1, said

    models = tool.ROOT / "models"
    model = onnx_train.build(models / "digits_cnn.onnx", "cross_entropy", "adamw(lr=3e-3)", accumulate=True)
    history = onnx_train.fit(model, str(models / "data/digits_train.npz"), eval_data=str(models / "data/digits_test.npz"),
                             epochs=2, batch_size=16, accumulate=2, seed=0, threads=1, progress=False)  # fmt: skip
    assert ranks["0"] == f"{history.losses[-1]:.6f}"
    best = max(history.evaluations, key=lambda e: (e.best, e.epoch)).metrics["accuracy"]
    assert f"the checkpoint: accuracy {best:.1%}" in said, said
