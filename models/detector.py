"""A small detector with the output of Ultralytics' YOLO exports, for pictures of 64 x 64 pixels: python detector.py writes
detector.onnx, and the loss of it, losses/yolo_64.onnx."""

import sys
from pathlib import Path

import torch
from export import export
from segmentation import block
from torch import nn
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parent / "losses"))
from yolo import anchor_centers, export_loss  # noqa: E402

SIZE, STRIDES, CLASSES = 64, (8, 16), 2


class Detector(nn.Module):
    """Two maps, of strides 8 and 16. Each cell gives distances to the four sides of a box and a score for each class:
    [batch, 4 + classes, cells] with the middle, width and height in pixels and probabilities."""

    def __init__(self, width=16, classes=CLASSES, size=SIZE):
        super().__init__()
        silu = dict(activation=nn.SiLU)
        self.fine = nn.Sequential(
            block(3, width, stride=2, **silu), block(width, 2 * width, stride=2, **silu),
            block(2 * width, 2 * width, stride=2, **silu), block(2 * width, 2 * width, **silu),
        )  # fmt: skip
        self.coarse = block(2 * width, 4 * width, stride=2, **silu)
        self.heads = nn.ModuleList([nn.Conv2d(channels, 4 + classes, 1) for channels in (2 * width, 4 * width)])
        for head in self.heads:  # most cells hold nothing: a probability of 1%
            nn.init.constant_(head.bias[4:], -4.6)
        cells = [(size // stride) ** 2 for stride in STRIDES]
        self.register_buffer("centers", anchor_centers(size, size, STRIDES).float().T.unsqueeze(0))
        self.register_buffer("strides", torch.cat([torch.full((1, 1, n), float(s)) for n, s in zip(cells, STRIDES)], 2))

    def forward(self, image):
        fine = self.fine(image)
        maps = [head(y).flatten(2) for head, y in zip(self.heads, (fine, self.coarse(fine)))]
        distances, scores = torch.cat(maps, 2).split([4, self.heads[0].out_channels - 4], 1)
        distances = F.softplus(distances) * self.strides
        left_top, right_bottom = self.centers - distances[:, :2], self.centers + distances[:, 2:]
        return torch.cat([(left_top + right_bottom) / 2, right_bottom - left_top, torch.sigmoid(scores)], 1)


def main(folder):
    torch.manual_seed(0)
    export(Detector(), {"images": torch.rand(2, 3, SIZE, SIZE)}, folder / "detector.onnx", outputs=("output0",))
    export_loss(folder / "losses" / "yolo_64.onnx", SIZE, SIZE, STRIDES)


if __name__ == "__main__":
    main(Path(__file__).parent)
