"""A model that reads in both directions is not trained on the tokens that follow: it would learn to copy them."""

import numpy as np
import onnx
import pytest
import tool

VOCABULARY, LENGTH = 256, 16
MIXED = {"causal": "CumSum(e, axis)", "both directions": "Add(e, m)"}


def network(kind, path):
    """Logits of each token's row, and of those before it or of all."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        lm (int64[N, T] input_ids, int64[N, T] attention_mask) => (float[N, T, {VOCABULARY}] logits)
        <float[{VOCABULARY}, 4] table, float[4, {VOCABULARY}] head, int64 axis = {{1}}, int64[1] axes = {{1}}, int64[1] last = {{2}}>
        {{ r = Gather(table, input_ids)
           f = Cast<to = 1>(attention_mask)
           k = Unsqueeze(f, last)
           e = Mul(r, k)
           m = ReduceMean(e, axes)
           h = {MIXED[kind]}
           logits = MatMul(h, head) }}""")
    rng = np.random.default_rng(0)
    for name, shape in dict(table=(VOCABULARY, 4), head=(4, VOCABULARY)).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, path)
    return path


def labels(kind, tokens):
    shifted = np.concatenate([tokens[:, 1:], np.full((len(tokens), 1), -100)], 1)
    return {"next": shifted, "answers": np.where(np.arange(LENGTH) < 9, -100, shifted), "masked": np.where(np.arange(LENGTH) % 5, -100, tokens + 1),
            "classes": tokens % 3}[kind]  # fmt: skip


def fit(model, data, folder, *options, status=0):
    return tool.run("fit", model, "--data", data, "--loss", "cross_entropy", "--optimizer", "sgd", "--steps", 1, "--batch-size", 2, "--block-size",
                    LENGTH, "--out", folder / "run", "--overwrite", *options, status=status)  # fmt: skip


@pytest.mark.parametrize("kind", ["next", "answers", "masked", "classes"])
def test_arrays_whose_labels_are_the_next_tokens_are_refused(kind, tmp_path):
    tokens = np.random.default_rng(1).integers(0, 100, (6, LENGTH))
    np.savez(tmp_path / "data.npz", input_ids=tokens, attention_mask=np.ones_like(tokens), labels=labels(kind, tokens))
    model = network("both directions", tmp_path / "model.onnx")
    is_refused = kind in ("next", "answers")
    said = fit(model, tmp_path / "data.npz", tmp_path, status=1 if is_refused else 0)
    assert ("the logits of a token change with the token after it" in said) == is_refused
    if is_refused:
        assert "data.npz: " in said and "--no-data-check leaves this check out" in said
        assert not (tmp_path / "run/metrics.jsonl").exists()
        fit(model, tmp_path / "data.npz", tmp_path, "--no-data-check")
        fit(network("causal", tmp_path / "causal.onnx"), tmp_path / "data.npz", tmp_path)


def test_texts_are_refused(tmp_path):
    (tmp_path / "text.txt").write_text("A text that is longer than a few blocks of tokens. " * 20)
    said = fit(network("both directions", tmp_path / "model.onnx"), tmp_path / "text.txt", tmp_path, status=1)
    assert "text.txt: the labels are the tokens that follow" in said
    fit(network("causal", tmp_path / "causal.onnx"), tmp_path / "text.txt", tmp_path)
