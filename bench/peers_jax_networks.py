"""The networks of models/networks.py in plain jax.numpy, as a user of JAX writes them: images channels last, weights of
products as inputs x outputs, recurrence as a scan. Weights have PyTorch's names.

A function of this file takes the forward pass that is traced, a `Pass`, and the batch's inputs by name; it returns logits.
"""

import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

# Two-dimensional weights that are no product's, and those that GPT-2 has as inputs x outputs already.
AS_THEY_ARE = re.compile(r"embedding|\.wte\.|\.wpe\.|\.c_(attn|proj|fc)\.")
LAYER_NORM_EPSILON = {"gpt2": 1e-5, "masked_lm": 1e-12}


@dataclass
class Pass:
    """One forward pass while JAX traces it."""

    weights: dict
    statistics: dict  # running means and variances of batch norms; a pass puts the new ones in their place
    key: jax.Array  # of dropout
    operands: jnp.dtype  # of products and convolutions, whose results are float32: XLA is slower where they are bfloat16
    sizes: dict  # the arguments of the function of models/networks.py

    def product(self, terms, a, b):
        return jnp.einsum(terms, a.astype(self.operands), b.astype(self.operands), preferred_element_type=jnp.float32)

    def linear(self, x, name):
        y = self.product("...i,io->...o", x, self.weights[f"{name}.weight"])
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def perceptron(self, x, name, layers, last_activation):
        for i in range(layers):
            x = self.linear(x, f"{name}{2 * i}")
            x = nn.relu(x) if last_activation or i < layers - 1 else x
        return x

    def convolution(self, x, name, stride=1):
        kernel = self.weights[f"{name}.weight"].astype(self.operands)
        padding = [(kernel.shape[0] // 2,) * 2] * 2
        return lax.conv_general_dilated(
            x.astype(self.operands), kernel, (stride, stride), padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"), preferred_element_type=jnp.float32,
        )  # fmt: skip

    def batch_norm(self, x, name, momentum=0.1, epsilon=1e-5):
        axes, count = (0, 1, 2), x.size // x.shape[-1]
        mean = x.mean(axes)
        variance = (x * x).mean(axes) - mean * mean
        for kind, new in (("running_mean", mean), ("running_var", variance * count / (count - 1))):
            old = self.statistics[f"{name}.{kind}"]
            self.statistics[f"{name}.{kind}"] = (1 - momentum) * old + momentum * lax.stop_gradient(new)
        factor = lax.rsqrt(variance + epsilon) * self.weights[f"{name}.weight"]
        return (x - mean) * factor + self.weights[f"{name}.bias"]

    def layer_norm(self, x, name, epsilon):
        mean = x.mean(-1, keepdims=True)
        centred = x - mean
        scale = lax.rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
        return centred * scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def dropout(self, x):
        rate = self.sizes.get("dropout", 0)
        if not rate:
            return x
        self.key, key = jax.random.split(self.key)
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)

    def attention(self, q, k, v, visible):
        """Of [batch, tokens, width]; `visible` is True where a query, on the last axis but one, sees a key."""
        q, k, v = (t.reshape(*t.shape[:2], self.sizes["heads"], -1) for t in (q, k, v))
        scores = self.product("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        seen = self.dropout(nn.softmax(jnp.where(visible, scores, jnp.finfo(jnp.float32).min)))
        mixed = self.product("bhqk,bkhd->bqhd", seen, v)
        return mixed.reshape(*mixed.shape[:2], -1)


def mlp(run, x):
    return run.perceptron(x, "", len(run.sizes["sizes"]) - 1, last_activation=False)


def resnet18(run, x):
    x = nn.relu(run.batch_norm(run.convolution(x, "0"), "1"))
    for block in range(8):
        name, stride = str(3 + block), 2 if block in (2, 4, 6) else 1
        y = nn.relu(run.batch_norm(run.convolution(x, f"{name}.main.0", stride), f"{name}.main.1"))
        y = run.batch_norm(run.convolution(y, f"{name}.main.3"), f"{name}.main.4")
        if stride == 2:
            x = run.batch_norm(run.convolution(x, f"{name}.shortcut.0", stride), f"{name}.shortcut.1")
        x = nn.relu(x + y)
    return run.linear(x.mean((1, 2)), "13")


def gpt2(run, input_ids):
    tokens, epsilon = input_ids.shape[1], LAYER_NORM_EPSILON["gpt2"]
    x = run.weights["model.transformer.wte.weight"][input_ids] + run.weights["model.transformer.wpe.weight"][:tokens]
    visible = np.tril(np.ones((tokens, tokens), bool))
    for block in range(run.sizes["blocks"]):
        name = f"model.transformer.h.{block}"
        y = run.linear(run.layer_norm(x, f"{name}.ln_1", epsilon), f"{name}.attn.c_attn")
        x = x + run.linear(run.attention(*jnp.split(y, 3, -1), visible), f"{name}.attn.c_proj")
        y = run.linear(run.layer_norm(x, f"{name}.ln_2", epsilon), f"{name}.mlp.c_fc")
        x = x + run.linear(nn.gelu(y, approximate=True), f"{name}.mlp.c_proj")
    return run.linear(run.layer_norm(x, "model.transformer.ln_f", epsilon), "model.lm_head")


def masked_lm(run, input_ids, attention_mask, token_type_ids):
    epsilon, bert = LAYER_NORM_EPSILON["masked_lm"], "model.bert"
    words, positions, types = (run.weights[f"{bert}.embeddings.{kind}_embeddings.weight"]
                               for kind in ("word", "position", "token_type"))  # fmt: skip
    x = words[input_ids] + types[token_type_ids] + positions[: input_ids.shape[1]]
    x = run.dropout(run.layer_norm(x, f"{bert}.embeddings.LayerNorm", epsilon))
    visible = attention_mask[:, None, None, :] == 1
    for block in range(run.sizes.get("blocks", 2)):
        name = f"{bert}.encoder.layer.{block}"
        q, k, v = (run.linear(x, f"{name}.attention.self.{kind}") for kind in ("query", "key", "value"))
        y = run.dropout(run.linear(run.attention(q, k, v, visible), f"{name}.attention.output.dense"))
        x = run.layer_norm(x + y, f"{name}.attention.output.LayerNorm", epsilon)
        y = nn.gelu(run.linear(x, f"{name}.intermediate.dense"), approximate=False)
        y = run.dropout(run.linear(y, f"{name}.output.dense"))
        x = run.layer_norm(x + y, f"{name}.output.LayerNorm", epsilon)
    head = "model.cls.predictions"
    x = nn.gelu(run.linear(x, f"{head}.transform.dense"), approximate=False)
    x = run.layer_norm(x, f"{head}.transform.LayerNorm", epsilon)
    return run.product("bti,oi->bto", x, words) + run.weights[f"{head}.bias"]


def dlrm(run, dense, categories):
    """All tables are one, whose rows follow one another."""
    tables, rows = run.sizes["tables"], run.sizes["rows"]
    x = run.perceptron(dense, "bottom.", len(run.sizes["bottom"]) - 1, last_activation=True)
    embedded = run.weights["embeddings"][categories + rows * np.arange(tables)]
    vectors = jnp.concatenate([x[:, None], embedded], 1)
    products = run.product("bid,bjd->bij", vectors, vectors)
    pairs = products[:, *np.tril_indices(tables + 1, -1)]
    return run.perceptron(jnp.concatenate([x, pairs], 1), "top.", len(run.sizes["top"]) + 1, last_activation=False)


def lstm(run, input_ids):
    """The products of the inputs are made for all steps at once; a scan makes those of the hidden state."""
    x = run.weights["embedding.weight"][input_ids].swapaxes(0, 1)
    for layer in range(run.sizes["layers"]):
        w = {kind: run.weights[f"recurrent.{kind}_l{layer}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        inputs = run.product("tbi,io->tbo", x, w["weight_ih"]) + (w["bias_ih"] + w["bias_hh"])

        def step(carried, gates, recurrent=w["weight_hh"].astype(run.operands)):
            hidden, cell = carried
            i, f, g, o = jnp.split(gates + run.product("bi,io->bo", hidden, recurrent), 4, -1)
            cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * jnp.tanh(g)
            hidden = nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        start = jnp.zeros((x.shape[1], w["weight_hh"].shape[0]))
        _, x = lax.scan(step, (start, start), inputs)
    return run.linear(x.swapaxes(0, 1), "head")


NETWORKS = {function.__name__: function for function in (mlp, resnet18, gpt2, masked_lm, dlrm, lstm)}


def cross_entropy(logits, labels):
    """The mean over labels that are not -100."""
    asked = labels != -100
    picked = jnp.take_along_axis(logits, jnp.where(asked, labels, 0)[..., None], -1)[..., 0]
    return jnp.where(asked, nn.logsumexp(logits, -1) - picked, 0).sum() / asked.sum()


def bce_with_logits(logits, labels):
    return (nn.softplus(logits) - logits * labels).mean()


LOSSES = {"cross_entropy": cross_entropy, "bce_with_logits": bce_with_logits}


def converted(arrays):
    """PyTorch's weights and statistics, by name, in JAX's layouts: (weights, statistics)."""
    weights, statistics, tables = {}, {}, []
    for name, array in arrays.items():
        if ".running_" in name:
            statistics[name] = array
        elif re.fullmatch(r"embeddings\.\d+\.weight", name):
            tables.append(array)
        elif array.ndim == 4:
            weights[name] = array.transpose(2, 3, 1, 0)
        else:
            weights[name] = array.T if array.ndim == 2 and not AS_THEY_ARE.search(name) else array
    if tables:
        weights["embeddings"] = np.concatenate(tables)
    return weights, statistics
