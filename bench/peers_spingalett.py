"""Training steps of four networks whose speed Spingalett publishes, by Spingalett and by ours: time and memory.

    bench/install_contestants spingalett
    .deps/venv/bin/python bench/peers_spingalett.py --write docs/performance.md

Spingalett is a neural-network library in C; its wheel has Python bindings, whose `Trainer` makes the steps. Its networks
are defined in PyTorch here and exported for ours; Spingalett makes its own of its layers and reads the weights of the same
module. Both train them on the same batch with the optimizer of Spingalett's benchmark, decay on weights only. As in
peers.py they take turns on the same cores.

Memory is the peak resident set of the whole run less what the process held once its libraries were loaded.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import peers_contestants
from peers import CORES, TOLERANCE, TURN, Contestant, relative
from peers_table import bold, geometric_mean, header, measured_here, median, number, row, time_cell, write_between_marks
from peers_workloads import COMMAND

SCRIPT = "bench/peers_spingalett.py"
KINDS = ["spingalett", "ours"]


@dataclass
class Workload:
    title: str
    network: str  # a function of this file and of peers_spingalett_worker.py
    batch: int
    ours: str  # the optimizer as `build --optimizer` has it
    theirs: dict  # and as Spingalett's Trainer has it
    dropout: bool = False  # the masks differ: losses of evaluation are compared
    terms: int = 1  # outputs of a sample, whose losses Spingalett adds and ours averages


WORKLOADS = [
    Workload("MLP 784-512-1000-10, batch 64, Adam", "mlp", 64, "adam(lr=0.001)", dict(optimizer="ADAM", learning_rate=1e-3)),
    Workload("CNN 28 x 28, 32 and 64 filters, dense 128, dropout 0.3, batch 128, AdamW", "cnn", 128,
             "adamw(lr=0.001,weight_decay=0.0001)", dict(optimizer="ADAMW", learning_rate=1e-3, weight_decay=1e-4), dropout=True),
    Workload("ResNet-20 for CIFAR, batch 128, momentum", "resnet20", 128, "sgd(lr=0.01,momentum=0.9,weight_decay=0.0005)",
             dict(optimizer="MOMENTUM", learning_rate=1e-2, momentum=0.9, weight_decay=5e-4)),
    Workload("U-Net 64 x 64, 16 to 64 filters, batch 32, AdamW", "unet", 32, "adamw(lr=0.003,weight_decay=0.0001)",
             dict(optimizer="ADAMW", learning_rate=3e-3, weight_decay=1e-4), terms=3 * 64 * 64),
]  # fmt: skip


def mlp(nn, networks):
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 1000), nn.ReLU(), nn.Linear(1000, 10)), (784,)


def cnn(nn, networks):
    layers = []
    for inputs, outputs in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)]
    return nn.Sequential(*layers, *dense), (1, 28, 28)


def resnet20(nn, networks):
    layers, channels = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()], 16
    for block in range(9):
        filters = 16 << block // 3
        layers.append(networks.Residual(channels, filters, 1 if filters == channels else 2))
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (3, 32, 32)


def unet(nn, networks):
    import torch

    def block(inputs, outputs):
        layers = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2, self.bottom = block(3, 16), block(16, 32), block(32, 64)
            self.enlarge2, self.up2 = nn.ConvTranspose2d(64, 32, 2, 2), block(64, 32)
            self.enlarge1, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), block(32, 16)
            self.head = nn.Conv2d(16, 3, 1)

        def forward(self, x):
            pool, relu = nn.functional.max_pool2d, torch.relu
            fine = self.down1(x)
            coarse = self.down2(pool(fine, 2))
            y = self.up2(torch.cat([coarse, relu(self.enlarge2(self.bottom(pool(coarse, 2))))], 1))
            return self.head(self.up1(torch.cat([fine, relu(self.enlarge1(y))], 1)))

    return Unet(), (3, 64, 64)


def make_files(workload, folder):
    """Returns the training model, the data, and the weights as PyTorch saves them."""
    import networks
    import numpy as np
    import torch
    from export import export

    torch.manual_seed(0)
    module, shape = globals()[workload.network](torch.nn, networks)
    x, labels = torch.rand(workload.batch, *shape), torch.randint(0, 10, (workload.batch,))
    if workload.network == "unet":
        labels = torch.randint(0, 2, (workload.batch, *shape)).float()
    module = networks.finish(module, {"x": x}, labels, seed=0).module
    loss = "bce_with_logits" if workload.network == "unet" else "cross_entropy"
    forward, training, data, weights = (folder / name for name in ("forward.onnx", "train.onnx", "data.npz", "weights.pt"))
    torch.save(module.state_dict(), weights)
    np.savez(data, x=x.numpy(), labels=labels.numpy())
    export(module, {"x": x}, forward, train=workload.dropout)
    build = [COMMAND, "build", forward, "-o", training, "--loss", loss, "--optimizer", workload.ours]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return training, data, weights


def worker(workload, data, weights, evaluate=False):
    arguments = dict(network=workload.network, optimizer=workload.theirs, terms=workload.terms, threads=len(CORES),
                     data=data, weights=weights, evaluate=evaluate)  # fmt: skip
    script = Path(__file__).with_name("peers_spingalett_worker.py")
    return [peers_contestants.python_of("spingalett"), script, json.dumps(arguments, default=str)]


def command_of(kind, workload, training, data, weights):
    if kind == "spingalett":
        return worker(workload, data, weights)
    return [COMMAND, "bench", training, "--data", data, "--batch-size", str(workload.batch), "--seconds", "1e9", "--each-step"]


def evaluation_losses(workload, training, data, weights):
    ours = [COMMAND, "eval", training, "--data", data, "--batch-size", str(workload.batch), "--json"]
    for command in (worker(workload, data, weights, evaluate=True), ours):
        yield json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["loss"]


def compare(workload, seconds):
    """Returns contestant -> Result."""
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(workload, Path(folder))
        running = {}
        try:
            for kind in KINDS:
                contestant = Contestant(command_of(kind, workload, *files), Path(folder), kind)
                error = contestant.warm_up()
                if error:
                    raise RuntimeError(f"{kind}: {error}")
                running[kind] = contestant
            for _ in range(max(1, round(seconds / TURN))):
                for contestant in running.values():
                    contestant.take_turn()
            results = {kind: contestant.result(inherent=0) for kind, contestant in running.items()}
        finally:
            for contestant in running.values():
                contestant.finish()
        what, pairs = "the first steps", list(zip(*(results[kind].losses for kind in KINDS)))
        if workload.dropout:
            what, pairs = "an evaluation", [tuple(evaluation_losses(workload, *files))]
        apart = max(relative(ours, theirs) for theirs, ours in pairs)
        print(f"  losses of {what}: Spingalett {pairs[0][0]:.6f}, ours {pairs[0][1]:.6f}; apart at most {apart:.1e}", flush=True)
        assert apart <= TOLERANCE["float32"], "they do not train the same"
        return results


def table(rows):
    lines = header(["step, ms (quartiles)", "Spingalett", "ours", "times as fast", "Spingalett, MiB", "ours, MiB", "memory, ratio"])
    ratios = []
    for title, results in rows.items():
        theirs, ours = (results[kind] for kind in KINDS)
        ratios.append((median(theirs) / median(ours), ours.memory / theirs.memory))
        memory = [number(result.memory / 2**20) for result in (theirs, ours)]
        lines.append(row([title, *(time_cell(results, kind) for kind in KINDS), bold(ratios[-1][0]), *memory, bold(ratios[-1][1])]))
    speed, memory = (bold(geometric_mean(values)) for values in zip(*ratios))
    return [*lines, row(["geometric mean", "", "", speed, "", "", memory])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a workload's title")
    parser.add_argument("--seconds", type=float, default=30, help="time for each contestant and workload [30]")
    parser.add_argument("--write", type=Path, help="document whose table to replace")
    options = parser.parse_args()
    if not peers_contestants.is_installed("spingalett"):
        parser.error("Spingalett is not installed: bench/install_contestants spingalett")
    rows = {}
    for workload in WORKLOADS:
        if options.only.lower() in workload.title.lower():
            print(workload.title, flush=True)
            rows[workload.title] = compare(workload, options.seconds)
    version = f"Spingalett {peers_contestants.version('spingalett')} with OpenMP, float32."
    text = "\n".join([*measured_here(len(CORES)), version, "", *table(rows)]) + "\n"
    print("\n" + text)
    if options.write:
        write_between_marks(options.write, text, SCRIPT)


if __name__ == "__main__":
    sys.exit(main())
