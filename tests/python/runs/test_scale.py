"""What a step would take on several ranks: one rank is computed, the network is a model."""

import json

import pytest
import reference
import tool

NETWORK = "--latency", 100, "--bandwidth", 2


@pytest.fixture(scope="module")
def gpt(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    example, path = exported("gpt2")
    tool.run("build", path, "-o", folder / "train.onnx", "--loss", example.loss, "--accumulate")
    return folder / "train.onnx", "--data", tool.save(folder / "data.npz", reference.repeated(example, 4)), "--batch-size", 2


def scale(gpt, *options):
    text = tool.run("scale", *gpt, "--seconds", 0.05, "--json", *NETWORK, *options)
    return [json.loads(line) for line in text.splitlines()]


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
    assert one["compute_ms"] == two["compute_ms"] == 5 and two["network_ms"] > one["network_ms"]


def test_what_is_not_scaled_is_said(gpt, tmp_path):
    assert "is no number of ranks" in tool.run("scale", *gpt, "--ranks", "2,x", status=2)
    tool.run("build", tool.ROOT / "models/digits_cnn.onnx", "-o", tmp_path / "t.onnx")
    data = tool.ROOT / "models/data/digits_test.npz"
    assert "--accumulate" in tool.run("scale", tmp_path / "t.onnx", "--data", data, status=1)
