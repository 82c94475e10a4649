"""A process of peers.py that trains one workload with JAX: a jitted step whose state is donated.

Prints what peers_worker.py prints. Its batch and its initial weights are files: neither PyTorch nor ONNX is imported.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from peers_jax_networks import LOSSES, NETWORKS, Pass, converted
from peers_worker import resident_bytes, run, say
from peers_workloads import BETAS, DECAY, EPSILON, RATE


def adamw(weight, gradient, first, second, count):
    """Decoupled decay and bias correction, as torch.optim.AdamW has them."""
    first = BETAS[0] * first + (1 - BETAS[0]) * gradient
    second = BETAS[1] * second + (1 - BETAS[1]) * gradient * gradient
    root = jnp.sqrt(second / (1 - BETAS[1] ** count)) + EPSILON
    return (1 - RATE * DECAY) * weight - RATE / (1 - BETAS[0] ** count) * first / root, first, second


def make_step(network, sizes, loss, precision):
    """(state, inputs, labels) -> (new state, loss). The state is that of `initial_state`."""
    operands = jnp.float32 if precision == "float32" else jnp.bfloat16

    def forward(weights, statistics, key, inputs, labels):
        new = dict(statistics)
        logits = NETWORKS[network](Pass(weights, new, key, operands, sizes), **inputs)
        return LOSSES[loss](logits, labels), new

    def step(state, inputs, labels):
        count = state["count"] + 1
        key = jax.random.fold_in(jax.random.key(0, impl="rbg"), count)
        passes = jax.value_and_grad(forward, has_aux=True)
        (value, statistics), gradients = passes(state["weights"], state["statistics"], key, inputs, labels)
        updated = {name: adamw(weight, gradients[name], state["first"][name], state["second"][name], count)
                   for name, weight in state["weights"].items()}  # fmt: skip
        weights, first, second = ({name: values[i] for name, values in updated.items()} for i in range(3))
        return dict(weights=weights, first=first, second=second, statistics=statistics, count=count), value

    return jax.jit(step, donate_argnums=0)


def initial_state(weights, statistics):
    def zeros():
        return {name: jnp.zeros(weight.shape, weight.dtype) for name, weight in weights.items()}

    arrays = [{name: jnp.array(array) for name, array in group.items()} for group in (weights, statistics)]
    return dict(weights=arrays[0], first=zeros(), second=zeros(), statistics=arrays[1], count=jnp.zeros((), jnp.int32))


def batch(data):
    """The inputs by name, images channels last, and the labels."""
    with np.load(data) as arrays:
        arrays = {name: jnp.array(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array) for name, array in arrays.items()}
    return arrays, arrays.pop("labels")


def jax_step(arguments):
    jax.devices()  # makes the runtime, whose memory is not the model's
    say(resident=resident_bytes())
    workload = arguments["workload"]
    inputs, labels = batch(arguments["data"])
    with np.load(arguments["weights"]) as weights:
        state = initial_state(*converted(weights))
    compute = make_step(workload["network"], workload["sizes"], arguments["loss"], arguments["precision"])

    def step():
        nonlocal state
        state, loss = compute(state, inputs, labels)
        return float(loss)

    return step


if __name__ == "__main__":
    run(jax_step, json.loads(sys.argv[1]))
