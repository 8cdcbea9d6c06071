"""Priorities order evictions, and lapse."""

from __future__ import annotations

from eviction_histories import Pool

from framework_builtin.eviction.priority import Priority


def test_priorities_go_first_and_lapse() -> None:
    for now, expected in ((10, [2, 1, 4, 3]), (13, [1, 2, 4, 3]), (20, [1, 2, 3, 4])):
        pool = Pool(Priority(retention=12))
        for time, (block, priority) in enumerate([(1, 3), (2, 0), (3, 9), (4, 5)]):
            pool.offer(block, float(time), priority)
        assert pool.drain(float(now)) == expected, now
    forever = Pool(Priority())
    for time, (block, priority) in enumerate([(1, 3), (2, 0), (3, 9)]):
        forever.offer(block, float(time), priority)
    assert forever.drain(1e9) == [2, 1, 3]
