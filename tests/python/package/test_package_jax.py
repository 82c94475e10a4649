"""The function for JAX: gradients are those of JAX's own formula."""

import numpy as np
import pytest
import tool

import onnx_train
jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
import onnx_train.jax  # noqa: E402

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def formula(w, x):
    return jnp.tanh(x @ w["fc1.weight"] + w["fc1.bias"]) @ w["fc2.weight"] + w["fc2.bias"]


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f])
def test_gradients_of_weights_and_inputs_are_those_of_the_formula(transform):
    f = onnx_train.jax.Function(MLP, threads=1)

    def loss(g):
        return lambda w, x: jnp.sum(jnp.sin(g(w, 2 * x)) ** 2)

    ours = transform(jax.value_and_grad(loss(f), argnums=(0, 1)))(f.weights, X)
    theirs = jax.value_and_grad(loss(formula), argnums=(0, 1))(f.weights, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), ours, theirs)


def test_jax_trains_through_it():
    f = onnx_train.jax.Function(MLP, threads=1)
    labels = np.argmax(X[:, :3], axis=1)

    @jax.jit
    def step(w):
        def loss(w):
            return -jnp.mean(jax.nn.log_softmax(f(w, X))[jnp.arange(5), labels])

        value, gradients = jax.value_and_grad(loss)(w)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, w, gradients)

    session = onnx_train.Session(onnx_train.build(MLP, "cross_entropy", "sgd"), threads=1)
    weights = f.weights
    for _ in range(10):
        value, weights = step(weights)
        assert float(value) == pytest.approx(session.step(X, labels, lr=0.1).loss, rel=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(value, session.state[name], rtol=1e-4, atol=1e-6)


def test_wrong_arguments_are_named():
    f = onnx_train.jax.Function(MLP, threads=1)
    with pytest.raises(onnx_train.UsageError, match=r"takes 1 inputs \(x\), not 2"):
        f(f.weights, X, X)
    with pytest.raises(onnx_train.UsageError, match="fc1.bias"):
        f({name: value for name, value in f.weights.items() if name != "fc1.bias"}, X)
