"""`bench`: its JSON, its trace, its counts; and the tables of bench/peers.py."""

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
    assert "Left out" in text
