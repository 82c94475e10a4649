"""More tokens than the model was trained with: rows of the table, scores of the head, as transformers adds them."""

import json

import numpy as np
import onnx
import pytest
import tokenizer_families
import tool

import onnx_train

OLD, WIDTH = 12, 5


def network(kind, vocabulary=OLD):
    """A language model whose head is the table, of its own, or a Linear's with a bias; its logits pass a Reshape."""
    weights = dict(table=(vocabulary, WIDTH), fc=(WIDTH, WIDTH))
    head = dict(tied="w = Transpose<perm = [1, 0]>(table) z = MatMul(t, w)", own="z = MatMul(t, head)",
                linear="w = Transpose<perm = [1, 0]>(head) y = MatMul(t, w) z = Add(y, bias)")[kind]  # fmt: skip
    if kind != "tied":
        weights["head"] = (WIDTH, vocabulary) if kind == "own" else (vocabulary, WIDTH)
    if kind == "linear":
        weights["bias"] = (vocabulary,)
    declared = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in weights.items())
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        lm (int64[N, 4] input_ids) => (float[N, 4, {vocabulary}] logits) <{declared}, int64[3] shape = {{-1, 4, {vocabulary}}}>
        {{ e = Gather(table, input_ids)
           h = MatMul(e, fc)
           t = Tanh(h)
           {head}
           logits = Reshape(z, shape) }}""")
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


def weights_of(model):
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize("kind", ["tied", "own", "linear"])
def test_new_tokens_have_the_mean_of_the_others(kind, tmp_path):
    model = network(kind)
    built = onnx_train.build(model, "cross_entropy(logits, labels, axis=2)", "sgd", resize_vocabulary=["14", "multiple=8"])
    (tmp_path / "larger.onnx").write_bytes(built.export().to_bytes())
    larger = onnx.load(tmp_path / "larger.onnx")
    before, after = weights_of(model), weights_of(larger)
    for name, axis in dict(table=0, head=1 if kind == "own" else 0, bias=0).items():
        if name not in before:
            continue
        mean = before[name].astype(np.float64).mean(axis, keepdims=True)
        expected = np.concatenate([before[name], np.repeat(mean, 16 - OLD, axis).astype(np.float32)], axis)
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-7, err_msg=name)
        assert np.array_equal(np.take(after[name], range(OLD), axis), before[name])
    assert [d.dim_value for d in larger.graph.output[0].type.tensor_type.shape.dim][1:] == [4, 16]
    tokens = np.array([[1, 2, OLD - 1, 0]])
    small, large = (tool.session(path).run(None, {"input_ids": tokens})[0] for path in (save(tmp_path, model), tmp_path / "larger.onnx"))
    np.testing.assert_allclose(large[..., :OLD], small, rtol=1e-5)
    np.testing.assert_allclose(large[..., OLD:], np.repeat(small.mean(-1, keepdims=True), 4, -1), rtol=1e-3, atol=1e-5)
    # The new rows are looked up, predicted and trained.
    session = onnx_train.Session(built, threads=1)
    session.step({"input_ids": np.full((2, 4), 15), "labels": np.full((2, 4), 14)}, lr=1.0)
    assert not np.array_equal(session.state["table"][15], after["table"][15])
    assert np.array_equal(session.state["table"][13], after["table"][13]) == (kind != "tied")


def save(folder, model):
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_fit_makes_room_for_the_tokens_of_the_tokenizer(tmp_path):
    tokenizer = tokenizer_families.byte_bpe(300, pattern=tokenizer_families.GPT4)
    old = tokenizer.get_vocab_size()
    model = save(tmp_path, network("tied", old))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (tmp_path / "text.txt").write_text("<|im_start|>a b c d<|im_end|>" * 40)
    fit = ["fit", model, "--data", tmp_path / "text.txt", "--tokenizer", tmp_path, "--steps", 1, "--loss", "cross_entropy(axis=2)"]
    refused = tool.run(*fit, "--out", tmp_path / "refused", status=1)
    assert f"takes 0 to {old - 1}" in refused
    tool.run(*fit, "--resize-vocabulary", "auto", "--out", tmp_path / "run")
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "larger.onnx")
    assert weights_of(onnx.load(tmp_path / "larger.onnx"))["table"].shape[0] == old + 2
    built = onnx_train.build(tmp_path / "larger.onnx", "cross_entropy(axis=2)", resize_vocabulary=str(tmp_path))
    assert "enough for" in built.metadata["onnx_train.adapted"]
    with pytest.warns(UserWarning, match="a training model is built"):
        history = onnx_train.fit(model, str(tmp_path / "text.txt"), tokenizer=str(tmp_path), steps=1, loss="cross_entropy(axis=2)",
                                 resize_vocabulary="auto")  # fmt: skip
    assert history.session.state["table"].shape[0] == old + 2
    # No file that was made before has room for the new rows.
    said = tool.run("export", tmp_path / "run" / "last.onnx", "--merge", "--into", model, "-o", tmp_path / "into.onnx", status=1)
    assert f"'table' has {old + 2} rows in place of {old} (--resize-vocabulary), for which no other file has room" in said
    assert not (tmp_path / "into.onnx").exists()


def test_new_rows_that_adapters_leave_alike_are_said():
    built = onnx_train.build(network("own"), "cross_entropy(axis=2)", resize_vocabulary="14", lora="rank=2")
    assert "alike until they train, with adapters by --train 'table,head'" in built.metadata["onnx_train.adapted"]
    trained = onnx_train.build(network("own"), "cross_entropy(axis=2)", resize_vocabulary="14", lora="rank=2", train="table,head")
    session = onnx_train.Session(trained, threads=1)
    session.step({"input_ids": np.full((2, 4), 13), "labels": np.full((2, 4), 12)}, lr=1.0)
    assert not np.array_equal(session.state["table"][12], session.state["table"][13])
    assert not np.array_equal(session.state["head"][:, 12], session.state["head"][:, 13])


@pytest.mark.parametrize("options, message", [
    (["8"], "8 tokens are fewer than the 12 rows of 'table'"),
    (["multiple=8"], "needs a number of tokens"),
    (["auto"], "auto is of fit"),
    (["0"], "there is no"),
    (["20", "30"], "write N or a tokenizer's folder"),
])  # fmt: skip
def test_what_does_not_fit_is_one_line(options, message):
    with pytest.raises(onnx_train.Error) as error:
        onnx_train.build(network("tied"), "cross_entropy(axis=2)", resize_vocabulary=options)
    assert message in str(error.value) and "\n" not in str(error.value)
    pictures = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        f (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }""")
    with pytest.raises(onnx_train.Error, match="has no input int64"):
        onnx_train.build(pictures, "mse", resize_vocabulary="20")
