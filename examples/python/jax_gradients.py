"""Trains an ONNX model by gradients of JAX.

    PYTHONPATH=build/python python examples/python/jax_gradients.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx_train.jax

MODEL = Path(__file__).parents[2] / "tests" / "fixtures" / "mlp.onnx"

function = onnx_train.jax.Function(MODEL)
rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(64, 4)), jnp.float32)
labels = jnp.argmax(x[:, :3], axis=1)


def loss(weights: dict[str, jax.Array]) -> jax.Array:
    log_probabilities = jax.nn.log_softmax(function(weights, x))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


@jax.jit
def step(weights: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    value, gradients = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradients)


weights = function.weights  # the values of the file
values = []
for _ in range(50):
    value, weights = step(weights)
    values.append(float(value))
print(f"loss {values[0]:.3f} -> {values[-1]:.3f}")
