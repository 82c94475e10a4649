"""A process of check.py for one network: exports it, then times PyTorch's training of it on the GPU.

    python3 bench/gpu/peer.py '{"network": NAME, "sizes": {...}, "folder": FOLDER, "precisions": [...]}'
    python3 bench/gpu/peer.py '{"networks": {NAME: [FUNCTION, {...}], ...}, "folder": FOLDER}'

Writes m.onnx and d.npz to the folder and prints {"exported": true}. It then compiles each of the precisions once, so
that torch.compile finds its kernels in its cache, and prints {"ready": true}. A line "PRECISION SECONDS" on the standard
input is answered by {"eager": milliseconds, "compile": milliseconds}, or with the error in the place of a number. The second form
exports networks into folders of their names, and prints what `build` and `fit` need of each.
"""

import gc
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "models"))


def say(**fields):
    print(json.dumps(fields), flush=True)


class Peer:
    """PyTorch where it is at its best: fused AdamW, images with their channels last, gradients set to None. float32 is
    without TF32, tf32 with it for products and convolutions, bf16 by autocast."""

    def __init__(self, example, precision, compiled):
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.benchmark = True
        device = torch.device("cuda")
        module = example.module.to(device).train()
        inputs, labels = [v.to(device) for v in example.inputs.values()], example.labels.to(device)
        if any(v.ndim == 4 for v in inputs):
            module = module.to(memory_format=torch.channels_last)
            inputs = [v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for v in inputs]
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

        def compute_loss(*inputs):
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                logits = module(*inputs)
                if example.loss == "bce_with_logits":
                    return functional.binary_cross_entropy_with_logits(logits, labels)
                return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

        forward = torch.compile(compute_loss, mode="reduce-overhead") if compiled else compute_loss

        def step():
            optimizer.zero_grad(set_to_none=True)
            forward(*inputs).backward()
            optimizer.step()

        self.step = step

    def run(self, seconds):
        """The median of a step that is waited for, after five that do not count."""
        for _ in range(5):
            self.step()
        torch.cuda.synchronize()
        times = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.perf_counter()
            self.step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        return round(float(np.median(times)), 3) if times else None


def measured(example, precision, kind, seconds):
    try:
        return Peer(example, precision, kind == "compile").run(seconds)
    except Exception as error:  # noqa: BLE001  (what PyTorch cannot do is a finding)
        return f"{type(error).__name__}: {error}"[:200]


def write(name, sizes, folder):
    """Exports a network of models/networks.py; m.onnx is its forward model, d.npz its batch."""
    import networks
    from export import export

    example = getattr(networks, name)(**sizes)
    export(example.module, example.inputs, folder / "m.onnx", optimize=example.optimize)
    np.savez(folder / "d.npz", labels=example.labels.numpy(), **{k: v.numpy() for k, v in example.inputs.items()})
    return example


def main():
    options = json.loads(sys.argv[1])
    folder = Path(options["folder"])
    if "networks" in options:
        for name, (function, sizes) in options["networks"].items():
            (folder / name).mkdir()
            example = write(function, sizes, folder / name)
            say(name=name, loss=example.loss, batch=len(example.labels))
        return
    example = write(options["network"], options["sizes"], folder)
    say(exported=True, loss=example.loss, batch=len(example.labels))
    if not options["precisions"]:
        return
    for precision in options["precisions"]:
        measured(example, precision, "compile", 0)
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    say(ready=True)
    for line in sys.stdin:
        precision, seconds = line.split()
        say(**{kind: measured(example, precision, kind, float(seconds)) for kind in ("eager", "compile")})


if __name__ == "__main__":
    main()
