"""Least-squares fits of link models."""

from __future__ import annotations

import random

import pytest

from framework.kernel.link_fit import Point, fit


def points(operation_s: float, byte_s: float, noise: float = 0.0) -> list[Point]:
    draw = random.Random(1)
    cells = [(count, count * size) for count in (1, 2, 8, 32) for size in (1 << 18, 1 << 20, 1 << 22)]
    return [Point(n, size, (n * operation_s + size * byte_s) * (1 + draw.uniform(-noise, noise))) for n, size in cells]


@pytest.mark.parametrize(("operation_s", "bytes_per_s"), [(1e-4, 25e9), (1e-5, 1e9), (3e-3, 50e9)])
def test_a_link_is_found_again_from_its_own_times(operation_s: float, bytes_per_s: float) -> None:
    found = fit(points(operation_s, 1 / bytes_per_s))
    assert (found.operation_s, found.bytes_per_s) == pytest.approx((operation_s, bytes_per_s))
    assert abs(found.worst) < 1e-9
    assert found.seconds(3, 10**9) == pytest.approx(3 * operation_s + 1e9 / bytes_per_s)


def test_noise_of_five_percent_is_the_residual_and_moves_the_link_little() -> None:
    found = fit(points(1e-4, 1 / 25e9, noise=0.05))
    assert (found.operation_s, found.bytes_per_s) == pytest.approx((1e-4, 25e9), rel=0.05)
    assert 0.01 < found.rms < 0.06
    assert found.rms < abs(found.worst) < 0.12


def test_relative_errors_count_so_that_small_copies_are_not_drowned_by_large_ones() -> None:
    skewed = [*points(1e-4, 1 / 25e9), Point(1, 1 << 34, 1.1 * (1e-4 + (1 << 34) / 25e9))]
    small = min(skewed, key=lambda point: point.num_bytes)
    assert fit(skewed).seconds(1, small.num_bytes) == pytest.approx(small.seconds, rel=0.02)


def test_neither_term_is_negative() -> None:
    superlinear = [Point(1, n << 20, 1e-4 * n**1.5) for n in (1, 2, 4, 8)]
    found = fit(superlinear)
    assert found.operation_s == 0.0
    assert found.bytes_per_s is not None
    assert abs(found.worst) > 0.15
    falling = [Point(1, n << 20, 1e-3 / n) for n in (1, 2, 4, 8)]
    assert fit(falling).bytes_per_s is None, "more bytes took no longer"


def test_one_size_alone_counts_as_bandwidth() -> None:
    found = fit([Point(n, n << 20, n * 1e-4) for n in (1, 2, 4)])
    assert found.operation_s == 0.0
    assert found.bytes_per_s == pytest.approx((1 << 20) / 1e-4)
