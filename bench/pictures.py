"""Pictures for each second: ours in two threads against PyTorch's DataLoader with two workers, which decode, resize and
augment by Pillow as torchvision's transforms do (random resized crop to 224, flip, brightness, contrast, saturation).

    .deps/venv/bin/python bench/pictures.py [--bench build/bench/pictures_bench] [--count 400] [--rounds 3]

makes JPEG files of 500 x 375 pixels, as ImageNet's are, in a temporary folder. The two take turns; medians are printed.
Then it counts the steps of 5 ms that wait for a batch of pictures that are in memory: 32 of 32 x 32 pixels, moved and
flipped as CIFAR-10's are trained.
"""

import argparse
import math
import random
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

SIZE = 224


def make_pictures(root, count):
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:375, :500]
    for i in range(count):
        waves = [127 + 90 * np.sin(x / rng.uniform(5, 60) + c) * np.cos(y / rng.uniform(5, 60)) for c in range(3)]
        pixels = np.stack(waves, -1) + rng.normal(0, 10, (375, 500, 3))
        path = root / str(i % 10) / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, root):
        self.files = sorted(root.rglob("*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        picture = Image.open(self.files[index]).convert("RGB")
        width, height = picture.size
        while True:
            area, ratio = width * height * random.uniform(0.08, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if w <= width and h <= height:
                break
        left, top = random.randint(0, width - w), random.randint(0, height - h)
        picture = picture.crop((left, top, left + w, top + h)).resize((SIZE, SIZE), Image.BILINEAR)
        if random.random() < 0.5:
            picture = picture.transpose(Image.FLIP_LEFT_RIGHT)
        changes = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
        for change in random.sample(changes, 3):
            picture = change(picture).enhance(random.uniform(0.6, 1.4))
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div_(255)
        return pixels.sub_(0.45).div_(0.225)


def theirs(root):
    loader = torch.utils.data.DataLoader(Pictures(root), batch_size=32, shuffle=True, num_workers=2)
    start, count = time.perf_counter(), 0
    for batch in loader:
        count += len(batch)
    return count / (time.perf_counter() - start)


IMAGENET = (SIZE, "resize(256), crop(224), normalize(imagenet)", "random_resized_crop, flip, jitter(0.4)")
CIFAR = (32, "resize(32), crop(32), normalize(cifar10)", "pad_crop(2), flip")


def run(bench, root, recipe, epochs, step):
    """Pictures a second and steps that waited, for each epoch."""
    size, *steps = recipe
    command = [bench, root, "2", str(size), *steps, str(epochs), str(step)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [[float(x) for x in line.split()] for line in result.stdout.splitlines()]


def ours(bench, root, epochs=2):
    return [rate for rate, _ in run(bench, root, IMAGENET, epochs, 0)]


def cpu_seconds(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def processor_time(bench, root, count):
    """Milliseconds of processor time for each picture: a machine that is busy with other things changes it little."""
    pictures, start = Pictures(root), cpu_seconds(resource.RUSAGE_SELF)
    for index in range(count):
        pictures[index]
    times, start = [cpu_seconds(resource.RUSAGE_SELF) - start], cpu_seconds(resource.RUSAGE_CHILDREN)
    for epochs in (1, 2):
        ours(bench, root, epochs)
        now = cpu_seconds(resource.RUSAGE_CHILDREN)
        times, start = [*times, now - start], now
    return times[0], times[1], times[2] - times[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=Path(__file__).parents[1] / "build" / "bench" / "pictures_bench", type=Path)
    parser.add_argument("--count", default=400, type=int, help="pictures")
    parser.add_argument("--rounds", default=3, type=int, help="0: processor time alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_pictures(root, arguments.count)
        milliseconds = [1e3 * t / arguments.count for t in processor_time(arguments.bench, root, arguments.count)]
        waited = [int(steps) for _, steps in run(arguments.bench, root, CIFAR, 4, 5)[1:]]
        rows = [(theirs(root), *ours(arguments.bench, root)) for _ in range(arguments.rounds)]
    print("processor time of a picture: Pillow {:.1f} ms, onnx-train {:.1f} ms, second epoch {:.1f} ms".format(*milliseconds))
    print(f"steps of 5 ms that waited for pictures in memory, of {math.ceil(arguments.count / 32)}, in three epochs:", *waited)
    if not rows:
        return
    names = ["DataLoader with Pillow, 2 workers", "onnx-train, 2 threads, first epoch", "onnx-train, second epoch"]
    for name, figures in zip(names, zip(*rows)):
        print(f"{name:36} {statistics.median(figures):7.0f} pictures a second, {min(figures):.0f} to {max(figures):.0f}")


if __name__ == "__main__":
    main()
