"""What detectors find, and how much of it is right.

A detection is a row (class, score, left, top, right, bottom), what is there a row (class, left, top, right, bottom) as
data files give it to a loss, both in pixels of the network's input. Rows of the class -1 are none.

>>> import numpy as np
>>> from onnx_train import detection
>>> there = [np.array([[0, 10, 10, 30, 30]])]
>>> found = [np.array([[0, 0.9, 11, 10, 30, 30], [0, 0.4, 40, 40, 50, 50]])]
>>> round(detection.mean_average_precision(found, there).map50, 3)
1.0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._errors import DataError

Array = np.ndarray[Any, Any]

IOU_THRESHOLDS = tuple(0.5 + 0.05 * i for i in range(10))
RECALLS = np.linspace(0, 1, 101)


def box_iou(a: Array, b: Array) -> Array:
    """The area that two boxes share over that which they cover: float64[A, B] of boxes [A, 4] and [B, 4] (left, top,
    right, bottom); 0 where neither has an area.

    >>> detection.box_iou(np.array([[0, 0, 2, 2]]), np.array([[0, 0, 2, 2], [1, 0, 3, 2]])).round(3).tolist()
    [[1.0, 0.333]]
    """
    a, b = np.asarray(a, float)[:, None], np.asarray(b, float)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    shared = sides.clip(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).clip(min=0).prod(-1) for boxes in (a, b)]
    iou: Array = shared / np.maximum(areas[0] + areas[1] - shared, np.finfo(float).tiny)
    return iou


def non_max_suppression(
    predictions: Any, *, score: float = 0.001, iou: float = 0.7, limit: int = 300, candidates: int = 30000
) -> list[Array]:
    """The detections of each picture: of boxes of one class that overlap the one with the highest score alone.

    Args:
        predictions: what a YOLO network gives, as Ultralytics exports it: [pictures, 4 + classes, boxes] with the middle,
            width and height of a box in pixels, and the probability of each class.
        score: boxes of a lower probability are left out; a box may have several classes.
        iou: boxes overlap above this.
        limit: detections of a picture, those of the highest scores.
        candidates: boxes of a picture that are compared at most.

    Returns:
        For each picture the rows (class, score, left, top, right, bottom), by falling scores.

    Raises:
        DataError: for an array of another shape.

    >>> boxes = np.array([[[10.0, 11, 40], [10, 10, 40], [8, 8, 8], [8, 8, 8], [0.9, 0.8, 0.3]]])
    >>> detection.non_max_suppression(boxes)[0][:, :3].tolist()
    [[0.0, 0.9, 6.0], [0.0, 0.3, 36.0]]
    """
    array = np.asarray(predictions, float)
    if array.ndim != 3 or array.shape[1] < 5:
        raise DataError(f"non_max_suppression: predictions are [pictures, 4 + classes, boxes], not {list(array.shape)}")
    return [_of_picture(picture, score, iou, limit, candidates) for picture in array]


def _of_picture(picture: Array, score: float, iou: float, limit: int, candidates: int) -> Array:
    classes, boxes = np.nonzero(picture[4:] > score)
    scores = picture[4:][classes, boxes]
    order = np.argsort(-scores, kind="stable")[:candidates]
    classes, scores = classes[order], scores[order]
    middle, size = picture[:2, boxes[order]].T, picture[2:4, boxes[order]].T
    rows = np.column_stack([classes, scores, middle - size / 2, middle + size / 2])
    kept: list[int] = []
    left = np.arange(len(rows))
    while len(left) > 0 and len(kept) < limit:
        best, left = left[0], left[1:]
        kept.append(int(best))
        overlaps = box_iou(rows[best : best + 1, 2:], rows[left, 2:])[0] > iou
        left = left[~(overlaps & (rows[left, 0] == rows[best, 0]))]
    return rows[kept]


@dataclass(frozen=True)
class AveragePrecision:
    """The mean average precision as COCO defines it.

    Attributes:
        map: the mean over the IoUs 0.5, 0.55, ..., 0.95, and over the classes that are there.
        map50, map75: at an IoU of 0.5 and 0.75 alone.
        by_class: `map` of each class that is there.

    >>> precision = detection.mean_average_precision(found, there)
    >>> sorted(precision.by_class)
    [0]
    """

    map: float
    map50: float
    map75: float
    by_class: dict[int, float]


def mean_average_precision(
    found: Iterable[Any], there: Iterable[Any], *, most: int = 100
) -> AveragePrecision:
    """How well detections match what is there: COCO's mean average precision, with 101 recalls, without areas or crowds.

    Args:
        found: for each picture the detections, [n, 6]: class, score, left, top, right, bottom.
        there: for each picture the boxes, [n, 5]: class, left, top, right, bottom; such as an array [pictures, M, 5].
        most: detections of a class in a picture, those of the highest scores.

    Returns:
        The precision; all NaN where nothing is there.

    Raises:
        DataError: for arrays of other shapes, or for different numbers of pictures.

    >>> detection.mean_average_precision([np.zeros((0, 6))], there).map
    0.0
    """
    detections = [_rows("found", rows, 6) for rows in found]
    boxes = [_rows("there", rows, 5) for rows in there]
    if len(detections) != len(boxes):
        raise DataError(f"mean_average_precision: {len(detections)} pictures in found, {len(boxes)} in there")
    classes = sorted({int(label) for rows in boxes for label in rows[:, 0]})
    table = np.array([_precisions(detections, boxes, label, most) for label in classes]).reshape(-1, len(IOU_THRESHOLDS))
    if not classes:
        return AveragePrecision(np.nan, np.nan, np.nan, {})
    by_class = {label: float(row.mean()) for label, row in zip(classes, table)}
    return AveragePrecision(float(table.mean()), float(table[:, 0].mean()), float(table[:, 5].mean()), by_class)


def _rows(name: str, rows: Any, width: int) -> Array:
    array = np.asarray(rows, float)
    if array.size == 0:
        return np.zeros((0, width))
    if array.ndim != 2 or array.shape[1] != width:
        raise DataError(f"mean_average_precision: rows of {name} have {width} numbers, not the shape {list(array.shape)}")
    return array[array[:, 0] >= 0]


def _precisions(detections: Sequence[Array], boxes: Sequence[Array], label: int, most: int) -> Array:
    """The average precision of a class at each IoU."""
    scores, hits, count = [], [], 0
    for found, there in zip(detections, boxes):
        found, there = found[found[:, 0] == label], there[there[:, 0] == label]
        found = found[np.argsort(-found[:, 1], kind="stable")[:most]]
        count += len(there)
        scores.append(found[:, 1])
        hits.append(_hits(box_iou(found[:, 2:], there[:, 1:])))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hit = np.concatenate(hits, axis=1)[:, order]
    right = np.cumsum(hit, axis=1)
    recall, precision = right / count, right / np.arange(1, hit.shape[1] + 1)
    # What is reached at some recall counts for all lower ones, too.
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    precision = np.concatenate([precision, np.zeros((len(precision), 1))], axis=1)
    return np.array([np.mean(p[np.searchsorted(r, RECALLS, side="left")]) for p, r in zip(precision, recall)])


def _hits(iou: Array) -> Array:
    """Whether each detection, by falling scores, matches a box that none before it does: bool[IoUs, detections]."""
    hits = np.zeros((len(IOU_THRESHOLDS), len(iou)), bool)
    for i, threshold in enumerate(IOU_THRESHOLDS):
        free = np.ones(iou.shape[1], bool)
        for j, row in enumerate(iou):
            best = int(np.argmax(np.where(free, row, -1.0))) if free.any() else -1
            # As pycocotools compares: an IoU that is equal to the threshold matches.
            if best >= 0 and row[best] >= min(threshold, 1 - 1e-10):
                free[best] = False
                hits[i, j] = True
    return hits
