"""What people reported when they trained ONNX files with ONNX Runtime's training packages."""

import re

import numpy as np
import onnx
import pytest
import tool
import torch
import torch.nn.functional as F
from reported import RNG, doubles, expect_pytorchs, floats, gradients, node, run_refused, same_numbers, save, value  # noqa: F401

import onnx_train
from onnx_train.onnxruntime.training import artifacts
from onnx_train.onnxruntime.training.api import CheckpointState, Module, Optimizer

VOCABULARY, STEPS, WIDTH, HEADS = 20, 6, 8, 2
LAYER = "model_7/transformer_encoder_47/"
READ = "/ReadVariableOp:0"


def dense(x, kernel, bias, y):
    return [node("MatMul", [x, kernel], f"{y}_product"), node("Add", [f"{y}_product", bias], y)]


def layer_normalization(x, scale, bias, y):
    """As tf2onnx writes Keras's layer: out of a batch normalization's formula."""
    return [node("ReduceMean", x, f"{y}/mean", axes=[2]), node("Sub", [x, f"{y}/mean"], f"{y}/d"),
            node("Mul", [f"{y}/d", f"{y}/d"], f"{y}/square"), node("ReduceMean", f"{y}/square", f"{y}/variance", axes=[2]),
            node("Add", [f"{y}/variance", "const_fold_opt__2861"], f"{y}/sum"), node("Sqrt", f"{y}/sum", f"{y}/deviation"),
            node("Reciprocal", f"{y}/deviation", f"{y}/r"), node("Mul", [f"{y}/r", scale], f"{y}/batchnorm/mul"),
            node("Mul", [x, f"{y}/batchnorm/mul"], f"{y}/a"), node("Mul", [f"{y}/mean", f"{y}/batchnorm/mul"], f"{y}/b"),
            node("Sub", [bias, f"{y}/b"], f"{y}/c"), node("Add", [f"{y}/a", f"{y}/c"], y)]  # fmt: skip


def keras_encoder(path):
    """Embedding, attention, layer normalization, Dense(1, sigmoid): Keras by tf2onnx, with what its folding leaves."""
    weights = {f"embedding{READ}": floats(VOCABULARY, WIDTH), f"position{READ}": floats(STEPS, WIDTH, scale=0.1)}
    projections = ("query", "key", "value", "attention_output")
    for name in projections:
        weights[f"{LAYER}{name}/einsum/Einsum{READ}"] = floats(WIDTH, WIDTH, scale=0.4)
        weights[f"{LAYER}{name}/add{READ}"] = floats(WIDTH, scale=0.1)
    norm = [f"{LAYER}layer_normalization/batchnorm/mul{READ}", f"{LAYER}layer_normalization/batchnorm{READ}"]
    weights |= {norm[0]: 1 + floats(WIDTH, scale=0.1), norm[1]: floats(WIDTH, scale=0.1)}
    weights |= {f"output/MatMul{READ}": floats(WIDTH, 1), f"output/BiasAdd{READ}": floats(1)}
    size = WIDTH // HEADS
    weights |= {"const_fold_opt__2861": np.float32(1e-6), "const_fold_opt__2874": np.int64([0, STEPS, HEADS, size]),
                "const_fold_opt__2880": np.int64([0, STEPS, WIDTH]), "const_fold_opt__2881": np.float32(size**-0.5),
                "const_fold_opt__2999": np.int64([2])}  # fmt: skip  (nothing reads the last one)
    nodes = [node("Cast", "encoder_input", "ids", to=6), node("Gather", [f"embedding{READ}", "ids"], "found"),
             node("Add", ["found", f"position{READ}"], "x")]  # fmt: skip
    for name in projections[:3]:
        nodes += dense("x", f"{LAYER}{name}/einsum/Einsum{READ}", f"{LAYER}{name}/add{READ}", name)
        nodes += [node("Reshape", [name, "const_fold_opt__2874"], f"{name}_split"),
                  node("Transpose", f"{name}_split", f"{name}_heads", perm=[0, 2, 1, 3])]  # fmt: skip
    nodes += [node("Mul", "query_heads const_fold_opt__2881", "q"), node("Transpose", "key_heads", "k", perm=[0, 1, 3, 2]),
              node("MatMul", "q k", "scores"), node("Softmax", "scores", "p", axis=3), node("MatMul", "p value_heads", "context"),
              node("Transpose", "context", "rows", perm=[0, 2, 1, 3]), node("Reshape", "rows const_fold_opt__2880", "joined"),
              *dense("joined", f"{LAYER}attention_output/einsum/Einsum{READ}", f"{LAYER}attention_output/add{READ}", "attended"),
              node("Add", "x attended", "residual"), *layer_normalization("residual", *norm, "normed"),
              node("ReduceMean", "normed", "pooled", axes=[1], keepdims=0),
              *dense("pooled", f"output/MatMul{READ}", f"output/BiasAdd{READ}", "logit"), node("Sigmoid", "logit", "output")]  # fmt: skip
    save(path, nodes, [value("encoder_input", "unk__3001", STEPS)], [value("output", "unk__3002", 1)], weights, 13, 7)
    return weights


def keras_in_torch(p, ids):
    x = p[f"embedding{READ}"][ids] + p[f"position{READ}"]
    q, k, v, o = ((p[f"{LAYER}{n}/einsum/Einsum{READ}"], p[f"{LAYER}{n}/add{READ}"]) for n in ("query", "key", "value", "attention_output"))
    heads = [(x @ w + b).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w, b in (q, k, v)]
    context = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    norm = f"{LAYER}layer_normalization/batchnorm"
    normed = F.layer_norm(x + context @ o[0] + o[1], (WIDTH,), p[f"{norm}/mul{READ}"], p[norm + READ], np.float32(1e-6).item())
    return normed.mean(1) @ p[f"output/MatMul{READ}"] + p[f"output/BiasAdd{READ}"]


def test_a_keras_encoder_with_a_sigmoid_learns_from_its_scores(tmp_path):
    """microsoft/onnxruntime#19185: the loss of a Keras transformer (tf2onnx, one sigmoid) hardly falls on the device.

    They needed the loss that Keras had: on the scores, for the loss has a sigmoid of its own; and all layers trained.
    """
    model = tmp_path / "model.onnx"
    weights = keras_encoder(model)
    ids, target = RNG.integers(0, VOCABULARY, (9, STEPS)), RNG.integers(0, 2, (9, 1)).astype(np.float32)
    parameters = doubles(weights)
    loss = F.binary_cross_entropy_with_logits(keras_in_torch(parameters, torch.tensor(ids)), torch.tensor(target, dtype=torch.float64))
    batch = {"encoder_input": ids.astype(np.float32), "labels": target}
    found = gradients(model, batch, "bce_with_logits(logit)")
    assert len(found[1]) == len([name for name in weights if name.endswith(READ)])  # none is missing
    expect_pytorchs(found, loss, parameters)
    text = tool.run("check", model)
    assert "Next: onnx-train build" in text and text.rstrip().endswith("--loss 'bce_with_logits(logit)'")
    assert "bce_with_logits(logit, labels)" in tool.run("build", model, "-o", tmp_path / "train.onnx")
    doubled = tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "bce_with_logits(output, labels)")
    assert "bce_with_logits has a sigmoid of its own" in doubled and '--loss "bce_with_logits(logit, labels)"' in doubled
    assert "the softmax of one class is 1" in tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "cross_entropy")


def test_all_initializers_in_requires_grad_are_one_line_that_says_which(tmp_path):
    """microsoft/onnxruntime#19186: requires_grad with every initializer ends in "couldn't find the consumer node".

    They needed all layers trained, from tf2onnx's file, in which shapes and unused constants are initializers, too.
    """
    keras_encoder(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    names = [tensor.name for tensor in model.graph.initializer]
    options = {"loss": artifacts.LossType.MSELoss, "optimizer": artifacts.OptimType.AdamW, "artifact_directory": tmp_path / "made"}
    (tmp_path / "made").mkdir()
    with pytest.raises(onnx_train.UsageError) as error:
        artifacts.generate_artifacts(model, requires_grad=names, frozen_params=[], **options)
    assert not list((tmp_path / "made").iterdir())
    way_out = re.search(r"take (\[.*\])$", str(error.value))[1]
    assert "'const_fold_opt__2874' and 2 more" in str(error.value)
    names = eval(way_out, {"onnx": onnx, "model": model})
    artifacts.generate_artifacts(model, requires_grad=names, frozen_params=[], **options)
    state = CheckpointState.load_checkpoint(tmp_path / "made" / "checkpoint")
    module = Module(tmp_path / "made" / "training_model.onnx", state, tmp_path / "made" / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "made" / "optimizer_model.onnx", module)
    before = {name: parameter.data.copy() for name, parameter in state.parameters.items()}
    module(floats(4, STEPS) * 0 + 1, np.float32([[1], [0], [1], [1]]))
    optimizer.step()
    assert all(not np.array_equal(before[name], state.parameters[name].data) for name in names if name.endswith(READ))
    assert "'const_fold_opt__2874' is int64[4], no float" in run_refused(
        "build", tmp_path / "model.onnx", "-o", tmp_path / "t.onnx", "--train", "const_fold_opt__2874")  # fmt: skip


def mnist_12(path):
    """mnist-12.onnx of onnx/models: one image, a weight behind a Reshape, IR version 3, whose weights are inputs."""
    weights = {"Parameter193": floats(16, 4, 4, 10, scale=0.1), "Parameter87": floats(16, 8, 5, 5, scale=0.1),
               "Parameter5": floats(8, 1, 5, 5, scale=0.2), "Parameter6": floats(8, 1, 1, scale=0.1),
               "Parameter88": floats(16, 1, 1, scale=0.1), "Parameter194": floats(1, 10, scale=0.1),
               "rows": np.int64([1, 256]), "columns": np.int64([256, 10])}  # fmt: skip
    same = {"kernel_shape": [5, 5], "strides": [1, 1], "auto_pad": "SAME_UPPER", "group": 1, "dilations": [1, 1]}
    pool = {"pads": [0, 0, 0, 0], "auto_pad": "NOTSET"}
    nodes = [node("Reshape", "Parameter193 columns", "weight"), node("Conv", "Input3 Parameter5", "c1", **same),
             node("Add", "c1 Parameter6", "b1"), node("Relu", "b1", "r1"),
             node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2], **pool), node("Conv", "p1 Parameter87", "c2", **same),
             node("Add", "c2 Parameter88", "b2"), node("Relu", "b2", "r2"),
             node("MaxPool", "r2", "p2", kernel_shape=[3, 3], strides=[3, 3], **pool), node("Reshape", "p2 rows", "row"),
             node("MatMul", "row weight", "product"), node("Add", "product Parameter194", "Plus214_Output_0")]  # fmt: skip
    save(path, nodes, [value("Input3", 1, 1, 28, 28)], [value("Plus214_Output_0", 1, 10)], weights, 12, 3, weights_are_inputs=True)
    return weights


def test_one_hot_labels_are_classes(tmp_path):
    """microsoft/onnxruntime#17875: "labels" of mnist-12 is [1] where the reporter has (0,0,0,1,0,...) of shape (1,10).

    They needed to train the zoo's MNIST on one-hot labels, and to be told what a label is.
    """
    model = tmp_path / "model.onnx"
    weights = mnist_12(model)
    x, classes = floats(12, 1, 28, 28), RNG.integers(0, 10, 12)
    one_hot = np.eye(10, dtype=np.float32)[classes]
    data = tool.save(tmp_path / "data.npz", {"Input3": x, "labels": one_hot})
    text = tool.run("fit", model, "--data", data, "--steps", 1, "--batch", "dynamic", "--batch-size", 12, "--out", tmp_path / "run")
    assert "cross_entropy(Plus214_Output_0, labels, axis=1, probabilities=1)" in text
    parameters = doubles(weights)
    h = F.max_pool2d(F.relu(F.conv2d(torch.tensor(x).double(), parameters["Parameter5"], padding=2) + parameters["Parameter6"]), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, parameters["Parameter87"], padding=2) + parameters["Parameter88"]), 3)
    logits = h.flatten(1) @ parameters["Parameter193"].reshape(256, 10) + parameters["Parameter194"]
    loss = F.cross_entropy(logits, torch.tensor(classes))
    assert tool.losses(tmp_path / "run")[0] == pytest.approx(loss.item(), rel=1e-5)
    tool.run("build", model, "-o", tmp_path / "dynamic.onnx", "--batch", "dynamic", "--loss", "cross_entropy")
    for labels in (one_hot, one_hot.astype(np.int64)):
        data = tool.save(tmp_path / "data.npz", {"Input3": x, "labels": labels})
        said = run_refused("fit", tmp_path / "dynamic.onnx", "--data", data, "--steps", 1, "--out", tmp_path / "other")
        assert "the model expects int64[batch]" in said and "probabilities=true" in said and "argmax" in said


def othello(path):
    """The network of alpha-zero-general as PyTorch exports it: batch normalizations, a policy and a value."""
    weights = {"conv1.weight": floats(4, 1, 3, 3, scale=0.4), "conv1.bias": floats(4, scale=0.1), "fc1.weight": floats(6, 144, scale=0.1),
               "fc1.bias": floats(6, scale=0.1), "fc3.weight": floats(37, 6, scale=0.3), "fc3.bias": floats(37, scale=0.1),
               "fc4.weight": floats(1, 6, scale=0.3), "fc4.bias": floats(1, scale=0.1)}  # fmt: skip
    for name, size in (("bn1", 4), ("f2_bn2", 6)):
        weights |= {f"{name}.weight": 1 + floats(size, scale=0.1), f"{name}.bias": floats(size, scale=0.1),
                    f"{name}.running_mean": floats(size, scale=0.1), f"{name}.running_var": 1 + np.abs(floats(size))}  # fmt: skip
    weights |= {"image": np.int64([-1, 1, 6, 6]), "row": np.int64([-1, 144])}

    def norm(x, name, y):
        return node("BatchNormalization", [x, *(f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var"))], y)

    nodes = [node("Reshape", "board image", "s"), node("Conv", "s conv1.weight conv1.bias", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             norm("c", "bn1", "n"), node("Relu", "n", "r"), node("Reshape", "r row", "f"),
             node("Gemm", "f fc1.weight fc1.bias", "g", transB=1), norm("g", "f2_bn2", "m"), node("Relu", "m", "h"),
             node("Gemm", "h fc3.weight fc3.bias", "scores", transB=1), node("LogSoftmax", "scores", "pi", axis=1),
             node("Gemm", "h fc4.weight fc4.bias", "u", transB=1), node("Tanh", "u", "v")]  # fmt: skip
    save(path, nodes, [value("board", "batch", 6, 6)], [value("pi", "batch", 37), value("v", "batch", 1)], weights, 12, 6)
    return weights


def othello_in_torch(p, board, statistics):
    def norm(x, name):
        moments = [statistics[f"{name}.running_{part}"] for part in ("mean", "var")]
        return F.batch_norm(x, *moments, p[f"{name}.weight"], p[f"{name}.bias"], training=True, momentum=0.1)

    h = F.relu(norm(F.conv2d(board[:, None], p["conv1.weight"], p["conv1.bias"], padding=1), "bn1"))
    h = F.relu(norm(F.linear(h.flatten(1), p["fc1.weight"], p["fc1.bias"]), "f2_bn2"))
    return F.linear(h, p["fc3.weight"], p["fc3.bias"]).log_softmax(1), F.linear(h, p["fc4.weight"], p["fc4.bias"]).tanh()


def test_batch_normalization_and_two_outputs_of_an_othello_player(tmp_path):
    """microsoft/onnxruntime#17879: "failed to find NodeArg by name f2_bn2.running_var_grad", then another error.

    They needed AlphaZero's network trained whole, running statistics among the names; a loss of its policy and value.
    """
    model = tmp_path / "model.onnx"
    weights = othello(model)
    names = [name for name, array in weights.items() if array.dtype == np.float32]
    options = {"loss": artifacts.LossType.CrossEntropyLoss, "optimizer": artifacts.OptimType.AdamW, "artifact_directory": tmp_path}
    with pytest.raises(onnx_train.UsageError, match=r"2 outputs \('pi', 'v'\).*loss_input_names=\['pi'\]"):
        artifacts.generate_artifacts(onnx.load(model), requires_grad=names, **options)
    with pytest.raises(onnx_train.UsageError, match="does not depend on 'fc4.weight'"):
        artifacts.generate_artifacts(onnx.load(model), requires_grad=names, loss_input_names=["pi"], **options)
    names = [name for name in names if not name.startswith("fc4")]
    artifacts.generate_artifacts(onnx.load(model), requires_grad=names, loss_input_names=["pi"], **options)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    board, labels = floats(8, 6, 6), RNG.integers(0, 37, 8)
    statistics = {name: torch.tensor(array).double() for name, array in weights.items() if "running" in name}
    pi, _ = othello_in_torch(doubles(weights), torch.tensor(board).double(), statistics)
    assert module(board, labels) == pytest.approx(F.nll_loss(pi, torch.tensor(labels)).item(), rel=1e-5)
    module.export_model_for_inferencing(tmp_path / "served.onnx", ["pi"])
    served = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "served.onnx").graph.initializer}
    for name, expected in statistics.items():
        np.testing.assert_allclose(served[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    text = tool.run("build", model, "-o", tmp_path / "policy.onnx", "--loss", "cross_entropy(pi, labels)")
    assert 'the loss does not depend on ["fc4.weight", "fc4.bias"]; they are not trained' in text and "trained         10 tensors" in text
    # The loss of AlphaZero, of both outputs.
    policy, outcome = RNG.dirichlet(np.ones(37), 8).astype(np.float32), RNG.uniform(-1, 1, (8, 1)).astype(np.float32)
    batch = {"board": board, "target_pi": policy, "target_v": outcome}
    found = gradients(model, batch, "cross_entropy(pi, target_pi, probabilities=true) + mse(v, target_v)")
    parameters = doubles({name: array for name, array in weights.items() if "running" not in name})
    pi, v = othello_in_torch(parameters, torch.tensor(board).double(), {k: s.clone() for k, s in statistics.items()})
    loss = -(torch.tensor(policy) * pi).sum(1).mean() + F.mse_loss(v, torch.tensor(outcome).double())
    expect_pytorchs(found, loss, parameters)
    assert set(found[1]) - {"input/board"} == set(parameters)
    assert "running statistics" in run_refused("build", model, "-o", tmp_path / "t.onnx", "--train", "bn1.running_var")


def walker(path):
    """A policy of ML-Agents: numbers about the file are outputs, the observation is normalized, the action is drawn."""
    weights = {"normalizer.running_mean": floats(8), "normalizer.running_variance": 2 + np.abs(floats(8)),
               "normalizer.normalization_steps": np.int32([2]), "body.0.weight": floats(16, 8, scale=0.3),
               "body.0.bias": floats(16, scale=0.1), "mu.weight": floats(3, 16, scale=0.3), "mu.bias": floats(3, scale=0.1),
               "log_sigma": np.full((1, 3), -80, np.float32), "version_number": np.float32([3]), "memory_size": np.float32([0]),
               "continuous_action_output_shape": np.float32([3]), "zero": np.float32(0), "three": np.float32(3)}  # fmt: skip
    nodes = [node("Sub", "obs_0 normalizer.running_mean", "d"), node("Cast", "normalizer.normalization_steps", "steps", to=1),
             node("Div", "normalizer.running_variance steps", "variance"), node("Sqrt", "variance", "deviation"),
             node("Div", "d deviation", "n"), node("Clip", "n", "obs", min=-5.0, max=5.0),
             node("Gemm", "obs body.0.weight body.0.bias", "g", transB=1), node("Sigmoid", "g", "s"), node("Mul", "g s", "h"),
             node("Gemm", "h mu.weight mu.bias", "mu", transB=1), node("Exp", "log_sigma", "sigma"), node("Mul", "mu zero", "z"),
             node("Add", "z sigma", "std"), node("RandomNormalLike", "mu", "e", dtype=1), node("Mul", "e std", "noise"),
             node("Add", "mu noise", "drawn"), node("Clip", "drawn", "clipped", min=-3.0, max=3.0),
             node("Div", "clipped three", "continuous_actions"), node("Clip", "mu", "bounded", min=-3.0, max=3.0),
             node("Div", "bounded three", "deterministic_continuous_actions")]  # fmt: skip
    outputs = [value("version_number", 1), value("memory_size", 1), value("continuous_actions", "batch", 3),
               value("continuous_action_output_shape", 1), value("deterministic_continuous_actions", "batch", 3)]  # fmt: skip
    save(path, nodes, [value("obs_0", "batch", 8)], outputs, weights, 9, 4)
    return weights


def test_a_policy_of_ml_agents_is_trained_by_its_actions(tmp_path):
    """microsoft/onnxruntime#18344: a weighted sum of two MSELosses on Walker2.onnx fails at a Gemm of opset 9.

    They needed a file of Unity's ML-Agents trained: its first outputs are constants, its observations are normalized by
    statistics that no gradient should change.
    """
    model = tmp_path / "model.onnx"
    weights = walker(model)
    text = tool.run("check", model)
    assert "It can be trained" in text
    assert "continuous_actions, labels" in tool.run("build", model, "-o", tmp_path / "train.onnx", "--loss", "mse")
    x, first, second = floats(16, 8), floats(16, 3, scale=0.3), floats(16, 3, scale=0.3)
    batch = {"obs_0": x, "target1": first, "target2": second}
    loss = "0.4*mse(continuous_actions, target1) + 0.6*mse(deterministic_continuous_actions, target2)"
    found = gradients(model, batch, loss)
    assert not [name for name in found[1] if name.startswith("normalizer")]
    parameters = doubles(weights)
    deviation = (parameters["normalizer.running_variance"] / 2).sqrt()
    obs = ((torch.tensor(x) - parameters["normalizer.running_mean"]) / deviation).clamp(-5, 5)
    h = F.silu(F.linear(obs, parameters["body.0.weight"], parameters["body.0.bias"]))
    action = F.linear(h, parameters["mu.weight"], parameters["mu.bias"]).clamp(-3, 3) / 3
    expected = 0.4 * F.mse_loss(action, torch.tensor(first).double()) + 0.6 * F.mse_loss(action, torch.tensor(second).double())
    found[1].pop("log_sigma")  # e⁻⁸⁰ of noise
    expect_pytorchs(found, expected, parameters)


def integers(array, scale):
    return np.clip(np.round(array / scale), -128, 127).astype(np.int8)


@pytest.mark.parametrize("pool", ["com.microsoft", "ai.onnx"])
def test_a_model_of_integers_says_what_to_train_in_its_place(pool, tmp_path):
    """microsoft/onnxruntime#19078: resnet50-v1-12-int8 of the zoo cannot be retrained, nor does the error say why.

    They needed to know that QLinearConv and its like hold no weights with gradients, and which file does.
    """
    weights = {"s": np.float32(0.05), "u8": np.uint8(128), "ws": np.float32(0.01), "i8": np.int8(0), "w": integers(floats(4, 3, 3, 3), 0.01),
               "fc": integers(floats(4, 10), 0.01)}  # fmt: skip
    middle = [node("QLinearGlobalAveragePool", "c s u8 s u8", "g", domain=pool)] if pool == "com.microsoft" else [
        node("DequantizeLinear", "c s u8", "f"), node("GlobalAveragePool", "f", "a"), node("QuantizeLinear", "a s u8", "g")]  # fmt: skip
    nodes = [node("QuantizeLinear", "data s u8", "q"), node("QLinearConv", "q s u8 w ws i8 s u8", "c", "conv0_quant", kernel_shape=[3, 3]),
             *middle, node("Flatten", "g", "row"), node("QLinearMatMul", "row s u8 fc ws i8 s u8", "m", "fc_MatMul_quant"),
             node("DequantizeLinear", "m s u8", "resnetv17_dense0_fwd")]  # fmt: skip
    model = tmp_path / "model.onnx"
    save(model, nodes, [value("data", "N", 3, 8, 8)], [value("resnetv17_dense0_fwd", "N", 10)], weights, 12, 7,
         domains=["com.microsoft"])  # fmt: skip
    data = tool.save(tmp_path / "data.npz", {"data": floats(4, 3, 8, 8), "labels": np.int64([0, 1, 2, 3])})
    for command in (["check", model], ["fit", model, "--data", data, "--steps", 1, "--out", tmp_path / "run"],
                    ["build", model, "-o", tmp_path / "train.onnx"]):  # fmt: skip
        said = run_refused(*command)
        assert "no gradient" in said and "take the float model that it was made from" in said and "QDQ" in said
        assert ("QLinearGlobalAveragePool" if pool == "com.microsoft" else "conv0_quant") in said
    assert not (tmp_path / "train.onnx").exists() and not (tmp_path / "run").exists()
