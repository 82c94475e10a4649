"""LoRA of a Qwen2.5 of random weights: peak memory and time of a step beside PyTorch with transformers and PEFT.

    python bench/qwen/shape.py qwen.onnx --shape 0.5b
    python bench/qwen/lora.py qwen.onnx --rounds 3
    python bench/qwen/lora.py qwen.onnx --contestants ours:bf16 ours:bf16:--memory=1GiB peft:bf16:checkpointing

A contestant is `ours` or `peft`, then its options after colons: bf16 trains on bfloat16 activations (ours) or a bfloat16 model
(PEFT), `checkpointing` is PyTorch's own, what begins with -- goes to fit. Each turn is a process of its own that trains
the same texts from the same weights by AdamW; turns of all contestants alternate. Time is the median of a turn's steps after the
first two, memory the process's peak (VmHWM): of ours with all that it maps, the file's frozen weights among it.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WARM_UP = 2
LORA = dict(rank=8, alpha=16)
RATE = 1e-4


def peak_of_children():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def turn(command, log):
    """Runs it as the only child of a process, so that the peak is its own."""
    child = os.fork()
    if child == 0:
        with open(log, "w") as out:
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
        Path(f"{log}.peak").write_text(str(peak_of_children()))
        os._exit(min(code, 255))
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{Path(log).read_text()[-2000:]}")
    return int(Path(f"{log}.peak").read_text())


class Ours:
    def __init__(self, options, a, folder):
        self.a, self.folder = a, folder
        self.options = [o for o in options if o.startswith("--")]
        self.precision = "bf16" if "bf16" in options else "float32"
        self.train = folder / f"train_{self.precision}.onnx"

    def build(self):
        if not self.train.exists():
            adapters = ",".join(f"{key}={value}" for key, value in LORA.items())
            subprocess.run([self.a.onnx_train, "build", self.a.model, "-o", self.train, "--lora", adapters, "--precision",
                            self.precision, "--optimizer", "adamw(weight_decay=0)"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip

    def measure(self, turn_number):
        run = self.folder / f"run{turn_number}"
        peak = turn([self.a.onnx_train, "fit", self.train, "--data", self.a.model.with_suffix(".npz"), "--batch-size", "1", "--steps",
                     str(self.a.steps), "--lr", str(RATE), "--no-shuffle", "--out", run, *self.options], self.folder / "log")  # fmt: skip
        steps = [json.loads(line) for line in open(run / "metrics.jsonl")]
        for file in run.iterdir():
            file.unlink()
        return [s["loss"] for s in steps], [s["ms"] for s in steps], peak


class Peft:
    def __init__(self, options, a, folder):
        self.options, self.a, self.folder = options, a, folder

    def build(self):
        pass

    def measure(self, turn_number):
        result = self.folder / "result.json"
        peak = turn([sys.executable, __file__, self.a.model, "--worker", result, "--steps", str(self.a.steps), "--contestants",
                     ":".join(["peft", *self.options])], self.folder / "log")  # fmt: skip
        return *json.loads(result.read_text()), peak


def load(model, path):
    """The file's weights in the module's place; each is read from the mapped data once."""
    import onnx
    import torch

    tensors = {t.name: t for t in onnx.load(path, load_external_data=False).graph.initializer}
    mapped = np.memmap(path.with_name(path.name + ".data"), np.uint8, "r")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            tensor = tensors[name]
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                weight.copy_(torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()))
                continue
            where = {e.key: e.value for e in tensor.external_data}
            start, length = int(where["offset"]), int(where["length"])
            bits = mapped[start : start + length]
            numbers = (torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
                       if tensor.data_type == onnx.TensorProto.BFLOAT16 else torch.from_numpy(bits.view(np.float32).copy()))  # fmt: skip
            numbers = numbers.reshape(tuple(tensor.dims))
            weight.copy_(numbers if numbers.shape == weight.shape and "embed" in name else numbers.T)


def train_by_peft(a, options):
    import peft
    import torch
    import transformers
    from shape import SHAPES

    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kind = torch.bfloat16 if "bf16" in options else torch.float32
    s = SHAPES[a.shape]
    config = transformers.Qwen2Config(
        vocab_size=s.vocabulary, hidden_size=s.width, intermediate_size=s.inner, num_hidden_layers=s.layers, num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads, max_position_embeddings=s.context, tie_word_embeddings=True, use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, bos_token_id=0, eos_token_id=0)  # fmt: skip
    with torch.device("meta"):
        model = transformers.Qwen2ForCausalLM(config).to(kind)
    rotary = model.model.rotary_emb.__class__(config)
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = rotary
    model.tie_weights()
    for name, weight in model.named_parameters():
        weight.requires_grad_(False)
        if name.endswith("bias"):
            weight.zero_()
    load(model, a.model)
    if "checkpointing" in options:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(r=LORA["rank"], lora_alpha=LORA["alpha"], target_modules="all-linear"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0, fused=True)
    data = np.load(a.model.with_suffix(".npz"))
    losses, times = [], []
    for step in range(a.steps):
        i = step % len(data["labels"])
        start = time.perf_counter()
        logits = model(input_ids=torch.from_numpy(data["input_ids"][i : i + 1])).logits
        loss = torch.nn.functional.cross_entropy(logits[0].float(), torch.from_numpy(data["labels"][i]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(1000 * (time.perf_counter() - start))
    a.worker.write_text(json.dumps([losses, times]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="of shape.py")
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--contestants", nargs="+", default=["ours", "peft", "peft:checkpointing", "ours:bf16", "peft:bf16",
                                                             "peft:bf16:checkpointing"])  # fmt: skip
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--onnx-train", default=os.environ.get("ONNX_TRAIN", "onnx-train"))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        return train_by_peft(a, a.contestants[0].split(":")[1:])
    with tempfile.TemporaryDirectory(dir=a.model.resolve().parent) as folder:
        kinds = {"ours": Ours, "peft": Peft}
        contestants = {c: kinds[c.split(":")[0]](c.split(":")[1:], a, Path(folder)) for c in a.contestants}
        for c in contestants.values():
            c.build()
        found = {name: [] for name in contestants}
        for round_number in range(a.rounds):
            for name, c in contestants.items():
                losses, times, peak = c.measure(round_number)
                found[name].append((statistics.median(times[WARM_UP:]), peak))
                print(f"{name:36} {found[name][-1][0]:7.0f} ms  {peak / 2**30:5.2f} GiB  losses {losses[0]:.5f} {losses[-1]:.5f}", flush=True)
        first = next(iter(found))
        base = [statistics.median(values) for values in zip(*found[first])]
        for name, values in found.items():
            ms, peak = (statistics.median(v) for v in zip(*values))
            print(f"{name:36} {ms:7.0f} ms ({ms / base[0]:.2f} of {first})  {peak / 2**30:5.2f} GiB ({peak / base[1]:.2f})")


if __name__ == "__main__":
    main()
