"""A process of peers_spingalett.py that trains one of its networks with Spingalett, in Spingalett's own environment.

Prints what peers_worker.py prints; with "evaluate" it prints the loss of an evaluation instead, {"loss": ...}, and ends.
"""

import json
import sys

import numpy as np
import spingalett as sg
from peers_worker import resident_bytes, run, say

NONE, RELU, SIGMOID, SOFTMAX = sg.Activation.NONE, sg.Activation.RELU, sg.Activation.SIGMOID, sg.Activation.SOFTMAX


def mlp(net):
    net.add_layer(784).add_layer(512, RELU).add_layer(1000, RELU).add_layer(10, SOFTMAX)


def cnn(net):
    net.add_input(28, 28, 1)
    for filters in (32, 64):
        net.add_conv2d(filters, 3, padding=1, activation=RELU).add_max_pool2d(2)
    net.add_layer(128, RELU, dropout=0.3).add_layer(10, SOFTMAX)


def convolve(net, filters, stride=1, activation=RELU, kernel=3, inputs=None):
    net.add_conv2d(filters, kernel, stride, kernel // 2, NONE, inputs=inputs).add_batch_norm(activation)
    return net.last


def resnet20(net):
    net.add_input(32, 32, 3)
    x = convolve(net, 16)
    for block in range(9):
        filters, stride = 16 << block // 3, 2 if block in (3, 6) else 1
        convolve(net, filters, stride, inputs=[x])
        y = convolve(net, filters, activation=NONE)
        shortcut = convolve(net, filters, stride, NONE, 1, [x]) if stride == 2 else x
        x = net.add_add([shortcut, y], activation=RELU).last
    net.add_global_avg_pool().add_layer(10, SOFTMAX)


def unet(net):
    net.add_input(64, 64, 3)
    kept = []
    for filters in (16, 32):
        convolve(net, filters)
        kept.append(convolve(net, filters))
        net.add_max_pool2d(2)
    for _ in range(2):
        convolve(net, 64)
    for filters in (32, 16):
        up = net.add_conv_transpose2d(filters, 2, stride=2, activation=RELU).last
        net.add_concat([kept.pop(), up])
        for _ in range(2):
            convolve(net, filters)
    net.add_conv2d(3, 1, activation=SIGMOID)


def batch(data):
    """Images channels last; labels as a probability for each output."""
    with np.load(data) as arrays:
        x, labels = (arrays[name] for name in ("x", "labels"))
    if labels.ndim == 1:
        return channels_last(x), np.eye(10, dtype=np.float32)[labels]
    return channels_last(x), channels_last(labels)


def channels_last(x):
    x = x.transpose(0, 2, 3, 1) if x.ndim == 4 else x
    return np.ascontiguousarray(x.reshape(len(x), -1))


def make_network(arguments):
    net = sg.Network(sg.Loss.CROSS_ENTROPY)
    globals()[arguments["network"]](net)
    return net.load_pytorch(arguments["weights"])


def spingalett_step(arguments):
    say(resident=resident_bytes())
    x, labels = batch(arguments["data"])
    net = make_network(arguments)
    trainer = sg.Trainer(net, max_batch=len(x))
    options = dict(arguments["optimizer"], optimizer=sg.Optimizer[arguments["optimizer"]["optimizer"]])
    return lambda: trainer.train_on_batch(x, labels, **options) / arguments["terms"]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sg.set_verbose(False)  # it logs to stdout, which is ours
    sg.set_compute_mode(sg.ComputeMode.OPENMP)
    sg.set_num_threads(given["threads"])
    if given["evaluate"]:
        print(json.dumps({"loss": make_network(given).evaluate(*batch(given["data"])).loss / given["terms"]}))
    else:
        run(spingalett_step, given)
