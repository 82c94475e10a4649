"""What a step would take on several ranks: one rank is computed, the network is a model."""

import json
import subprocess
import sys

import pytest
import reference
import tool

NETWORK = "--latency", 100, "--bandwidth", 2
FAST = "--latency", 0, "--bandwidth", 1000


@pytest.fixture(scope="module")
def gpt(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    example, path = exported("gpt2")
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", example.loss, "--accumulate")
    return folder / "train.onnx", "--data", tool.save(folder / "data.npz", reference.repeated(example, 4)), "--batch-size", 2


def scale(gpt, *options, network=NETWORK):
    text = tool.run("scale", *gpt, "--seconds", 0.05, "--json", *network, *options)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def trained_bytes(gpt):
    model = tool.onnx.load(gpt[0])
    grads = [t for t in model.graph.initializer if t.name.endswith("/grad")]
    grads = grads or [t for info in model.training_info for t in info.algorithm.initializer if t.name.endswith("/grad")]
    return [4 * int(tool.np.prod(t.dims)) for t in grads]


def test_gradients_cross_the_network_as_the_algorithm_says(gpt):
    weights = trained_bytes(gpt)
    assert len(weights) > 20
    for row in scale(gpt, "--ranks", "1,2,4,64"):
        ranks, sent = row["ranks"], 1e6 * row["megabytes"]
        if ranks == 1:
            assert row["network_ms"] == 0 and sent == 0 and row["speedup"] == 1
            continue
        # A share to each of the others, and the sum of the own one: Shares of whole elements may be one longer.
        most = sum(2 * (ranks - 1) * 4 * -(-size // 4 // ranks) for size in weights) + 64 * ranks
        assert sum(2 * size * (ranks - 1) // ranks for size in weights) - 8 * ranks * len(weights) < sent < most
        assert row["network_ms"] == pytest.approx(0.1 * row["exchanges"] + sent / 2e6, rel=0.1)
        assert row["step_ms"] == pytest.approx(row["compute_ms"] + row["waiting_ms"])
        # The network works while gradients are computed; the forward pass comes first.
        assert 0 < row["waiting_ms"] <= row["network_ms"] + 1e-6
        assert row["waiting_ms"] >= row["network_ms"] - row["compute_ms"]


def test_states_are_shared_out_and_machines_share_a_link(gpt):
    (whole,), (first,), (second,) = (scale(gpt, "--ranks", 4, "--zero", stage) for stage in (0, 1, 2))
    # Of 16 bytes for each weight, the two moments, and the sum of gradients, are a quarter of what they were.
    assert first["state_bytes"] == pytest.approx(whole["state_bytes"] * 10 / 16, rel=0.03)
    assert second["state_bytes"] == pytest.approx(whole["state_bytes"] * 7 / 16, rel=0.03)
    given = "--ranks", 16, "--compute", 5
    (one,), (two,) = (scale(gpt, *given, "--ranks-per-machine", n, "--machine-bandwidth", 2) for n in (16, 8))
    assert one["compute_ms"] == two["compute_ms"] and 4.9 < one["compute_ms"] < 6.5  # with copies into buckets
    assert two["network_ms"] > one["network_ms"]


def test_batch_normalization_over_all_ranks_is_compared_with_one_rank(gpt):
    for given in (), ("--compute", 5):
        rows = scale(gpt, "--ranks", "1,2", "--sync-batch-norm", *given)
        assert [row["ranks"] for row in rows] == [1, 2]


def test_a_given_time_takes_the_same_plans_and_no_memory_for_states(gpt):
    for zero in 0, 1, 2:
        (counted,), (computed,) = (scale(gpt, "--ranks", 4, "--zero", zero, *given) for given in (("--compute", 5), ()))
        for key in "megabytes", "exchanges", "state_bytes", "arena_bytes", "network_ms":
            assert counted[key] == pytest.approx(computed[key], rel=1e-6), key
    rows = [scale(gpt, "--ranks", 2, "--compute", 5, "--accumulate", n)[0] for n in (2, 4, 8)]
    once, twice, often = (row["compute_ms"] for row in rows)  # of one round and the update
    assert often - twice == pytest.approx(2 * (twice - once), rel=1e-6) and 0 < twice - once < 5
    assert rows[2]["megabytes"] == pytest.approx(4 * rows[0]["megabytes"], rel=0.01)


def test_an_exchange_may_take_the_rank_itself(gpt):
    given = "--ranks", 2, "--compute", 50
    (free,), (taken,) = (scale(gpt, *given, network=(*FAST, *more)) for more in ((), ("--overhead", 100, "--copy-bandwidth", 2)))
    expected = free["step_ms"] + 0.1 * taken["exchanges"] + taken["megabytes"] / 2
    assert taken["step_ms"] == pytest.approx(expected, rel=0.01)


def test_the_stages_of_a_pipeline_wait_for_the_first_batch_and_the_last_alone(gpt):
    for ranks, stages in (2, 2), (4, 2), (4, 4):
        batches = 8 * ranks // stages
        given = "--ranks", ranks, "--pipeline", stages, "--compute", 40, "--accumulate", batches
        (row,) = scale(gpt, *given, network=FAST)
        share = stages - 1  # of 1F1B: (s - 1) batches of m + s - 1
        assert row["step_ms"] < 1.15 * row["compute_ms"] * (8 + share) / 8
    assert "--compute" in tool.run("scale", *gpt, "--pipeline", 2, "--ranks", 2, status=2)
    assert "takes 2 processes, one for each stage, or a multiple" in tool.run("scale", *gpt, "--pipeline", 2, "--ranks", 3, "--compute", 5, status=2)


def test_a_forward_model_is_built(exported, gpt, tmp_path):
    example, path = exported("gpt2")
    text = tool.run("scale", path, *gpt[1:], "--compute", 5, "--ranks", "1,2")
    assert "is a forward model: built with --loss" in text
    (forward,) = scale((path, *gpt[1:]), "--compute", 5, "--ranks", 2, "--loss", example.loss)
    (trained,) = scale(gpt, "--compute", 5, "--ranks", 2)
    assert forward["megabytes"] == trained["megabytes"] and forward["state_bytes"] == trained["state_bytes"]


def test_what_is_not_scaled_is_said(gpt, tmp_path):
    assert "on the CPU; leave out --device" in tool.run("scale", *gpt, "--device", "async_host", "--compute", 5, status=2)
    assert "is no number of ranks" in tool.run("scale", *gpt, "--ranks", "2,x", status=2)
    tool.run("build", tool.ROOT / "models/digits_cnn.onnx", "-o", tmp_path / "t.onnx")
    data = tool.ROOT / "models/data/digits_test.npz"
    assert "--accumulate" in tool.run("scale", tmp_path / "t.onnx", "--data", data, status=1)


SHAPE = "--layers", 2, "--width", 64, "--inner", 96, "--heads", 4, "--kv-heads", 2, "--vocabulary", 100, "--context", 32


@pytest.fixture
def llama(tmp_path):
    """A Llama whose weights' file does not exist."""
    script = tool.ROOT / "bench" / "llama_shape.py"
    made = subprocess.run([sys.executable, script, tmp_path / "llama.onnx", *map(str, SHAPE)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return tmp_path / "llama.onnx", "--data", tmp_path / "llama.npz", "--batch-size", 2


def test_a_model_is_planned_without_its_weights(llama):
    ways = ("--zero", 3), ("--zero", 1, "--reduction", "fast"), ("--pipeline", 2, "--accumulate", 8)
    options = "--ranks", 4, "--tflops", 1e-3, "--precision", "bf16"
    absent = [scale(llama, *options, *way) for way in ways]
    said = tool.run("scale", *llama, *options)
    assert "the data of 21 weights" in said and "'llama.weights'; their shapes alone are planned" in said

    model = tool.onnx.load(llama[0], load_external_data=False)
    weights = [t for t in model.graph.initializer if t.external_data]
    random = tool.np.random.default_rng(0)
    for t in weights:
        t.CopyFrom(tool.onnx.numpy_helper.from_array(random.normal(size=tuple(t.dims)).astype(tool.np.float32), t.name))
    tool.onnx.save(model, llama[0])
    assert len(weights) == 21 and [scale(llama, *options, *way) for way in ways] == absent
    # Of each weight once forward and twice backward, two operations for each token: 2 texts of 32.
    used = sum(int(tool.np.prod(t.dims)) for t in weights if len(t.dims) == 2 and "embed" not in t.name)
    assert 6 * used * 64 < absent[0][0]["flops_alone"] < 8 * used * 64


def test_a_model_without_its_weights_is_not_computed(llama):
    assert "external data file 'llama.weights': No such file" in tool.run("scale", *llama, "--ranks", 1, status=1)
    assert "give one" in tool.run("scale", *llama, "--tflops", 1, "--compute", 5, status=2)
