"""Least-squares fits of link models to measured copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TOLERANCE = 0.15
"""A point whose measured time differs from the model's by more than this share is reported."""


@dataclass(frozen=True, slots=True)
class Point:
    """Measured seconds of `operations` operations, one after another, of `num_bytes` in all."""

    operations: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """operations * operation_s + num_bytes / bytes_per_s, as near to the points as it gets.

    Attributes:
        bytes_per_s: None where bytes make no difference.
        rms, worst: of model / measured - 1 over the points: root mean square, and the largest by size, signed.
    """

    operation_s: float
    bytes_per_s: float | None
    num_points: int
    rms: float
    worst: float

    def seconds(self, operations: int, num_bytes: int) -> float:
        """What the model says of so many operations and bytes."""
        of_bytes = 0.0 if self.bytes_per_s is None else num_bytes / self.bytes_per_s
        return operations * self.operation_s + of_bytes


def fit(points: Sequence[Point]) -> Fit:
    """The best fit of relative errors, by numpy's `lstsq`; neither term is negative.

    Args:
        points: at least one, all with seconds above 0. Where all have one ratio of bytes to operations, the two terms
            cannot be separated, and all time counts as that of bytes.
    """
    table = np.array([[point.operations, point.num_bytes] for point in points], dtype=np.float64)
    seconds = np.array([point.seconds for point in points])
    scale = np.maximum(table.max(axis=0), 1.0)  # counts and bytes differ by many powers of ten
    design = table / scale / seconds[:, None]
    both = np.linalg.matrix_rank(design) == 2
    terms = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)[0] if both else np.array([-1.0, 1.0])
    if terms.min() < 0:
        kept = int(np.argmax(terms))
        terms = np.zeros(2)
        terms[kept] = np.linalg.lstsq(design[:, kept : kept + 1], np.ones(len(points)), rcond=None)[0][0]
    off = design @ terms - 1
    operation_s, byte_s = (terms / scale).tolist()
    return Fit(
        operation_s=operation_s,
        bytes_per_s=1 / byte_s if byte_s > 0 else None,
        num_points=len(points),
        rms=float(np.sqrt(np.mean(off**2))),
        worst=float(off[np.argmax(np.abs(off))]),
    )
