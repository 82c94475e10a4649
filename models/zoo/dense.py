"""A number for each pixel: segmentation, detection, images out of images."""

import segmentation
import torch
from torch import nn
from torch.nn import functional as F
from zoo.convolutions import SGD, convolution
from zoo.entry import Example, Family, choices, draw, pictures, randomized, segmenter

FAMILY = Family("Segmentation, detection")


class ResizeUNet(nn.Module):
    """Up by interpolation to the size of the skip connection, whatever that is."""

    def __init__(self, mode, corners=None):
        super().__init__()
        self.down, self.bottom = convolution(3, 4), convolution(4, 8, 3, 2)
        self.up, self.head = convolution(12, 4), nn.Conv2d(4, 3, 1)
        self.options = {"mode": mode, "align_corners": corners}

    def forward(self, x):
        fine = self.down(x)
        coarse = F.interpolate(self.bottom(fine), size=fine.shape[-2:], **self.options)
        return self.head(self.up(torch.cat([coarse, fine], 1)))


class TransposedUNet(nn.Module):
    """Up by transposed convolutions."""

    def __init__(self):
        super().__init__()
        self.down, self.bottom = convolution(3, 4), convolution(4, 8)
        self.enlarge = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)
        self.up, self.head = convolution(8, 4), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        fine = self.down(x)
        return self.head(self.up(torch.cat([self.enlarge(self.bottom(F.max_pool2d(fine, 2))), fine], 1)))


class SuperResolution(nn.Module):
    """ESPCN: channels become pixels. https://arxiv.org/abs/1609.05158"""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        return self.layers(x) + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)


class Retina(nn.Module):
    """RetinaNet in miniature: a pyramid of features, one head for classes and one for boxes on all of its levels.
    https://arxiv.org/abs/1708.02002"""

    def __init__(self, classes=3, anchors=2, width=8):
        super().__init__()
        self.classes = classes
        self.stages = nn.ModuleList([convolution(3, 8, 3, 2), convolution(8, 12, 3, 2), convolution(12, 16, 3, 2)])
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1) for c in (12, 16))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, anchors * n, 3, padding=1))
            for n in (classes, 4)
        )

    def forward(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        low = self.lateral[1](maps[2])
        levels = [self.lateral[0](maps[1]) + F.interpolate(low, scale_factor=2, mode="nearest"), low]

        def flat(head, numbers):
            parts = [self.heads[head](level).permute(0, 2, 3, 1).reshape(x.shape[0], -1, numbers) for level in levels]
            return torch.cat(parts, 1)

        return flat(0, self.classes), flat(1, 4)


class Yolo(nn.Module):
    """YOLOv8's parts in miniature: C2f, SPPF, a neck that goes up and down, decoded boxes."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.classes = classes
        self.stem = convolution(3, width, 3, 2, activation=nn.SiLU)
        self.split = convolution(width, width, 1, activation=nn.SiLU)
        self.inner = convolution(width // 2, width // 2, activation=nn.SiLU)
        self.join = convolution(3 * width // 2, width, 1, activation=nn.SiLU)
        self.down = convolution(width, 2 * width, 3, 2, activation=nn.SiLU)
        self.pool, self.pooled = nn.MaxPool2d(5, 1, 2), convolution(8 * width, width, 1, activation=nn.SiLU)
        self.fine, self.coarse = nn.Conv2d(2 * width, 4 + classes, 1), nn.Conv2d(width, 4 + classes, 1)

    def forward(self, x):
        a, b = self.split(self.stem(x)).chunk(2, 1)
        fine = self.join(torch.cat([a, b, self.inner(b)], 1))
        coarse = self.down(fine)
        one = self.pool(coarse)
        two = self.pool(one)
        coarse = self.pooled(torch.cat([coarse, one, two, self.pool(two)], 1))
        fine = torch.cat([fine, F.interpolate(coarse, scale_factor=2.0)], 1)
        places = torch.cat([self.fine(fine).flatten(2), self.coarse(coarse).flatten(2)], 2)
        distances, scores = places.split((4, self.classes), 1)
        rows, columns = fine.shape[-2:]
        anchors = torch.cat([self.anchors(rows, columns, 2, x), self.anchors(rows // 2, columns // 2, 4, x)], 1)
        near, far = distances.chunk(2, 1)
        boxes = torch.cat([anchors - near, anchors + far], 1)
        return torch.cat([boxes, scores.sigmoid()], 1)

    @staticmethod
    def anchors(rows, columns, stride, like):
        y, x = torch.meshgrid(torch.arange(rows, device=like.device), torch.arange(columns, device=like.device), indexing="ij")
        return ((torch.stack([x, y]).to(like.dtype) + 0.5) * stride).flatten(1)


class Assigned(nn.Module):
    """YOLO with its loss inside: boxes and classes of the cells that a mask chooses, and a score for every cell."""

    def __init__(self):
        super().__init__()
        self.network = Yolo()

    def forward(self, x, boxes, classes, chosen):
        found, scores = self.network(x).transpose(1, 2).split((4, 3), 2)
        picked, best = scores[chosen], scores.max(2).values
        box = F.mse_loss(found[chosen] / 8, boxes[chosen] / 8)
        kind = -torch.log(picked.gather(1, classes[chosen][:, None]) + 1e-4).mean()
        score = torch.where(chosen, best, 1 - best)  # PyTorch's older exporter has no binary_cross_entropy
        return box + kind - torch.log(score + 1e-4).mean()


def segmented(build, size=12):
    def make():
        generator = draw()
        return segmenter(build(), {"x": pictures(generator, 3, 3, size)}, choices(generator, 3, 3, size, size))

    return make


def regressed(build, shape, size=12):
    def make():
        generator = draw()
        module = build()
        randomized(module)
        target = torch.rand(shape, generator=generator)
        return Example(module, {"x": pictures(generator, 3, 3, size)}, {"target": target}, "smooth_l1(y, target)", F.smooth_l1_loss, ("y",))

    return make


def retina():
    generator = draw()
    module = Retina()
    randomized(module)
    inputs = {"x": pictures(generator, 3, 3, 16)}
    targets = {"classes": (torch.rand(3, 40, 3, generator=generator) < 0.2).float(), "boxes": torch.randn(3, 40, 4, generator=generator)}

    def criterion(logits, regression, classes, boxes):
        return F.binary_cross_entropy_with_logits(logits, classes) + F.smooth_l1_loss(regression, boxes)

    loss = "bce_with_logits(logits, classes) + smooth_l1(regression, boxes)"
    return Example(module, inputs, targets, loss, criterion, ("logits", "regression"))


def assigned():
    generator = draw()
    module = Assigned()
    randomized(module)
    inputs = {
        "x": pictures(generator, 3, 3, 16), "boxes": 8 * torch.rand(3, 80, 4, generator=generator),
        "classes": choices(generator, 3, 3, 80), "chosen": torch.rand(3, 80, generator=generator) < 0.1,
    }  # fmt: skip
    return Example(module, inputs, {}, "loss", lambda loss: loss, ("loss",))


FAMILY.add("U-Net (bilinear)", segmented(lambda: ResizeUNet("bilinear", False), 13), quick=True, **SGD)
FAMILY.add("U-Net (bilinear, corners)", segmented(lambda: ResizeUNet("bilinear", True), 13), **SGD)
FAMILY.add("U-Net (nearest)", segmented(lambda: ResizeUNet("nearest"), 13), **SGD)
FAMILY.add("U-Net (bicubic)", segmented(lambda: ResizeUNet("bicubic", False), 13), **SGD)
FAMILY.add("U-Net (bilinear), opset 11", segmented(lambda: ResizeUNet("bilinear", False)), exporters=("torchscript",), opset=11, **SGD)
FAMILY.add("U-Net (nearest), opset 10", segmented(lambda: ResizeUNet("nearest")), exporters=("torchscript",), opset=10, dynamic=False, **SGD)
FAMILY.add("U-Net (transposed)", segmented(TransposedUNet), **SGD)
FAMILY.add("U-Net (transposed), opset 9", segmented(TransposedUNet), exporters=("torchscript",), opset=9, **SGD)
FAMILY.add("DeepLab v3+", segmented(lambda: segmentation.DeepLab(4, 3), 17), **SGD)
FAMILY.add("Super-resolution", regressed(SuperResolution, (3, 3, 24, 24)))
FAMILY.add("YOLO", regressed(Yolo, (3, 7, 80), 16), **SGD)
FAMILY.add("YOLO, loss of chosen cells", assigned, **SGD)
FAMILY.add("RetinaNet", retina, **SGD)
