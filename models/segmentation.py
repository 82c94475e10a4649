"""Modules of segmentation and detection networks for networks.py, which make small maps large again by interpolation."""

import torch
from torch import nn
from torch.nn import functional as F


def block(inputs, outputs, size=3, stride=1, dilation=1, activation=nn.ReLU):
    padding = size // 2 * dilation
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding, dilation, bias=False), nn.BatchNorm2d(outputs), activation()
    )


class BilinearUNet(nn.Module):
    """The U-Net that most code has: batch norm, nn.Upsample with aligned corners, a border where sizes are odd.
    https://arxiv.org/abs/1505.04597."""

    def __init__(self, width, classes):
        super().__init__()
        self.down = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 2 * width)])
        self.up = nn.ModuleList([block(4 * width, width), block(2 * width, width)])
        self.larger = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        maps = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            maps.append(x)
        for up, fine in zip(self.up, reversed(maps[:-1])):
            x = self.larger(x)
            rows, columns = fine.size(2) - x.size(2), fine.size(3) - x.size(3)
            x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            x = up(torch.cat([fine, x], 1))
        return self.head(x)


class DeepLab(nn.Module):
    """Dilated convolutions and the whole image's mean side by side, made as large as the image.
    https://arxiv.org/abs/1706.05587."""

    def __init__(self, width, classes):
        super().__init__()
        self.backbone = nn.Sequential(block(3, width, stride=2), block(width, 2 * width, stride=2))
        self.branches = nn.ModuleList(
            [block(2 * width, width, 1), block(2 * width, width, dilation=2), block(2 * width, width, dilation=3)]
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), block(2 * width, width, 1))
        self.project, self.head = block(4 * width, width, 1), nn.Conv2d(width, classes, 1)

    def forward(self, x):
        size = x.shape[-2:]
        x = self.backbone(x)
        maps = [branch(x) for branch in self.branches]
        maps.append(F.interpolate(self.whole(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        x = self.head(self.project(torch.cat(maps, 1)))
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class Yolo(nn.Module):
    """SiLU blocks, pools of several sizes side by side, the coarse map made larger by repeating its elements, and a head
    for each of two maps: [batch, places, numbers of a box]. https://arxiv.org/abs/1804.02767"""

    def __init__(self, width, numbers):
        super().__init__()
        self.numbers = numbers
        self.stem = block(3, width, stride=2, activation=nn.SiLU)
        self.fine = block(width, 2 * width, stride=2, activation=nn.SiLU)
        self.coarse = block(2 * width, 2 * width, stride=2, activation=nn.SiLU)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.join = block(6 * width, 2 * width, 1, activation=nn.SiLU)
        self.larger = nn.Upsample(scale_factor=2, mode="nearest")
        self.mix = block(4 * width, 2 * width, activation=nn.SiLU)
        self.heads = nn.ModuleList([nn.Conv2d(2 * width, 3 * numbers, 1) for _ in range(2)])

    def boxes(self, head, x):
        y = head(x)
        return y.view(y.shape[0], 3, self.numbers, *y.shape[2:]).permute(0, 1, 3, 4, 2).flatten(1, 3)

    def forward(self, x):
        fine = self.fine(self.stem(x))
        coarse = self.coarse(fine)
        once = self.pool(coarse)
        coarse = self.join(torch.cat([coarse, once, self.pool(once)], 1))
        fine = self.mix(torch.cat([self.larger(coarse), fine], 1))
        return torch.cat([self.boxes(head, y) for head, y in zip(self.heads, (fine, coarse))], 1)
