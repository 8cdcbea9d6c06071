"""S3-FIFO remembers the names that its small queue evicted."""

from __future__ import annotations

from eviction_histories import victims

from framework_builtin.eviction.s3fifo import S3Fifo


def test_a_name_remembered_by_s3fifo_skips_the_small_queue() -> None:
    history = "abcdefghijk" + "a" + "lmnopqrst"
    assert "a" in victims(S3Fifo(), history, 10)
    assert victims(S3Fifo(), history, 10).count("a") == 1, "the second time it entered the main queue"
    assert victims(S3Fifo(ghosts=0), history + "uvw", 10).count("a") >= 1
