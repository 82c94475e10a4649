"""Writes the loss of YOLO networks as a model for `onnx-train build --loss`.

    python yolo.py --size 640 --strides 8,16,32 -o yolo.onnx

Its inputs: the network's output as Ultralytics exports it, [batch, 4 + classes, anchors] with the middle, width and
height of a box in pixels and the probability of each class; and `boxes`, [batch, M, 5] with class, left, top, right and
bottom in pixels, class -1 in rows without a box. The anchors are the cells of one map for each stride, row by row.

What is trained towards what is decided by task alignment (Feng et al., TOOD, 2021), as YOLOv8 has it: of the anchors
inside a box the 10 with the greatest score^0.5 IoU^6 belong to it. An anchor of several boxes belongs to the one that it
overlaps most. The classes get a binary cross entropy whose targets are that figure, scaled to the IoU of the best anchor of
the box; the boxes 1 - CIoU (Zheng et al., 2020), weighted by these targets. Both are divided by the sum of the targets
in the batch, 1 at least. The distribution over distances that YOLOv8 trains beside the boxes is not in an exported output, and
not in this loss.
"""

import argparse
import contextlib
import io
import math
import warnings

import torch
from stop_gradient import declare_stop_gradient, stop_gradient
from torch import nn

BOX_GAIN, CLASS_GAIN = 7.5, 0.5  # of YOLOv8
TOP, SCORE_POWER, IOU_POWER = 10, 0.5, 6
EPSILON = 1e-7


def anchor_centers(height, width, strides):
    """The middles of all cells in pixels, [anchors, 2]."""
    maps = []
    for stride in strides:
        y, x = torch.meshgrid(torch.arange(height // stride), torch.arange(width // stride), indexing="ij")
        maps.append((torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride)
    return torch.cat(maps)


def ciou(a, b):
    """Complete IoU of boxes [..., 4] (left, top, right, bottom) that broadcast, [...]."""
    (al, at, ar, ab), (bl, bt, br, bb) = a.unbind(-1), b.unbind(-1)
    aw, ah, bw, bh = ar - al, ab - at + EPSILON, br - bl, bb - bt + EPSILON
    width = (torch.minimum(ar, br) - torch.maximum(al, bl)).clamp(min=0)
    height = (torch.minimum(ab, bb) - torch.maximum(at, bt)).clamp(min=0)
    overlap = width * height
    iou = overlap / (aw * ah + bw * bh - overlap + EPSILON)
    hull = (torch.maximum(ar, br) - torch.minimum(al, bl)) ** 2 + (torch.maximum(ab, bb) - torch.minimum(at, bt)) ** 2
    distance = ((bl + br - al - ar) ** 2 + (bt + bb - at - ab) ** 2) / 4
    shape = (4 / math.pi**2) * (torch.atan(bw / bh) - torch.atan(aw / ah)) ** 2
    weight = stop_gradient(shape / (shape - iou + (1 + EPSILON)))
    return iou - distance / (hull + EPSILON) - shape * weight


class YoloLoss(nn.Module):
    def __init__(self, height, width, strides):
        super().__init__()
        self.register_buffer("centers", anchor_centers(height, width, strides).float())

    def assign(self, scores, found, classes, boxes, exists):
        """scores [B, A, C], found [B, A, 4], classes int64[B, M], boxes [B, M, 4], exists [B, M] ->
        for each anchor: the box that it belongs to int64[B, A], and how well the two are aligned [B, A], 0 if to none."""
        x, y = self.centers[:, 0], self.centers[:, 1]
        left, top, right, bottom = boxes.unsqueeze(2).unbind(-1)  # [B, M, 1]
        near = torch.minimum(torch.minimum(x - left, y - top), torch.minimum(right - x, bottom - y))
        inside = (near > 1e-9).to(scores.dtype) * exists.unsqueeze(2)  # [B, M, A]
        of_class = classes.unsqueeze(2).expand(-1, -1, scores.shape[1])
        score = torch.gather(scores.transpose(1, 2), 1, of_class) * inside
        iou = ciou(boxes.unsqueeze(2), found.unsqueeze(1)).clamp(min=0) * inside
        metric = score**SCORE_POWER * iou**IOU_POWER
        best = torch.topk(metric, min(TOP, self.centers.shape[0]), dim=2)[1]
        chosen = torch.zeros_like(metric).scatter(2, best, torch.ones_like(best, dtype=metric.dtype))
        chosen = chosen * (metric > 0).to(metric.dtype)
        owner = torch.argmax(iou * chosen, dim=1, keepdim=True)  # of several boxes the one with most overlap
        owned = torch.zeros_like(metric).scatter(1, owner, torch.ones_like(owner, dtype=metric.dtype)) * chosen
        metric, iou = metric * owned, iou * owned
        aligned = metric * iou.amax(2, keepdim=True) / (metric.amax(2, keepdim=True) + 1e-9)
        return owner.squeeze(1), aligned.amax(1)

    def forward(self, predictions, targets):
        predictions = predictions.transpose(1, 2)  # [B, A, 4 + C]
        middle, size, scores = predictions[..., 0:2], predictions[..., 2:4], predictions[..., 4:]
        found = torch.cat([middle - size / 2, middle + size / 2], -1)
        exists = (targets[..., 0] >= 0).to(scores.dtype)
        classes, boxes = targets[..., 0].clamp(min=0).long(), targets[..., 1:]
        owner, aligned = self.assign(stop_gradient(scores), stop_gradient(found), classes, boxes, exists)
        aligned = stop_gradient(aligned)
        total = aligned.sum().clamp(min=1)
        of_class = torch.gather(classes, 1, owner).unsqueeze(2)
        wanted = torch.zeros_like(scores).scatter(2, of_class, aligned.unsqueeze(2))
        log, log_rest = scores.clamp(min=1e-12).log(), (1 - scores).clamp(min=1e-12).log()
        class_loss = -(wanted * log + (1 - wanted) * log_rest).sum() / total
        goal = torch.gather(boxes, 1, owner.unsqueeze(2).expand(-1, -1, 4))
        box_loss = ((1 - ciou(goal, found)) * aligned).sum() / total
        return BOX_GAIN * box_loss + CLASS_GAIN * class_loss


def export_loss(path, height, width, strides, predictions="output0", dtype=torch.float32, classes=2):
    """Writes the loss; batch, classes and boxes of a picture stay open."""
    loss = YoloLoss(height, width, strides).to(dtype)
    anchors = loss.centers.shape[0]
    example = torch.rand(2, 4 + classes, anchors, dtype=dtype)
    targets = torch.tensor([[[0, 1, 1, 9, 9], [1, 2, 2, 20, 20], [-1, 0, 0, 0, 0]]] * 2, dtype=dtype)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            loss, (example, targets), str(path), dynamo=False, opset_version=18, input_names=[predictions, "boxes"],
            output_names=["loss"], custom_opsets={"onnx_train": 1},
            dynamic_axes={predictions: {0: "batch", 1: "numbers"}, "boxes": {0: "batch", 1: "most"}},
        )  # fmt: skip
    declare_stop_gradient(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", required=True, help="of the network's input in pixels: 640, or 480,640 for height and width")
    parser.add_argument("--strides", default="8,16,32", help="pixels of a cell of each map, in the order of the output")
    parser.add_argument("--predictions", default="output0", help="the name of the network's output")
    parser.add_argument("-o", "--output", required=True)
    arguments = parser.parse_args()
    size = [int(side) for side in arguments.size.split(",")]
    strides = [int(stride) for stride in arguments.strides.split(",")]
    export_loss(arguments.output, size[0], size[-1], strides, arguments.predictions)
    print(f"{arguments.output}: reads {arguments.predictions}[batch, 4 + classes, {len(anchor_centers(size[0], size[-1], strides))}]")


if __name__ == "__main__":
    main()
