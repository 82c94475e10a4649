"""Megabytes of text a second that become tokens in one thread: ours against Hugging Face's tokenizers, for each family of models.

    .deps/venv/bin/python bench/text_tokens.py [--lines 20000] [--rounds 3] [--families gpt2 bert]

The tokenizers are those of tests/python/texts, trained on lines of fifteen languages, code and emoji; the texts are other such
lines. The two take turns; what is printed is of processor time, the best of the rounds. Both must give as many tokens.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "python" / "texts"))
import tokenizer_families  # noqa: E402


def theirs(tokenizer, texts):
    start = time.process_time()
    tokens = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return time.process_time() - start, tokens


def theirs_in_a_batch(tokenizer, texts):
    start = time.process_time()
    tokens = sum(map(len, tokenizer.encode_batch_fast(texts, add_special_tokens=False)))
    return time.process_time() - start, tokens


def ours(bench, folder):
    done = subprocess.run([bench, folder, folder / "texts.json"], capture_output=True, text=True, check=True)
    seconds, tokens = done.stdout.split()
    return float(seconds), int(tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=ROOT / "build" / "bench" / "text_tokens_bench", type=Path)
    parser.add_argument("--lines", default=20000, type=int)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--families", nargs="*", help="all by default")
    arguments = parser.parse_args()
    print("| family | onnx-train, MB/s | `encode_batch_fast`, MB/s | `encode`, MB/s | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for family in tokenizer_families.FAMILIES:
        if arguments.families and family.__name__ not in arguments.families:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder, tokenizer = Path(name), family()
            tokenizer.save(str(folder / "tokenizer.json"))
            special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
            texts = list(tokenizer_families.lines(arguments.lines, seed=2, special=special))
            (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
            megabytes = sum(len(text.encode()) for text in texts) / 1e6
            contestants = lambda: (ours(arguments.bench, folder), theirs_in_a_batch(tokenizer, texts), theirs(tokenizer, texts))  # noqa: E731
            rounds = [contestants() for _ in range(arguments.rounds)]
        assert len({tokens for results in rounds for _, tokens in results}) == 1, f"{family.__name__}: other numbers of tokens"
        best = [min(results[i][0] for results in rounds) for i in range(3)]
        rates = [f"{megabytes / seconds:.2f}" for seconds in best]
        print("| " + " | ".join([family.__name__, *rates, f"{best[1] / best[0]:.2f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
