"""Preferences: dpo over pairs of rows against a few lines of PyTorch, and pairs of answers in files as TRL has them."""

import csv
import json
import math

import chat_templates
import numpy as np
import onnx
import pytest
import tokenizer_families
import tool
import torch
from torch.nn import functional as F

import onnx_train

VOCABULARY, WIDTH, PAIRS, TOKENS = 11, 16, 3, 6
RATE = 0.5


def network(vocabulary=VOCABULARY, seed=0):
    """A table of tokens, a layer, a head; each token has the logits of the next one."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        lm (int64[N, T] input_ids) => (float[N, T, {vocabulary}] logits)
        <float[{vocabulary}, {WIDTH}] table, float[{WIDTH}, {WIDTH}] fc, float[{WIDTH}, {vocabulary}] head>
        {{ e = Gather(table, input_ids)
           h = MatMul(e, fc)
           t = Tanh(h)
           logits = MatMul(t, head) }}""")
    rng = np.random.default_rng(seed)
    for name, shape in dict(table=(vocabulary, WIDTH), fc=(WIDTH, WIDTH), head=(WIDTH, vocabulary)).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


def weights_of(model):
    return {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).astype(np.float64)) for t in model.graph.initializer}


def logits_of(w, tokens):
    h = w["table"][tokens] @ w["fc"]
    if "fc.lora_A.weight" in w:
        h = h + 2 * (w["table"][tokens] @ w["fc.lora_A.weight"].T) @ w["fc.lora_B.weight"].T
    return torch.tanh(h) @ w["head"]


def answers(w, tokens, labels, averages):
    """The log-probabilities of the chosen and of the rejected answers, with the formula of TRL's DPOTrainer."""
    counted = labels != -100
    log_p = logits_of(w, tokens).log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0] * counted
    rows = log_p.sum(1) / (counted.sum(1) if averages else 1)
    return rows[0::2], rows[1::2]


def dpo(policy, reference, beta=0.1, loss_type="sigmoid", smoothing=0.0):
    chosen, rejected = (p - q for p, q in zip(policy, reference))
    m = chosen - rejected
    losses = {
        "sigmoid": -F.logsigmoid(beta * m) * (1 - smoothing) - F.logsigmoid(-beta * m) * smoothing,
        "robust": (-F.logsigmoid(beta * m) * (1 - smoothing) + F.logsigmoid(-beta * m) * smoothing) / (1 - 2 * smoothing),
        "hinge": torch.relu(1 - beta * m),
        "ipo": (m - 1 / (2 * beta)) ** 2,
    }[loss_type]
    rewards = beta * chosen.detach(), beta * rejected.detach()
    return losses.mean(), dict(zip(("rewards/chosen", "rewards/rejected"), (x.mean().item() for x in rewards))) | {
        "rewards/margins": (rewards[0] - rewards[1]).mean().item(), "accuracy": (rewards[0] > rewards[1]).double().mean().item()}  # fmt: skip


def batch(seed=1):
    rng = np.random.default_rng(seed)
    tokens, labels = (rng.integers(0, VOCABULARY, (2 * PAIRS, TOKENS)) for _ in range(2))
    for row, (begin, end) in enumerate([(2, 6), (2, 4), (0, 3), (1, 6), (3, 5), (3, 4)]):  # the answer
        labels[row, :begin] = labels[row, end:] = -100
    return dict(input_ids=tokens, labels=labels)


LORA = dict(rank=2, alpha=4, targets="fc")


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize("loss, options", [
    ("dpo(beta=0.7)", dict(beta=0.7)),
    ("dpo(logits, beta=0.7, label_smoothing=0.2)", dict(beta=0.7, smoothing=0.2)),
    ("dpo(loss_type=robust, label_smoothing=0.2)", dict(loss_type="robust", smoothing=0.2)),
    ("dpo(loss_type=hinge, beta=0.3)", dict(loss_type="hinge", beta=0.3)),
    ("dpo(loss_type=ipo, beta=0.3)", dict(loss_type="ipo", beta=0.3)),
    ("dpo(reference_free=true, beta=0.7)", dict(beta=0.7)),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_steps_are_those_of_pytorch(loss, options, lora):
    model, arrays = network(), batch()
    built = onnx_train.build(model, loss, "sgd", dtype="float64", **(dict(lora=lora) if lora else {}))
    session = onnx_train.Session(built, threads=1)
    base = weights_of(model)
    trained = {name: torch.tensor(np.array(session.state[name]), dtype=torch.float64) for name in session.state
               if name in base or "lora" in name}  # fmt: skip
    assert set(trained) == ({"fc.lora_A.weight", "fc.lora_B.weight"} if lora else set(base))
    policy = base | {name: value.requires_grad_() for name, value in trained.items()}
    before = {name: value.detach().clone() for name, value in base.items()}
    tokens, labels = (torch.from_numpy(arrays[name]) for name in ("input_ids", "labels"))
    averages = options.get("loss_type") == "ipo"
    for step in range(3):
        reference = answers(before, tokens, labels, averages)
        if "reference_free" in loss:
            reference = (torch.zeros(PAIRS),) * 2
        value, metrics = dpo(answers(policy, tokens, labels, averages), reference, **options)
        gradients = torch.autograd.grad(value, list(trained.values()))
        found = session.evaluate(arrays) if step == 2 else session.step(arrays, lr=RATE)
        np.testing.assert_allclose(found.loss, value.item(), rtol=1e-9)
        for name, expected in metrics.items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-9, err_msg=name)
        if step < 2:
            with torch.no_grad():
                for weight, gradient in zip(trained.values(), gradients):
                    weight -= RATE * gradient
    for name, value in trained.items():
        np.testing.assert_allclose(session.state[name], value.detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_the_flattened_step_runs_on_onnx_runtime(lora):
    import onnxruntime

    model = onnx_train.build(network(), "dpo(beta=0.7)", "sgd", **(dict(lora=lora) if lora else {}))
    session = onnx_train.Session(model, threads=1)
    session.step(batch(), lr=RATE)
    state = {name: np.array(session.state[name]) for name in session.state}
    runtime = onnxruntime.InferenceSession(model.flatten("step").to_bytes(), providers=["CPUExecutionProvider"])
    feeds = batch(2) | state | {"learning_rate": np.array(RATE, np.float32)}
    names = [output.name for output in runtime.get_outputs()]
    wanted = [i.name for i in (*runtime.get_inputs(), *runtime.get_overridable_initializers())]
    found = dict(zip(names, runtime.run(names, {name: feeds[name] for name in wanted if name in feeds})))
    result = session.step(batch(2), lr=RATE)
    assert abs(result.loss - math.log(2)) > 1e-3
    np.testing.assert_allclose(found["loss"], result.loss, rtol=1e-5)
    np.testing.assert_allclose(found["rewards/margins"], result["rewards/margins"], rtol=1e-4, atol=1e-6)
    weights = [name for name in names if name.startswith("next/") and "state/" not in name]
    assert len(weights) == (2 if lora else 3)
    for name in weights:
        np.testing.assert_allclose(found[name], session.state[name.removeprefix("next/")], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_the_reference_is_rounded_as_the_policy_is(lora):
    model = onnx_train.build(network(), "dpo(beta=5)", "sgd", precision="bf16", **(dict(lora=lora) if lora else {}))
    result = onnx_train.Session(model, threads=1).step(batch(), lr=RATE)
    assert result.loss == pytest.approx(math.log(2), abs=1e-6) and result["rewards/margins"] == 0


@pytest.mark.parametrize("options", [dict(quantize_base=["int4", "block=16"]), dict(quantize_base=["int8", "block=16"]), dict(adapter="start")],
                         ids=["int4", "int8", "started"])  # fmt: skip
def test_the_reference_is_the_base_without_adapters(options, tmp_path, monkeypatch):
    """Also of an adapter that is not zero, and beside integers, whose base is what rounding has left."""
    monkeypatch.chdir(tmp_path)
    start = onnx_train.Session(onnx_train.build(network(), "cross_entropy(axis=2)", "sgd", lora=LORA), threads=1)
    start.step(batch(), lr=5.0)
    start.save_adapter("start")
    lora = {} if "adapter" in options else dict(lora=LORA)
    session = onnx_train.Session(onnx_train.build(network(), "dpo(beta=0.7)", "sgd", **lora, **options), threads=1)
    first = session.step(batch(), lr=RATE)
    assert (abs(first.loss - math.log(2)) < 1e-6) == ("adapter" not in options)
    if "adapter" in options:
        policy = weights_of(network()) | {f"fc.lora_{part}.weight": torch.tensor(np.array(start.state[f"fc.lora_{part}.weight"])).double() for part in "AB"}
        both = (answers(w, *map(torch.from_numpy, batch().values()), False) for w in (policy, weights_of(network())))
        assert first.loss == pytest.approx(dpo(*both, beta=0.7)[0].item(), rel=1e-5)


# ---- Files


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preferences")
    tokenizer = tokenizer_families.byte_bpe(300, pattern=tokenizer_families.GPT4)
    tokenizer.add_special_tokens(["</s>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(chat_templates.TEMPLATES["chatml"], encoding="utf-8")
    onnx.save(network(tokenizer.get_vocab_size()), folder / "lm.onnx")
    tool.run("build", folder / "lm.onnx", "-o", folder / "train.onnx", "--loss", "dpo(beta=0.1)", "--lora", "rank=2")
    return folder, tokenizer


def turns(*texts, first="user"):
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


# A record, what comes before both answers, and the answers, as texts.
FORMS = [
    ({"prompt": "The sky is", "chosen": " blue.", "rejected": " a verb, été"}, "The sky is", " blue.</s>", " a verb, été</s>"),
    ({"chosen": "Say: yes 😀", "rejected": "Say: no 😁"}, "Say:", " yes 😀</s>", " no 😁</s>"),
    ({"prompt": turns("Hi"), "chosen": turns("Hello", first="assistant"), "rejected": turns("No", first="assistant")},
     "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Hello<|im_end|>\n", "No<|im_end|>\n"),
    ({"chosen": turns("Hi", "Hello"), "rejected": turns("Hi", "No")},
     "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Hello<|im_end|>\n", "No<|im_end|>\n"),
]  # fmt: skip
LENGTH = 48
LONG = {"prompt": "x " * 99, "chosen": "a", "rejected": "b"}


def write(path, records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def test_pairs_have_the_forms_of_trl(language_model, tmp_path):
    folder, tokenizer = language_model
    path = write(tmp_path / "pairs.jsonl", [record for record, *_ in FORMS] + [LONG])
    arrays = onnx_train.load_data(path, folder / "train.onnx", tokenizer=str(folder), block_size=LENGTH)
    assert arrays["input_ids"].shape == arrays["labels"].shape == (2 * len(FORMS), LENGTH)
    for i, (_, prompt, *both) in enumerate(FORMS):
        for row, answer in zip((2 * i, 2 * i + 1), both):
            all_tokens, asked = (tokenizer.encode(text).ids for text in (prompt + answer, prompt))
            begin = next(k for k, (a, b) in enumerate(zip(all_tokens, [*asked, None])) if a != b)
            size = len(all_tokens) - 1
            assert arrays["input_ids"][row, :size].tolist() == all_tokens[:-1], (i, answer)
            labels = np.full(LENGTH, -100)
            labels[begin - 1 : size] = all_tokens[begin:]
            assert arrays["labels"][row].tolist() == labels.tolist(), (i, answer)


def test_the_command_trains_on_pairs(language_model, tmp_path):
    folder, _ = language_model
    pairs = write(tmp_path / "pairs.jsonl", [record for record, *_ in FORMS] * 3)
    fit = ["fit", folder / "lm.onnx", "--data", pairs, "--tokenizer", folder, "--block-size", LENGTH, "--batch-size", 4]
    printed = tool.run(*fit, "--loss", "dpo(beta=0.1)", "--lora", "rank=2", "--eval-data", pairs, "--epochs", 2, "--lr", 0.05,
                       "--out", tmp_path / "run")  # fmt: skip
    assert "12 pairs of answers in rows of 48 tokens" in printed and "rewards/margins" in printed
    assert "frozen copy" not in printed and "eval rewards/margins" in printed
    with open(tmp_path / "run" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 and float(rows[0]["loss"]) == pytest.approx(math.log(2), abs=1e-6)
    assert float(rows[0]["rewards/margins"]) == 0 and float(rows[-1]["rewards/margins"]) > 0
    assert int(rows[0]["samples"]) == 4 and int(rows[0]["tokens"]) == 4 * 2 * LENGTH
    assert {"rewards/chosen", "rewards/rejected", "accuracy"} <= set(rows[0])
    # What is exported knows nothing of pairs or of a reference.
    tool.run("export", tmp_path / "run" / "last.onnx", "-o", tmp_path / "tuned.onnx", "--merge")
    assert [i.name for i in onnx.load(tmp_path / "tuned.onnx").graph.input] == ["input_ids"]
    whole = tool.run(*fit, "--steps", 1, "--out", tmp_path / "whole")
    assert "holds pairs of answers" in whole and "a frozen copy of 3 of the weights that train" in whole


def test_rows_have_masks_and_positions(language_model, tmp_path):
    folder, tokenizer = language_model
    size = tokenizer.get_vocab_size()
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        lm (int64[N, T] input_ids, int64[N, T] attention_mask, int64[N, T] position_ids) => (float[N, T, {size}] logits)
        <float[{size}, {size}] table, float[64, {size}] places, int64[1] last = {{-1}}>
        {{ e = Gather(table, input_ids)
           p = Gather(places, position_ids)
           m = Cast<to = 1>(attention_mask)
           each = Unsqueeze(m, last)
           sum = Add(e, p)
           logits = Mul(sum, each) }}""")
    for name, rows in dict(table=size, places=64).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((rows, size), np.float32), name))
    built = onnx_train.build(model, "dpo(beta=1)", "sgd")
    data = write(tmp_path / "pairs.jsonl", [FORMS[0][0], FORMS[1][0]])
    run = onnx_train.fit(built, data, tokenizer=str(folder), block_size=LENGTH, steps=2, batch_size=2, lr=1.0, progress=False)
    assert run.steps[0].loss == pytest.approx(math.log(2)) and run.steps[1].loss < 0.6
    arrays = onnx_train.load_data(data, built, tokenizer=str(folder), block_size=LENGTH)
    assert np.array_equal(arrays["attention_mask"] == 0, np.cumsum(arrays["labels"][:, ::-1] >= 0, 1)[:, ::-1] == 0)


@pytest.mark.parametrize("loss, lines, message", [
    ("cross_entropy(axis=2)", [FORMS[0][0]], "holds pairs of answers, which loss='dpo(beta=0.1)' compares"),
    ("dpo(beta=0.1)", [{"text": "a b"}], "the loss compares pairs of answers, which are read of lines of .jsonl"),
    ("dpo(beta=0.1)", [FORMS[0][0], {"chosen": "a", "rejected": 3}], "line 2 is no JSON object with \"chosen\" and \"rejected\""),
    ("dpo(beta=0.1)", [LONG], "no pair has both answers in its first"),
    ("dpo(beta=0.1) + cross_entropy", [FORMS[0][0]], "dpo without log-probabilities stands alone"),
    ("dpo(loss_type=ipo, label_smoothing=0.1)", [FORMS[0][0]], "loss_type=ipo has no label_smoothing"),
])  # fmt: skip
def test_what_does_not_fit_is_one_line(language_model, tmp_path, loss, lines, message):
    folder, _ = language_model
    data = write(tmp_path / "pairs.jsonl", lines)
    with pytest.raises(onnx_train.Error) as error:
        built = onnx_train.build(folder / "lm.onnx", loss)
        onnx_train.load_data(data, built, tokenizer=str(folder), block_size=LENGTH)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_rows_that_are_no_pairs_are_refused():
    model = onnx_train.build(network(), "dpo(beta=0.1)")
    arrays = {name: value[:5] for name, value in batch().items()}
    with pytest.raises(onnx_train.Error, match="has 5 rows; the loss compares pairs of them"):
        onnx_train.fit(model, arrays, steps=1)
    run = onnx_train.fit(model, batch(), steps=1, batch_size=2)
    assert run.steps[0].samples == 2
    with pytest.raises(onnx_train.Error, match=r"float\[batch,tokens,vocabulary\]"):
        onnx_train.build(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
            f (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"""), "dpo")
