"""Conversations as arrays of tokens: labels are the answers alone, by our template and by those of transformers."""

import json
import sys
import warnings

import numpy as np
import pytest
import tool
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import onnx_train

# transformers tells what an answer is by {% generation %}; of templates without it, tokenize_chats finds it out.
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<a> {% generation %}{{ m.content }} <end>{% endgeneration %} "
    "{% else %}<u> {{ m.content }} <end> {% endif %}{% endfor %}{% if add_generation_prompt %}<a> {% endif %}"
)


def conversation(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


CHATS = [conversation("a b", "c"), conversation("a", "b c", "d", "a a a"), conversation("a b c d a b c d", "a")]


class Letters:
    def encode(self, text):
        return [ord(letter) for letter in text]


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps({"messages": messages}) for messages in CHATS) + "\n\n")
    return path


@pytest.fixture(scope="module")
def tokenizer():
    words = {word: i for i, word in enumerate("<u> <a> <end> a b c d".split())}
    plain = Tokenizer(models.WordLevel(words, unk_token="d"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, chat_template=CHAT_TEMPLATE)


def test_answers_alone_have_labels(chats, tmp_path):
    template = {"user": ("?", ""), "assistant": ("!", ".")}
    written = onnx_train.tokenize_chats(Letters(), chats, tmp_path / "x.npz", length=14, template=template, pad=7)
    # "?a!b c.?d!a a a." is cut before its last letter; the third conversation's answer comes after 14 tokens.
    assert (written.samples, written.answer_tokens, written.cut, written.left_out) == (2, 2 + 9, 1, 1)
    data = tool.load(tmp_path / "x.npz")
    assert bytes(data["input_ids"][1].astype(np.uint8)) == b"?a!b c.?d!a a "
    labels = [chr(label) if label != -100 else "_" for label in data["labels"][1]]
    assert "".join(labels) == "__b c.___a a a"
    assert data["input_ids"][0].tolist() == [*b"?a b!c", *[7] * 8]
    assert data["attention_mask"].sum(1).tolist() == [6, 14] and (data["labels"][0, 6:] == -100).all()


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_chat_template_marks_what_transformers_marks(chats, tmp_path, tokenizer, is_marked):
    plain = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    used = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, chat_template=CHAT_TEMPLATE if is_marked else plain
    )
    written = onnx_train.tokenize_chats(used, chats, tmp_path / "x.npz", length=16)
    data = tool.load(tmp_path / "x.npz")
    for row, messages in enumerate(CHATS):
        marked = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        ids, answers = np.array(marked["input_ids"]), np.array(marked["assistant_masks"])
        count = len(ids) - 1
        np.testing.assert_array_equal(data["input_ids"][row, :count], ids[:-1])
        np.testing.assert_array_equal(data["labels"][row, :count], np.where(answers[1:] == 1, ids[1:], -100))
    assert written.left_out == written.cut == 0


def test_a_template_that_reads_no_generation_prompt_is_said(chats, tmp_path, tokenizer):
    deaf = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "").replace("if add_generation_prompt", "if 0")
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, chat_template=deaf)
    with pytest.warns(UserWarning, match="does not read add_generation_prompt"):
        onnx_train.tokenize_chats(own, chats, tmp_path / "x.npz", length=16)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                      {"role": "assistant", "content": "c"}]},
        {"instruction": "ab", "input": "", "output": "c"},
        {"prompt": "ab", "completion": "c"},
    ],
)  # fmt: skip
def test_conversations_have_several_forms(tmp_path, record):
    template = {"user": ("?", ""), "assistant": ("!", ".")}
    (tmp_path / "chats.jsonl").write_text(json.dumps(record))
    onnx_train.tokenize_chats(Letters(), tmp_path / "chats.jsonl", tmp_path / "x.npz", length=8, template=template)
    assert bytes(tool.load(tmp_path / "x.npz")["input_ids"][0][:5].astype(np.uint8)) == b"?ab!c"


def test_conversations_without_an_answer_are_named(tmp_path):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}))
    with pytest.raises(onnx_train.DataError, match="no message has the role 'assistant'.*the roles are user"):
        onnx_train.tokenize_chats(Letters(), tmp_path / "chats.jsonl", tmp_path / "x.npz", length=8)
    with pytest.raises(onnx_train.DataError, match="a list of texts"):
        (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": [{"type": "image"}]}]}))
        onnx_train.tokenize_chats(Letters(), tmp_path / "chats.jsonl", tmp_path / "x.npz", length=8)


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"messages": [{"role": "user"}]}', "line 2 is no JSON object"),
        ("{", "line 2 is no JSON: "),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "line 2: the template has no role 'tool'; it has system"),
    ],
)
def test_what_is_wrong_is_named_and_a_file_stays_as_it_was(tmp_path, line, message):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": CHATS[0]}) + "\n" + line + "\n")
    (tmp_path / "x.npz").write_bytes(b"before")
    with pytest.raises(onnx_train.DataError, match=message):
        onnx_train.tokenize_chats(Letters(), tmp_path / "chats.jsonl", tmp_path / "x.npz", length=8)
    assert (tmp_path / "x.npz").read_bytes() == b"before" and not list(tmp_path.glob("*.partial"))


def test_a_chat_template_that_rewrites_its_beginning_is_refused(chats, tmp_path, tokenizer):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, chat_template="{{ messages | length }} <a> {{ messages[-1].content }}"
    )
    with pytest.raises(onnx_train.DataError, match="line 1: the tokenizer's chat template changes"):
        onnx_train.tokenize_chats(tokenizer, chats, tmp_path / "x.npz", length=8)
    with pytest.raises(onnx_train.DataError, match="no conversation has an answer in its first 1 tokens"):
        onnx_train.tokenize_chats(Letters(), chats, tmp_path / "x.npz", length=1)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_path_whose_folder_has_a_chat_template_is_written_by_it(chats, tmp_path, tokenizer, file, monkeypatch):
    folder = tmp_path / "saved"
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = {key: value for key, value in json.loads((folder / "tokenizer_config.json").read_text()).items() if key != "chat_template"}
    if file == "chat_template.jinja":
        (folder / file).write_text(CHAT_TEMPLATE)
    else:
        config["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    expected = onnx_train.tokenize_chats(tokenizer, chats, tmp_path / "a.npz", length=16)
    assert onnx_train.tokenize_chats(folder / "tokenizer.json", chats, tmp_path / "b.npz", length=16) == expected
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(onnx_train.UsageError, match="has a chat template, which needs the package transformers"):
        onnx_train.tokenize_chats(folder / "tokenizer.json", chats, tmp_path / "b.npz", length=16)
    own = {"user": ("<u> ", " <end> "), "assistant": ("<a> ", " <end> ")}
    onnx_train.tokenize_chats(folder / "tokenizer.json", chats, tmp_path / "c.npz", length=16, template=own)


def test_markers_that_are_no_tokens_are_said(chats, tmp_path, tokenizer):
    """One word is unknown, one is spelled; those that the tokenizer knows are not named."""
    plain = tokenizer.backend_tokenizer
    with pytest.warns(UserWarning, match=r"<\|im_start\|>, <\|im_end\|> of ChatML's markers are no tokens"):
        onnx_train.tokenize_chats(plain, chats, tmp_path / "x.npz", length=60)
    with pytest.warns(UserWarning, match="tokenize_chats: <v> of template's markers are no tokens"):
        onnx_train.tokenize_chats(plain, chats, tmp_path / "x.npz", length=60, template={"user": ("<v> ", " <end> "), "assistant": ("<a> ", "")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = {"user": ("<u> ", " <end> "), "assistant": ("<a> ", " <end> ")}
        onnx_train.tokenize_chats(plain, chats, tmp_path / "x.npz", length=60, template=own)


def test_other_forms_of_conversations_are_read_alike(tmp_path):
    turns = [("user", "a"), ("assistant", "bc")]
    forms = [{"messages": [{"role": role, "content": text} for role, text in turns]},
             {"conversations": [{"from": {"user": "human", "assistant": "gpt"}[role], "value": text} for role, text in turns]},
             {"prompt": "a", "completion": "bc"}]  # fmt: skip
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(form) + "\n" for form in forms))
    onnx_train.tokenize_chats(Letters(), tmp_path / "chats.jsonl", tmp_path / "x.npz", length=60)
    labels = np.load(tmp_path / "x.npz")["labels"]
    assert len(labels) == 3 and (labels == labels[0]).all() and (labels != -100).any()
