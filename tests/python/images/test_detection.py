"""The loss of YOLO as a model: against its definition in loops, PyTorch's gradients and PyTorch's training, and what mAP
says of the boxes."""

import sys

import numpy as np
import onnx
import pytest
import tool
import torch
import networks
from export import export
from onnx import numpy_helper

sys.path += [str(tool.ROOT / "models" / "losses"), str(tool.ROOT / "examples" / "python")]
import detector  # noqa: E402
import shapes_to_detect  # noqa: E402
import yolo  # noqa: E402

onnx_train = pytest.importorskip("onnx_train", reason="the Python package is not built")
from onnx_train import detection  # noqa: E402

RATE = 2**-7  # exact in float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, and the network and its loss in float64."""
    root = tmp_path_factory.mktemp("detector")
    shapes_to_detect.main(root, train=16, val=4)
    torch.manual_seed(0)
    module = networks.finish(detector.Detector(width=4), {}, None, 0).module.double()
    export(module, {"images": torch.rand(2, 3, 64, 64, dtype=torch.float64)}, root / "detector.onnx", "torchscript",
           outputs=("output0",))  # fmt: skip
    yolo.export_loss(root / "yolo.onnx", 64, 64, detector.STRIDES, dtype=torch.float64)
    return root, module


def example(seed=0, batch=3, most=5, classes=3):
    """Predictions near the anchors of a picture of 64 x 64, and boxes of which a batch has 1 to 3, 5 rows each."""
    random, centers = np.random.default_rng(seed), yolo.anchor_centers(64, 64, detector.STRIDES).numpy()
    predictions = np.empty((batch, 4 + classes, len(centers)))
    predictions[:, :2] = centers.T + random.normal(0, 3, (batch, 2, len(centers)))
    predictions[:, 2:4] = random.uniform(5, 40, (batch, 2, len(centers)))
    predictions[:, 4:] = random.uniform(0.01, 0.99, predictions[:, 4:].shape)
    boxes = np.zeros((batch, most, 5))
    boxes[..., 0] = -1
    for picture in range(batch):
        for row in range(picture + 1):
            corner, size = random.uniform(0, 30, 2), random.uniform(10, 30, 2)
            boxes[picture, row] = row % classes, *corner, *(corner + size)
    return predictions, boxes


def complete_iou(a, b):
    (al, at, ar, ab), (bl, bt, br, bb) = a, b
    shared = max(min(ar, br) - max(al, bl), 0) * max(min(ab, bb) - max(at, bt), 0)
    iou = shared / ((ar - al) * (ab - at) + (br - bl) * (bb - bt) - shared)
    distance = ((al + ar - bl - br) ** 2 + (at + ab - bt - bb) ** 2) / 4
    hull = (max(ar, br) - min(al, bl)) ** 2 + (max(ab, bb) - min(at, bt)) ** 2
    v = 4 / np.pi**2 * (np.arctan((br - bl) / (bb - bt)) - np.arctan((ar - al) / (ab - at))) ** 2
    return iou - distance / hull - v * v / (1 - iou + v)


def loss_in_loops(predictions, boxes, centers):
    targets, box_losses = np.zeros_like(predictions[:, 4:]), []
    for picture, (prediction, rows) in enumerate(zip(predictions, boxes)):
        found = np.concatenate([prediction[:2] - prediction[2:4] / 2, prediction[:2] + prediction[2:4] / 2]).T
        belongs = {}  # anchor -> (CIoU, metric, row), of the row that it overlaps most
        for number, (label, *box) in enumerate(rows):
            inside = [i for i, (x, y) in enumerate(centers) if label >= 0 and box[0] < x < box[2] and box[1] < y < box[3]]
            ious = {i: max(complete_iou(box, found[i]), 0) for i in inside}
            metrics = {i: prediction[4 + int(label), i] ** 0.5 * ious[i] ** 6 for i in inside}
            for i in sorted(inside, key=metrics.get)[-10:]:
                if metrics[i] > 0:
                    belongs[i] = max(belongs.get(i, (-1, 0, 0)), (ious[i], metrics[i], number))
        for number, (label, *box) in enumerate(rows):
            own = {i: (iou, metric) for i, (iou, metric, of) in belongs.items() if of == number}
            for i, (_, metric) in own.items():
                aligned = metric * max(iou for iou, _ in own.values()) / max(m for _, m in own.values())
                targets[picture, int(label), i] = aligned
                box_losses.append((1 - complete_iou(box, found[i])) * aligned)
    p, total = predictions[:, 4:], max(targets.sum(), 1)
    entropy = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).sum()
    return 7.5 * sum(box_losses) / total + 0.5 * entropy / total


def test_the_loss_is_its_definition():
    module = yolo.YoloLoss(64, 64, detector.STRIDES).double()
    for seed in range(3):
        predictions, boxes = example(seed)
        wanted = loss_in_loops(predictions, boxes, module.centers.numpy())
        found = module(torch.from_numpy(predictions), torch.from_numpy(boxes)).item()
        np.testing.assert_allclose(found, wanted, rtol=1e-5)  # epsilons of 1e-7, and centers that are float32


def test_pictures_without_boxes_have_a_loss(folder):
    predictions, boxes = example()
    boxes[:] = [-1, 0, 0, 0, 0]
    wanted = -0.5 * np.log(1 - predictions[:, 4:]).sum()
    module = yolo.YoloLoss(64, 64, detector.STRIDES).double()
    np.testing.assert_allclose(module(torch.from_numpy(predictions), torch.from_numpy(boxes)).item(), wanted, rtol=1e-12)


def batches(folder, session, size=4):
    arrays = onnx_train.load_data(folder / "train", session)
    assert arrays["boxes"].shape == (16, 3, 5) and arrays["images"].shape == (16, 3, 64, 64)
    return [{name: array[i : i + size].astype(float) for name, array in arrays.items()} for i in range(0, 16, size)]


def test_gradients_and_ten_steps_are_pytorchs(folder):
    root, module = folder
    training = onnx_train.build(root / "detector.onnx", root / "yolo.onnx", "sgd(momentum=0.875)", dtype="float64")
    session = onnx_train.Session(training)
    module.train()
    loss_of = yolo.YoloLoss(64, 64, detector.STRIDES).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.875)
    assert "centers" not in session.state and "strides" not in session.state  # by their contents: the file does not say it
    gradients = None
    for step in range(10):
        batch = batches(root, session)[step % 4]
        loss = loss_of(module(torch.from_numpy(batch["images"])), torch.from_numpy(batch["boxes"]))
        optimizer.zero_grad()
        loss.backward()
        if gradients is None:
            gradients = {name: p.grad.clone().numpy() for name, p in module.named_parameters()}
            np.savez(root / "batch.npz", **batch)
        optimizer.step()
        np.testing.assert_allclose(session.step(batch, lr=RATE).loss, loss.item(), rtol=1e-9)
    tool.run("grad", root / "detector.onnx", "--inputs", root / "batch.npz", "--loss", root / "yolo.onnx", "--dtype", "float64",
             "--mode", "train", "-o", root / "gradients.npz")  # fmt: skip
    found = tool.load(root / "gradients.npz")
    for name, wanted in gradients.items():
        np.testing.assert_allclose(found[f"grad/{name}"], wanted, rtol=1e-7, atol=1e-9 * np.abs(wanted).max(), err_msg=name)


def test_onnx_runtime_runs_the_flattened_step(folder, tmp_path):
    """In float32: ONNX Runtime has no Atan of float64."""
    models = tool.ROOT / "models"
    tool.run("build", models / "detector.onnx", "-o", tmp_path / "train.onnx", "--loss", models / "losses" / "yolo_64.onnx",
             "--optimizer", "sgd(lr=0.01)")  # fmt: skip
    tool.run("flatten", tmp_path / "train.onnx", "--entry", "step", "-o", tmp_path / "step.onnx")
    session, other = onnx_train.Session(tmp_path / "train.onnx"), tool.session(tmp_path / "step.onnx")
    batch = {name: array.astype(np.float32) for name, array in batches(folder[0], session)[0].items()}
    model = onnx.load(tmp_path / "train.onnx")
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    values = {tensor.name: numpy_helper.to_array(tensor) for graph in graphs for tensor in graph.initializer}
    values |= batch | {"learning_rate": np.array(0.01, np.float32)}
    feed = {value.name: values[value.name] for value in other.get_inputs()}
    for _ in range(2):
        results = dict(zip([output.name for output in other.get_outputs()], other.run(None, feed)))
        np.testing.assert_allclose(results["loss"], session.step(batch, lr=0.01).loss, rtol=1e-5)
        feed |= {name: results[f"next/{name}"] for name in feed if f"next/{name}" in results}


def test_the_committed_files_are_what_their_scripts_write(tmp_path):
    yolo.export_loss(tmp_path / "yolo.onnx", 64, 64, detector.STRIDES)
    made, committed = onnx.load(tmp_path / "yolo.onnx"), onnx.load(tool.ROOT / "models" / "losses" / "yolo_64.onnx")
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in committed.graph.node]
    arrays = lambda model: [numpy_helper.to_array(t) for t in model.graph.initializer]
    for a, b in zip(arrays(made), arrays(committed)):
        np.testing.assert_array_equal(a, b)
    report = onnx_train.check(tool.ROOT / "models" / "detector.onnx")
    assert "It can be trained" in str(report)


def test_mean_average_precision_of_cases_done_by_hand():
    box = lambda label, left, size=20: [label, left, 0, left + size, 20]
    there = [[box(0, 0), box(0, 40)], [box(1, 0)]]
    found = lambda *rows: np.array([[label, score, left, 0, left + 20, 20] for label, score, left in rows], float).reshape(-1, 6)
    every = [found((0, 0.9, 0), (0, 0.8, 40)), found((1, 0.7, 0))]
    assert detection.mean_average_precision(every, there).map == 1
    # A wrong one of the highest score: precision 1/2, 2/3 at recalls up to 1/2 and 1; the envelope is 2/3.
    wrong = [found((0, 0.95, 100), (0, 0.9, 0), (0, 0.8, 40)), found((1, 0.7, 0))]
    np.testing.assert_allclose(detection.mean_average_precision(wrong, there).by_class[0], 2 / 3)
    # Half of class 0 is found: recalls 0 to 0.5 are 51 of 101.
    half = [found((0, 0.9, 0)), found((1, 0.7, 0))]
    np.testing.assert_allclose(detection.mean_average_precision(half, there).by_class[0], 51 / 101)
    # Twice the same box: the second one is wrong, and comes last. Shifted by 4 of 20: IoU 2/3, right at 4 of 10.
    shifted = [found((0, 0.9, 4), (0, 0.8, 40), (0, 0.1, 40)), found((1, 0.7, 0))]
    precision = detection.mean_average_precision(shifted, there)
    assert precision.map50 == 1 and precision.by_class[1] == 1
    np.testing.assert_allclose(precision.by_class[0], 0.4 + 0.6 * (51 * 0.5 / 101))
    assert np.isnan(detection.mean_average_precision([found()], [[]]).map)
    with pytest.raises(onnx_train.DataError, match="1 pictures in found, 2 in there"):
        detection.mean_average_precision([found()], there)


def test_suppression_keeps_the_best_of_boxes_that_overlap():
    predictions, _ = example(4, batch=1, classes=2)
    kept = detection.non_max_suppression(predictions, score=0.3, iou=0.4)[0]
    rows = [(label, p[4 + label], *(p[:2] - p[2:4] / 2), *(p[:2] + p[2:4] / 2)) for p in predictions[0].T for label in (0, 1)]
    wanted = []
    for row in sorted((row for row in rows if row[1] > 0.3), key=lambda row: -row[1]):
        if all(row[0] != other[0] or detection.box_iou([row[2:]], [other[2:]])[0, 0] <= 0.4 for other in wanted):
            wanted.append(row)
    np.testing.assert_allclose(kept, wanted)
    with pytest.raises(onnx_train.DataError, match="4 . classes, boxes"):
        detection.non_max_suppression(np.zeros((3, 7)))


def test_a_forward_model_may_stop_gradients_also_when_it_is_built_again(tmp_path):
    random = np.random.default_rng(0)
    a, b, x = (random.normal(size=shape).astype(np.float32) for shape in ((4, 4), (4, 3), (5, 4)))
    labels = np.array([0, 1, 2, 1, 0])
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "onnx_train" : 1]>
        g (float[N, 4] x, float[4, 4] a, float[4, 3] b) => (float[N, 3] y) {
            h = MatMul(x, a) fixed = onnx_train.StopGradient(h) product = Mul(fixed, h) y = MatMul(product, b) }""")  # fmt: skip
    model.graph.initializer.extend([numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")])
    onnx.save(model, tmp_path / "x.onnx")
    weight = torch.tensor(a, requires_grad=True)
    h = torch.tensor(x) @ weight
    torch.nn.functional.cross_entropy((h.detach() * h) @ torch.tensor(b), torch.tensor(labels)).backward()
    onnx_train.build(tmp_path / "x.onnx", "cross_entropy", "sgd").save(tmp_path / "train.onnx")
    onnx.checker.check_model(tmp_path / "train.onnx")
    for path in (tmp_path / "x.onnx", tmp_path / "train.onnx"):
        gradients = onnx_train.value_and_grad(path, "cross_entropy")({"x": x, "labels": labels})[1]
        np.testing.assert_allclose(gradients["a"], weight.grad.numpy(), rtol=1e-4, atol=1e-6)
