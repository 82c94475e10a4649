"""Tokens a second of a language model that writes: ours with and without a cache, and ONNX Runtime's loop on the same
cached model, with IO binding.

    .deps/venv/bin/python bench/texts.py                # a GPT-2 of 34 million weights, 256 tokens after a prompt of 64
    .deps/venv/bin/python bench/texts.py --model gpt2.onnx --threads 2 --tokens 128

They take turns, in rounds, with the same number of threads; the most likely token is written. The table has the median
of the rounds, from the second token on, and in brackets the least and the largest. Both programs have to write the same
tokens.

    .deps/venv/bin/python bench/texts.py --tokenizers [--lines 4000] [--families gpt2 bert]

Megabytes of text a second that become tokens in one thread, by ours and by Hugging Face's tokenizers, for each family of
tests/python/texts: lines of fifteen languages, code and emoji. Processor time, the best of the rounds, in turn; both must give as
many tokens.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
COMMAND, TOOL = ROOT / "build" / "onnx-train", ROOT / "build" / "tests" / "tokenizer_tool"
WRITTEN = re.compile(r"written one by one: \d+ tokens, (\S+)/s")


def make(path):
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = dict(vocab_size=8192, n_positions=1024, n_embd=512, n_layer=8, n_head=8)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False, attn_implementation="eager")).eval()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, input_ids, attention_mask):
            return self.module(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits

    text = torch.randint(2, 50, (2, 7))
    both = {0: "batch", 1: "tokens"}
    torch.onnx.export(
        Logits(), (text, torch.ones_like(text)), path, dynamo=False, opset_version=18, input_names=["input_ids", "attention_mask"],
        output_names=["logits"], dynamic_axes={"input_ids": both, "attention_mask": both, "logits": both},
    )  # fmt: skip


def ours(model, prompt, options, *more):
    arguments = ["--prompt-ids", ",".join(map(str, prompt)), "--tokens", options.tokens, "--threads", options.threads]
    run = subprocess.run([COMMAND, "sample", model, *map(str, arguments), "--temperature", "0", *more],
                         capture_output=True, text=True, check=True)  # fmt: skip
    return float(WRITTEN.search(run.stderr)[1]), [int(token) for token in run.stdout.split()][len(prompt) :]


def with_onnxruntime(model, prompt, options):
    run = subprocess.run(
        [sys.executable, __file__, "--worker", model, "--tokens", str(options.tokens), "--threads", str(options.threads),
         "--prompt", str(len(prompt))], capture_output=True, text=True, check=True)  # fmt: skip
    return json.loads(run.stdout)


def worker(options):
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(options.worker, settings, providers=["CPUExecutionProvider"])
    inputs, outputs = {i.name: i for i in session.get_inputs()}, [o.name for o in session.get_outputs()]
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    cache = {
        name: value(np.zeros([1 if d == "batch" else 0 if isinstance(d, str) else d for d in i.shape], np.float32))
        for name, i in inputs.items() if name.startswith("past")
    }  # fmt: skip
    read, total, written, start = np.arange(1, options.prompt + 1)[None], 0, [], 0.0
    for step in range(options.tokens):
        total += read.shape[1]
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", read)
        if "attention_mask" in inputs:
            binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        for name, tensor in cache.items():
            binding.bind_ortvalue_input(name, tensor)
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        cache = dict(zip(cache, present, strict=True))
        read = logits.numpy()[:, -1:].argmax(-1)
        written.append(int(read[0, 0]))
        if step == 0:
            start = time.perf_counter()
    print(json.dumps([(options.tokens - 1) / (time.perf_counter() - start), written]))


def seconds_of(encode, texts):
    start = time.process_time()
    tokens = encode(texts)
    return time.process_time() - start, tokens


def tokenizers_of(folder, tokenizer, texts):
    """(seconds, tokens) of ours, of a batch without offsets, and of a text at a time."""
    done = subprocess.run([TOOL, folder, folder / "texts.json"], capture_output=True, text=True, check=True)
    seconds, tokens = done.stdout.split()
    batch = seconds_of(lambda all: sum(map(len, tokenizer.encode_batch_fast(all, add_special_tokens=False))), texts)
    alone = seconds_of(lambda all: sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in all), texts)
    return (float(seconds), int(tokens)), batch, alone


def compare_tokenizers(options):
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.path.append(str(ROOT / "tests" / "python" / "texts"))
    import tokenizer_families

    print("| family | onnx-train, MB/s | `encode_batch_fast` | `encode` | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for family in tokenizer_families.FAMILIES:
        if options.families and family.__name__ not in options.families:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder, tokenizer = Path(name), family()
            tokenizer.save(str(folder / "tokenizer.json"))
            special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
            texts = list(tokenizer_families.lines(options.lines, seed=2, special=special))
            (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
            rounds = [tokenizers_of(folder, tokenizer, texts) for _ in range(options.rounds)]
        assert len({tokens for results in rounds for _, tokens in results}) == 1, f"{family.__name__}: other numbers of tokens"
        best = [min(results[i][0] for results in rounds) for i in range(3)]
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        rates = [f"{megabytes / seconds:.2f}" for seconds in best]
        print("| " + " | ".join([family.__name__, *rates, f"{best[1] / best[0]:.2f}"]) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="an export without a cache, both axes open")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--tokenizers", action="store_true", help="compare tokenizers")
    parser.add_argument("--lines", type=int, default=4000, help="of text, for each family")
    parser.add_argument("--families", nargs="*", help="all by default")
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    if options.tokenizers:
        return compare_tokenizers(options)
    with tempfile.TemporaryDirectory() as folder:
        model, training, cached = (Path(folder) / name for name in ("model.onnx", "train.onnx", "cached.onnx"))
        if options.model:
            model = Path(options.model)
        else:
            make(model)
        subprocess.run([COMMAND, "build", model, "-o", training, "--optimizer", "sgd"], capture_output=True, check=True)
        subprocess.run([COMMAND, "export", training, "-o", cached, "--cache"], capture_output=True, check=True)
        prompt = list(range(1, options.prompt + 1))
        contestants = {
            "with a cache": lambda: ours(model, prompt, options),
            "without one": lambda: ours(model, prompt, options, "--no-cache"),
            "ONNX Runtime, with it": lambda: with_onnxruntime(cached, prompt, options),
        }
        rates = {name: [] for name in contestants}
        for _ in range(options.rounds):
            written = {}
            for name, run in contestants.items():
                rate, written[name] = run()
                rates[name].append(rate)
            assert len({tuple(tokens) for tokens in written.values()}) == 1, "they write different tokens"
    for name, found in rates.items():
        print(f"{name:24}{statistics.median(found):8.1f} tokens/s  ({min(found):.1f} to {max(found):.1f})")


if __name__ == "__main__":
    main()
