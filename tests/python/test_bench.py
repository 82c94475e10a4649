"""`bench`: its JSON, its trace, its counts; and the tables and contestants of bench/peers.py."""

import json
import sys

import pytest
import reference
import tool

sys.path.insert(0, str(tool.ROOT / "bench"))

BATCH = 6
SIZES = (20, 16, 16, 5)


@pytest.fixture(scope="module")
def training(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    example, path = exported("mlp", sizes=SIZES)
    tool.run("build", path, "-o", folder / "train.onnx", "--optimizer", "adamw")
    return folder / "train.onnx", tool.save(folder / "data.npz", reference.arrays(example))


def bench(training, *options, **keywords):
    model, data = training
    return tool.run("bench", model, "--data", data, "--batch-size", BATCH, "--seconds", 0.05, *options, **keywords)


def test_the_report_as_json(training):
    report = json.loads(bench(training, "--json", "--profile"))
    low, high = report["quartiles_ms"]
    assert 0 < report["fastest_ms"] <= low <= report["median_ms"] <= high
    assert report["runs"] >= 1 and report["threads"] == 1 and report["inputs"]["x"] == [BATCH, SIZES[0]]
    assert 0 < report["state_bytes"] < report["peak_memory_bytes"]
    assert report["peak_gflops"]["float"] > 0 and report["peak_gigabytes_per_second"] > 0
    assert 0 < report["bound_ms"] <= report["roofline_ms"]
    nodes = report["nodes"]
    assert report["nodes_ms"] == pytest.approx(sum(node["ms"] for node in nodes))
    assert [node["index"] for node in nodes] == list(range(len(nodes)))
    assert {"op", "name", "kernel", "ms", "flops", "bytes", "roofline_ms"} <= nodes[0].keys()
    assert any(node["ms"] > 0 for node in nodes)
    assert sum(sum(node["flops"].values()) for node in nodes) == report["flops"]


@pytest.mark.parametrize("options", [[], ["--no-lowering"]])
def test_the_arithmetic_of_a_step_is_counted(training, options):
    """Forward, and as much for the gradients of the weights and, but in the first layer, of the layers' inputs."""
    layers = [inputs * outputs for inputs, outputs in zip(SIZES, SIZES[1:])]
    report = json.loads(bench(training, "--json", *options))
    assert report["flops"] == 2 * BATCH * (2 * sum(layers) + sum(layers[1:]))


def test_the_trace_covers_the_plan(training, tmp_path):
    trace = tmp_path / "trace.json"
    report = json.loads(bench(training, "--json", "--profile", "--trace", trace))
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["args"]["index"] for event in events] == [node["index"] for node in report["nodes"]]
    assert [event["name"] for event in events] == [node["op"] for node in report["nodes"]]
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    for event, following in zip(events, events[1:]):
        assert event["ts"] + event["dur"] <= following["ts"] + 1e-3


def test_each_step_is_a_line(training):
    first, *steps = [json.loads(line) for line in bench(training, "--each-step").splitlines()]
    assert first["resident"] > 0 and len(steps) >= 4
    assert all(step["ms"] > 0 for step in steps)
    assert all(a["end"] < b["end"] for a, b in zip(steps, steps[1:]))
    assert steps[-1]["loss"] < steps[0]["loss"]


def test_show_has_a_column_of_times(training):
    model, data = training
    lines = tool.run("show", model, "--plan", "--profile", "--data", data, "--batch", BATCH).splitlines()
    assert lines[0].split() == ["#", "operator", "outputs", "bytes", "kernel", "ms"]
    assert all(float(line.split()[-1]) >= 0 for line in lines[1:-1])
    assert "ms" not in tool.run("show", model, "--plan", "--batch", BATCH).splitlines()[0].split()


def test_the_tables_of_peers():
    import peers_table
    from peers import Result

    results = {
        "eager": Result(times=[8.0] * 5, memory=100 << 20),
        "compile": Result(times=[6.0] * 5, memory=200 << 20),
        "onnxruntime": Result("it does not run this"),
        "ours": Result(times=[2.0, 3.0, 4.0], memory=40 << 20),
    }
    assert peers_table.speed(results) == 2
    assert peers_table.memory_ratio(results) == 0.4
    bound = {"flops": 1e9, "bound": 1.5, "peak": {"float": 667.0}, "inherent": 1 << 20}
    text = peers_table.tables({"float32": {"a net": (results, bound), "not made": "left out: why"}, "bf16": None}, 2, False)
    assert "| a net | 8.00 (8.00–8.00) | 6.00 (6.00–6.00) | – | 3.00 (2.00–4.00) | **2.00** |" in text
    assert "| 19% | 25% | – | 50% |" in text
    assert "- ONNX Runtime, a net: it does not run this" in text
    assert "| not made | – | – | – | – | – |" in text and "- not made: left out: why" in text
    assert "Left out" in text and "JAX" not in text

    # JAX trains by itself: it may be the fastest of theirs.
    results["jax"] = Result(times=[4.5] * 5, memory=60 << 20)
    assert peers_table.speed(results) == 1.5
    assert peers_table.memory_ratio(results) == pytest.approx(40 / 60)
    text = peers_table.tables({"float32": {"a net": (results, bound)}}, 2, False)
    assert "| 8.00 (8.00–8.00) | 6.00 (6.00–6.00) | 4.50 (4.50–4.50) | – | 3.00 (2.00–4.00) | **1.50** |" in text
    assert "JAX 0." in text


def test_a_contestant_that_trains_something_else_has_no_times():
    import peers
    from peers_workloads import Workload

    def results():
        return {"eager": peers.Result(times=[1.0], losses=[2.0, 1.9]), "ours": peers.Result(times=[1.0], losses=[2.0, 1.9]),
                "jax": peers.Result(times=[1.0], losses=[2.1, 1.9])}  # fmt: skip

    checked = results()
    peers.check_losses(Workload("a net", "mlp", {}), "float32", checked)
    assert checked["jax"].error == "its first loss is 2.100000, PyTorch's 2.000000" and not checked["jax"].times
    assert checked["ours"].times and checked["eager"].times
    wrong = results()
    wrong["ours"].losses[0] = 2.1
    with pytest.raises(AssertionError, match="we do not train what PyTorch trains"):
        peers.check_losses(Workload("a net", "mlp", {}), "float32", wrong)


# The smallest that still has every part; `sizes` are what the network of JAX reads, too.
PEERS_SIZES = {
    "mlp": dict(sizes=(20, 16, 16, 5)),
    "resnet18": dict(batch=4, width=4, size=8),
    "gpt2": dict(heads=2, blocks=1, attention="sdpa"),
    "dlrm": dict(batch=6, tables=3, rows=7, bottom=(5, 8, 4), top=(10, 6)),
    "lstm": dict(layers=2),
    "masked_lm": dict(heads=2, blocks=1, attention="sdpa"),
}


def test_contestants_train_the_networks_that_they_have():
    import peers_contestants
    import peers_jax_networks
    from peers_workloads import WORKLOADS

    assert set(peers_contestants.TRAINS["jax"][0]) == set(peers_jax_networks.NETWORKS) == set(PEERS_SIZES)
    assert {"eager", "compile", "jax", "onnxruntime", "ours"} <= set(peers_contestants.installed())
    for workload in WORKLOADS:
        assert peers_contestants.trains("ours", workload, "bf16")
        assert peers_contestants.trains("jax", workload, "bf16") == (workload.network in PEERS_SIZES)
        assert not peers_contestants.trains("ort-training", workload, "bf16")


@pytest.mark.parametrize("network", PEERS_SIZES)
def test_jax_trains_what_pytorch_trains(network, tmp_path):
    import networks
    import numpy as np
    import peers_contestants
    import peers_jax
    import peers_workloads
    import torch
    from peers_jax_networks import converted

    sizes = PEERS_SIZES[network]
    example = getattr(networks, network)(**sizes)
    np.savez(tmp_path / "data.npz", labels=example.labels.numpy(), **{k: v.numpy() for k, v in example.inputs.items()})
    with np.load(peers_contestants.save_weights(example.module, tmp_path / "weights.npz")) as weights:
        state = peers_jax.initial_state(*converted(weights))
    inputs, labels = peers_jax.batch(tmp_path / "data.npz")
    step = peers_jax.make_step(network, sizes, example.loss, "float32")

    module, compute_loss = example.module.train(), peers_workloads.loss_function(example)
    optimizer = torch.optim.AdamW(module.parameters(), peers_workloads.RATE, weight_decay=peers_workloads.DECAY)
    for _ in range(5):
        state, loss = step(state, inputs, labels)
        reference = compute_loss(module(*example.inputs.values()), example.labels)
        assert float(loss) == pytest.approx(reference.item(), rel=1e-4)
        optimizer.zero_grad()
        reference.backward()
        optimizer.step()
    for name, buffer in module.named_buffers():
        if ".running_" in name:
            np.testing.assert_allclose(state["statistics"][name], buffer.numpy(), rtol=1e-4, atol=1e-5)


def test_what_onnx_runtime_training_gets_has_one_axis_before_the_classes(tmp_path):
    import networks
    import onnx
    import peers_contestants

    example = networks.masked_lm(**PEERS_SIZES["masked_lm"], dropout=0.1)
    model = onnx.load(peers_contestants.export_for_training(example, tmp_path / "portable.onnx"))
    (logits,) = model.graph.output
    assert [d.dim_value for d in logits.type.tensor_type.shape.dim] == [example.labels.numel(), 50]
    assert model.opset_import[0].version == 17 and "Dropout" in {node.op_type for node in model.graph.node}
