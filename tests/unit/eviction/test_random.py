"""Random evicts uniformly, and the same in every process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from eviction_histories import Pool

from framework_builtin.eviction.random import Random


def draws(seed: int) -> list[int]:
    pool = Pool(Random(seed), 39)
    pool.policy.release(list(range(1, 40)), 0.0)
    pool.policy.pin([3, 7], 0.0)
    return pool.drain(0.0)


def test_random_is_seeded_in_every_process() -> None:
    assert draws(1) == draws(1) != draws(2)
    assert sorted(draws(1)) == [b for b in range(1, 40) if b not in (3, 7)]
    code = (
        "from framework_builtin.eviction.random import Random\n"
        "from types import SimpleNamespace\n"
        "p = Random(1); p.attach(SimpleNamespace(depth=[0] * 40)); p.release(range(1, 40), 0); p.pin([3, 7], 0)\n"
        "out = []\n"
        "for _ in range(37): out.append(p.victim(0)); p.evicted(out[-1], 0)\n"
        "print(out)"
    )
    for hash_seed in ("0", "77"):
        env = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        assert done.stdout.strip() == str(draws(1))


def test_random_is_uniform() -> None:
    counts: Counter[int] = Counter()
    policy = Pool(Random(5)).policy
    policy.release([1, 2, 3, 4], 0.0)
    for _ in range(4000):
        block = policy.victim(0.0)
        counts[block] += 1
        policy.evicted(block, 0.0)
        policy.release([block], 0.0)
    assert all(850 < counts[block] < 1150 for block in (1, 2, 3, 4)), counts
