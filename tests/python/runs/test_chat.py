"""`sample --chat`: answers as transformers writes them, turn by turn; what is read again; Ctrl-C, a full context, refusals. Stops of texts."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tool
import torch
import transformers
from export import quiet
from terminal import Terminal

sys.path.append(str(Path(__file__).parents[1] / "texts"))
import chat_templates  # noqa: E402
import tokenizer_families  # noqa: E402

READ = re.compile(r"prompt: (\d+) tokens, \S+; written one by one: (\d+) tokens")
MESSAGES = ["Wie geht's?", "naïve 😀 façade", "x != y"]


class Logits(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, input_ids, attention_mask, position_ids):
        return self.module(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False).logits


def llama(vocabulary):
    """Random weights, large enough that the most likely token is far from the next one."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, pad_token_id=0,
        max_position_embeddings=100_000, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    module = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return module


class Folder:
    """A model as people download it: model.onnx, config.json, tokenizer.json, tokenizer_config.json with a chat template."""

    def __init__(self, path):
        self.path, self.model = path, path / "model.onnx"
        plain = tokenizer_families.byte_bpe(500, pattern=tokenizer_families.GPT4)
        plain.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=plain, eos_token="<|endoftext|>", chat_template=chat_templates.TEMPLATES["chatml"]
        )
        self.tokenizer.save_pretrained(path)
        self.module = llama(len(self.tokenizer))
        self.module.config.save_pretrained(path)
        inputs, text = ["input_ids", "attention_mask", "position_ids"], torch.randint(2, 50, (2, 7))
        with quiet():
            torch.onnx.export(
                Logits(self.module), (text, torch.ones_like(text), torch.arange(7).repeat(2, 1)), self.model, dynamo=False, opset_version=18,
                input_names=inputs, output_names=["logits"], dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*inputs, "logits"]},
            )  # fmt: skip

    def chat(self, text, *options, status=0):
        """What a pipe gets for these lines: standard output, and what is said beside it."""
        arguments = [tool.COMMAND, "sample", self.model, "--tokenizer", self.path, "--chat", "--temperature", "0", *map(str, options)]
        done = subprocess.run(arguments, input=text.encode() if isinstance(text, str) else text, capture_output=True, timeout=tool.PATIENCE,
                              env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
        assert done.returncode == status, done.stderr.decode()
        return done.stdout.decode(), done.stderr.decode()

    def written(self, prompt, **options):
        """The tokens of transformers after the prompt."""
        tokens = torch.tensor([prompt])
        with torch.no_grad():
            drawn = self.module.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, **options)
        return drawn[0, len(prompt) :].tolist()

    def expected(self, messages, tokens, ends, system=None):
        """The answers of transformers, and how many tokens a cache leaves to read."""
        turns = [{"role": "system", "content": system}] if system else []
        known, read, answers = [], 0, []
        for message in messages:
            turns.append({"role": "user", "content": message})
            prompt = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
            common = next((i for i, (a, b) in enumerate(zip(prompt, known)) if a != b), min(len(prompt), len(known)))
            read += len(prompt) - min(common, len(prompt) - 1)
            written = self.written(prompt, max_new_tokens=tokens, eos_token_id=ends)
            known = prompt + written[:-1]
            answers.append(self.tokenizer.decode(written, skip_special_tokens=True))
            turns.append({"role": "assistant", "content": answers[-1]})
        return answers, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("chat"))


@pytest.fixture(autouse=True)
def without_generation_config(folder):
    yield
    (folder.path / "generation_config.json").unlink(missing_ok=True)


@pytest.mark.parametrize("system", [None, "Sei kurz."])
def test_a_conversation_is_that_of_transformers_and_only_what_is_new_is_read(folder, system):
    options = ["--system", system] if system else []
    ends = [folder.tokenizer.convert_tokens_to_ids("<|im_end|>")]
    answers, read = folder.expected(MESSAGES, 24, ends, system)
    shown, said = folder.chat("\n\n".join(MESSAGES), "--tokens", 24, *options)
    assert shown == "".join(answer + "\n" for answer in answers)
    assert int(READ.search(said)[1]) == read and "anew" not in said and "note" not in said
    assert folder.chat("\r\n".join(MESSAGES), "--tokens", 24, "--no-cache", *options)[0] == shown


def test_an_answer_ends_at_the_tokens_of_generation_config(folder):
    prompt = folder.tokenizer.apply_chat_template([{"role": "user", "content": MESSAGES[0]}], add_generation_prompt=True, return_dict=True)["input_ids"]
    drawn = folder.written(prompt, max_new_tokens=12)
    end = next(token for i, token in enumerate(drawn) if i > 2 and token not in drawn[:i])
    (folder.path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 3]}))
    expected = folder.tokenizer.decode(drawn[: drawn.index(end)], skip_special_tokens=True)
    assert folder.chat(MESSAGES[0], "--tokens", 12)[0] == expected + "\n"
    # Without --chat, too, where the token that ends a text is a part of it.
    sampled = tool.output("sample", folder.model, "--tokenizer", folder.path, "--prompt-ids", ",".join(map(str, prompt)), "--temperature", 0, "--ids")
    assert [int(number) for number in sampled.split()][len(prompt) :] == drawn[: drawn.index(end) + 1]
    # A text of --stop, which is no part of an answer.
    (folder.path / "generation_config.json").unlink()
    whole = folder.chat(MESSAGES[0], "--tokens", 12)[0]
    stop = whole[3:5]
    assert folder.chat(MESSAGES[0], "--tokens", 12, "--stop", stop)[0] == whole[: whole.index(stop)] + "\n"
    (folder.path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    assert "generation_config.json: 'eos_token_id' is \"x\", no number of a token" in folder.chat("a", status=1)[1]


def test_oldest_turns_are_left_out_where_the_context_is_full(folder):
    shown, said = folder.chat("\n".join(["one two three"] * 12), "--tokens", 8, "--context", 80)
    assert said.count("its oldest turns are left out from here on") == 1 and "longer than the 80 tokens" in said
    last = folder.chat("one two three", "--tokens", 8, "--context", 80)[0]
    assert shown.startswith(last)
    shown, said = folder.chat("a\n" + "long " * 60 + "\na", "--context", 60, "--seed", 1, status=1)
    assert "the message is too long: with what stands before it " in said and "of which the model reads 60" in said
    assert said.count("an answer ends where the 60 tokens that the model reads are full") == 1  # said once, of two


def test_what_is_refused_is_said_and_the_conversation_goes_on(folder):
    alone = folder.chat("Hi", "--tokens", 6)[0]
    shown, said = folder.chat(b"\xff\xfe\nHi\n", "--tokens", 6, status=1)
    assert shown == alone and "the conversation has no tokens of" in said and "no UTF-8" in said
    template = folder.path / "chat_template.jinja"
    written = template.read_text()
    try:
        template.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + written)
        assert "no system role" in folder.chat("Hi", "--system", "x", status=1)[1]
        # Of a template whose turns end with text, the text ends an answer; with nothing, that is said.
        turns = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% if m.role == 'assistant' %}END{% endif %} {% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
        template.write_text(turns.replace("END", ""))
        assert "note" not in folder.chat("Hi", "--tokens", 2)[1]
        config = json.loads((folder.path / "tokenizer_config.json").read_text())
        (folder.path / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))
        assert "nothing says where an answer ends" in folder.chat("Hi", "--tokens", 2)[1]
        first = folder.chat("Hi", "--tokens", 8)[0]
        at = next(i for i in range(1, len(first)) if first[i : i + 2].isalpha() and first[i : i + 2].isprintable())
        stop = first[at : at + 2]
        template.write_text(turns.replace("END", stop))
        shown, said = folder.chat("Hi", "--tokens", 8)
        assert shown == first[: first.index(stop)] + "\n" and "note" not in said
    finally:
        template.write_text(written)
        (folder.path / "tokenizer_config.json").write_text(json.dumps(config))
    for option in ["--prompt", "x"], ["--texts", 2], ["--ids"]:
        assert f"leave out {option[0]}" in folder.chat("", *option, status=2)[1]
    assert "--tokenizer" in tool.run("sample", folder.model, "--chat", status=2)
    assert "--system" in tool.run("sample", folder.model, "--prompt-ids", 1, "--system", "x", status=2)


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_conversation(folder):
    arguments = ["sample", folder.model, "--tokenizer", folder.path, "--chat", "--temperature", "0", "--tokens", "90000"]

    def asks(output):  # answers of this model may have the signs of the prompt, too
        return re.search(r"(\A|\n)> \Z", output.replace("\r", ""))

    with contextlib.closing(Terminal(80, 24, *arguments)) as shown:
        for _ in range(2):
            shown.until(asks)
            shown.forget()
            shown.press("Hi\n")
            shown.until(lambda output: len(output) > 100)  # far from its end
            shown.press("\x03")
        shown.until(asks)
        shown.press("\x04")
        assert shown.end() == 0
        assert int(READ.search(shown.output)[2]) < 90000


def test_stops_are_texts_whatever_the_tokens(folder):
    """A stop that begins or ends inside of a token, of one of several prompts of different lengths."""
    prompts = ["Hi", "Der Fuchs springt", "x"]
    given = [argument for prompt in prompts for argument in ("--prompt", prompt)]
    arguments = ["sample", folder.model, "--tokenizer", folder.path, "--temperature", 0, "--tokens", 20]

    def written(*options):
        return [text.strip("\n") for text in re.split(r"^--- \d\n", tool.output(*arguments, *options), flags=re.MULTILINE)[1:]]

    whole = written(*given)
    assert len(whole) == 3
    for prompt, text in zip(prompts, whole):
        assert text == tool.output(*arguments, "--prompt", prompt).strip("\n") and text.startswith(prompt)
    ids = folder.tokenizer.encode(prompts[1], add_special_tokens=False)
    drawn = [int(n) for n in tool.output(*arguments, "--prompt", prompts[1], "--ids").split()][len(ids) :]
    # A character before the end of a token to one after the beginning of the next.
    decoded = [folder.tokenizer.decode([token]) for token in drawn]
    at = next(i for i in range(2, 18) if len(decoded[i]) > 1 and len(decoded[i + 1]) > 1 and (decoded[i] + decoded[i + 1]).isprintable()
              and "\ufffd" not in decoded[i] + decoded[i + 1])  # fmt: skip
    stop = decoded[at][-1] + decoded[at + 1][0]
    end = whole[1].index(stop, len(prompts[1])) + len(stop)
    for text, stopped in zip(whole, written(*given, "--stop", "never", "--stop", stop)):
        cut = text.find(stop, 2)
        assert stopped == (text if cut < 0 else text[: cut + len(stop)])
    assert end < len(whole[1])

    import onnx_train

    session = onnx_train.Session(folder.model)
    options = {"tokenizer": folder.tokenizer, "tokens": 20, "temperature": 0}
    plain = onnx_train.generate(session, prompts, **options)
    stopped = onnx_train.generate(session, prompts, stop=["never", stop], **options)
    for text, part in zip(plain, stopped):
        cut = text.find(stop)
        assert part == (text if cut < 0 else text[: cut + len(stop)])
    assert stopped[1] != plain[1]
