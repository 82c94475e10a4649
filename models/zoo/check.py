"""One row of the zoo: export, check, build, and three comparisons with the framework and with ONNX Runtime."""

import copy
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))

import reference  # noqa: E402  (needs the path)
import tool  # noqa: E402
from export import export  # noqa: E402
from zoo.entry import name_of  # noqa: E402

STEPS = 10
# Of the largest element of each gradient, in float64; of the loss, in float32.
GRADIENT, CURVE, RUNTIME = 1e-4, 1e-3, 1e-3
OPTIMIZERS = {
    "sgd": ("sgd(momentum=0.9)", lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9)),
    "adamw": ("adamw(weight_decay=0.01)", lambda p, rate: torch.optim.AdamW(p, lr=rate, weight_decay=0.01)),
}


@dataclass
class Row:
    name: str
    exporter: str
    opset: str = ""
    parameters: str = ""
    check: str = ""
    gradient: str = ""
    curve: str = ""
    runtime: str = ""
    notes: str = ""
    ok: bool = False  # every check passed
    exported: bool = False


class Failed(Exception):
    """A check that did not pass; the message is its reason."""


def check(entry, exporter, folder):
    """The row of one export. Nothing that goes wrong ends the run: it is in the notes."""
    row = Row(entry.name, name_of(exporter))
    path = folder / "model.onnx"
    try:
        example = entry.make()
        write(entry, example, exporter, path)
    except Exception as error:  # the exporters raise whatever they like
        cause = error.__cause__ or error
        row.notes = f"not exported: {reason_of(entry, row) or f'{type(cause).__name__}: {first_line(cause)}'}"
        return row
    row.exported = True
    try:
        fill(row, entry, example, path, folder)
        row.ok, row.notes = True, entry.notes
    except (Failed, AssertionError) as error:
        row.notes = first_line(error)
        if fault := fault_of_file(path, example):
            row.notes = reason_of(entry, row) or f"{row.notes}; {fault}"
            row.exported = False
    except Exception as error:  # of the framework, in float64
        row.notes = f"not compared: {type(error).__name__}: {first_line(error)}"
    return row


def reason_of(entry, row):
    reason = entry.reasons.get(row.exporter)
    return f"the exporter {reason}" if reason else ""


def fault_of_file(path, example):
    """What ONNX Runtime says of a file that is not the module in evaluation mode; "" if it is."""
    try:
        outputs = tool.session(path).run(None, {name: tensor.numpy() for name, tensor in (example.inputs | example.fixed).items()})
        expected = copy.deepcopy(example.module).eval()(*example.inputs.values())
    except Exception as error:  # onnxruntime's errors have no class in common
        return f"ONNX Runtime refuses the file, too: {first_line(error)[:120]}"
    for ours, theirs in zip(outputs, expected if isinstance(expected, tuple) else (expected,)):
        if not np.allclose(ours, theirs.detach().numpy(), rtol=1e-3, atol=1e-3):
            return "ONNX Runtime's outputs are not PyTorch's either"
    return ""


def write(entry, example, exporter, path):
    if callable(exporter):
        exporter(example, path)
        return
    sizes = None if entry.dynamic is True else entry.dynamic or {}
    if sizes and exporter == "dynamo":
        sizes = {axis: torch.export.Dim(name) for axis, name in sizes.items()}
    export(example.module, example.inputs, path, exporter, entry.fold, outputs=example.outputs, opset=entry.opset, sizes=sizes)


def fill(row, entry, example, path, folder):
    model = onnx.load(path)
    row.opset = str(next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")))
    row.parameters = f"{sum(p.numel() for p in example.module.parameters()):,}"
    arrays = {**example.inputs, **example.targets}
    data = tool.save(folder / "data.npz", {name: tensor.numpy() for name, tensor in arrays.items()})

    row.check = "failed"
    command("check", path, "--loss", example.loss, *entry.build)
    expression, optimizer = OPTIMIZERS[entry.optimizer]
    trained = folder / "train.onnx"
    command("build", path, "-o", trained, "--loss", example.loss, "--optimizer", expression, "--decay", "*", *entry.build)
    row.check = "yes"

    outputs = folder / "gradients.npz"
    command("grad", path, "--inputs", data, "--loss", example.loss, "--dtype", "float64", "-o", outputs, *entry.build)
    worst, error = gradient_error(example, path, tool.load(outputs))
    row.gradient = f"{error:.0e}"
    require(error <= GRADIENT, f"gradient of {worst}: {error:.1e}")

    count = len(next(iter(example.inputs.values())))
    run = folder / "run"
    command("fit", trained, "--data", data, "--steps", STEPS, "--batch-size", count, "--lr", entry.rate,
            "--schedule", "constant", "--no-shuffle", "--overwrite", "--out", run)  # fmt: skip
    ours, theirs = tool.losses(run), losses(example, lambda p: optimizer(p, entry.rate))
    row.curve = f"{relative(ours, theirs):.0e}"
    require(relative(ours, theirs) <= CURVE, f"losses {ours[0]:.5g} to {ours[-1]:.5g}, PyTorch {theirs[0]:.5g} to {theirs[-1]:.5g}")
    require(abs(theirs[-1] - theirs[0]) > 10 * CURVE * abs(theirs[0]), "the loss hardly moves: the curve says nothing")

    step = folder / "step.onnx"
    command("flatten", trained, "--entry", "step", "-o", step)
    try:
        stock = tool.run_steps(trained, step, tool.load(data), count, STEPS, entry.rate)
    except Exception as error:  # onnxruntime's errors have no class in common
        row.runtime = "failed"
        raise Failed(f"ONNX Runtime: {first_line(error)}") from error
    row.runtime = f"{relative(ours, stock):.0e}"
    require(relative(ours, stock) <= RUNTIME, f"ONNX Runtime's loss after {STEPS} steps: {stock[-1]:.6g}, ours {ours[-1]:.6g}")


def command(*arguments):
    """Runs onnx-train; a failure has its message."""
    process = tool.start(*arguments)
    try:
        output, errors = process.communicate(timeout=120)
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        raise Failed(f"{arguments[0]}: {(errors.strip() or output.strip()).split('cannot be trained as it is: ')[-1]}")


def require(holds, message):
    if not holds:
        raise Failed(message)


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\x1b\[[0-9;]*m", "", " ".join(lines))[:300] if lines else "no message"


def relative(actual, expected):
    """The largest distance of two curves, relative to the second at its place; infinite where one is not finite."""
    errors = np.abs(actual - expected) / np.abs(expected)
    return float(errors.max()) if np.isfinite(errors).all() else np.inf


def loss_of(example, module, targets):
    outputs = module(*example.inputs.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return example.criterion(*outputs, *targets.values())


def gradient_error(example, path, ours):
    """(name, error) of the worst parameter, in float64. An error is relative to the largest element of its tensor, or
    to 1e-4 of the largest of all: some gradients are zero by mathematics, and noise, as transformers computes softmax in
    float32 always."""
    module = copy.deepcopy(example.module).double().train()
    double = {k: v.double() if v.is_floating_point() else v for k, v in example.inputs.items()}
    targets = {k: v.double() if v.is_floating_point() else v for k, v in example.targets.items()}
    loss = loss_of(copy_with(example, inputs=double), module, targets)
    loss.backward()
    errors = {"the loss": abs(float(ours["loss"]) - loss.item()) / abs(loss.item())}
    expected = {k: p.grad.numpy() for k, p in module.named_parameters() if p.grad is not None}
    floor = 1e-4 * max(np.abs(g).max() for g in expected.values())
    initializers = reference.Initializers(path)
    for name, gradient in expected.items():
        actual = gradient_of(initializers, ours, name, module.get_parameter(name).detach().numpy())
        if actual is None:
            require(np.abs(gradient).max() <= floor, f"{name} has no gradient in the file's weights")
            continue
        gradient = gradient[: len(actual)] if gradient.ndim else gradient
        errors[name] = np.abs(actual - gradient).max() / max(np.abs(gradient).max(), floor)
    worst = max(errors, key=lambda name: np.nan_to_num(errors[name], nan=np.inf))
    return worst, float(np.nan_to_num(errors[worst], nan=np.inf))


def gradient_of(initializers, ours, name, weight):
    """Our gradient of a parameter: of the initializers that hold its numbers, or its first rows (positions beyond those
    in use are cut), or bear its name; None where the loss does not depend on any."""
    parts = [weight] + [weight[:rows] for rows in range(len(weight) - 1, 0, -1)] if weight.ndim > 1 else [weight]
    for part in parts:
        if initializers.find(part):
            try:
                return initializers.gradient(ours, part)
            except KeyError:
                break
    actual = ours.get(f"grad/{name}")
    return None if actual is None else actual.reshape(weight.shape)


def copy_with(example, **changes):
    result = copy.copy(example)
    vars(result).update(changes)
    return result


def losses(example, make_optimizer):
    """PyTorch's losses in float32, of steps on the same batch."""
    module = copy.deepcopy(example.module).train()
    optimizer = make_optimizer(list(module.parameters()))
    result = []
    for _ in range(STEPS):
        loss = loss_of(example, module, example.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return np.array(result)
