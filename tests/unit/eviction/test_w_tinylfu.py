"""The window and the frequency sketch of W-TinyLFU."""

from __future__ import annotations

from eviction_histories import victims

from framework.types import BlockHash
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.w_tinylfu import FrequencySketch, WTinyLfu


def test_the_window_of_w_tinylfu_lets_one_hit_wonders_lose() -> None:
    text = "".join("abcd" * 6) + "".join(chr(200 + i) for i in range(40)) + "abcd"
    lost = victims(WTinyLfu(window=0.2), text, 5)
    assert not set(lost) & set("abcd"), lost
    assert set(victims(Lru(), text, 5)) & set("abcd")


def test_the_frequency_sketch_counts_and_forgets() -> None:
    sketch = FrequencySketch(64)
    keys = [BlockHash(bytes([i])) for i in range(40)]
    for i, key in enumerate(keys):
        for _ in range(i % 5):
            sketch.add(key)
    assert [sketch.estimate(key) for key in keys] == [i % 5 for i in range(40)], "no collision spoils 40 of 64 names"
    for _ in range(30):
        sketch.add(keys[0])
    assert sketch.estimate(keys[0]) == 15
    for _ in range(640):
        sketch.add(keys[1])
    assert sketch.estimate(keys[0]) == 7
