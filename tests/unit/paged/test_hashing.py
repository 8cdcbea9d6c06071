from __future__ import annotations

from random import Random

import numpy as np
import pytest

from framework.errors import InvalidArgument
from framework.paged.hashing import BlockHasher, BlockHashes, HashedPrefixes
from framework.types import Namespace
from framework_builtin.hash.constant import Constant
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh3_128 import Xxh3_128

SPACES = (Namespace(), Namespace(salt="x"))


class Counting(Sha256):
    """SHA-256 that counts the blocks it hashes."""

    count = 0

    def blocks(self, parent, tokens, block_size):
        self.count += len(tokens) // block_size
        return super().blocks(parent, tokens, block_size)


def branching(seed: int, size: int) -> list[np.ndarray]:
    """Prompts that part from each other anywhere, at block boundaries and within blocks."""
    draw = Random(seed)
    stems = [[draw.randrange(5) for _ in range(6 * size)] for _ in range(3)]
    return [
        np.array(
            draw.choice(stems)[: draw.randrange(6 * size)] + [draw.randrange(5) for _ in range(3 * size)], np.int32
        )
        for _ in range(80)
    ]


@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.parametrize("scheme", [Sha256, Xxh3_128, Constant])
def test_remembered_hashes_are_those_of_the_scheme(scheme, size):
    hasher, draw = BlockHasher(scheme(), size), Random(size)
    for prompt in branching(size, size):
        for space in SPACES:
            anchor, hashes = hasher.of(prompt, space, None)
            assert list(hashes) == scheme().blocks(scheme().root(space, size), prompt, size), prompt
            hasher.note_hit(anchor, hashes, draw.randrange(len(hashes) + 1))


def test_a_prefix_that_was_hit_is_not_hashed_again():
    scheme = Counting()
    hasher, prompt = BlockHasher(scheme, 4), np.arange(40, dtype=np.int32)
    anchor, hashes = hasher.of(prompt, SPACES[0], None)
    assert scheme.count == 10
    hasher.of(prompt, SPACES[0], None)
    assert scheme.count == 20, "nothing of it was hit yet"
    hasher.note_hit(anchor, hashes, 7)
    hasher.of(prompt, SPACES[0], None)
    assert scheme.count == 23
    hasher.of(np.concatenate([prompt[:18], prompt]), SPACES[0], None)
    assert scheme.count == 23 + 14 - 4, "it parts in the fifth block"
    hasher.of(prompt, SPACES[1], None)
    assert scheme.count == 33 + 10, "another namespace"


def test_remembered_prefixes_are_bounded_in_bytes():
    prefixes, hashes = HashedPrefixes(block_size=4, room=1600), [b"x"] * 50
    for first in range(300):
        tokens = np.full(200, first % 60, np.int32)
        tokens[4 * (first // 60 + 1) :] += 1  # five branches of one first block
        prefixes.keep(-1, tokens.tobytes(), hashes)
        held = [run for runs in prefixes._runs.values() for run in runs]
        assert sum(len(data) for data, _ in held) == prefixes._held <= 1600, first
        assert all(len(data) == 16 * len(known) for data, known in held)
    assert max(len(runs) for runs in prefixes._runs.values()) <= 4
    assert len(prefixes.find(-1, np.full(200, 59, np.int32).tobytes())) > 0


def test_hashes_of_another_namespace_are_refused_by_value():
    hasher = BlockHasher(Sha256(), 4)
    for known in (False, True):
        if known:
            hasher.root(SPACES[0])
            hasher.root(SPACES[1])
        hasher.check(BlockHashes.of(SPACES[0], [b"x"]), Namespace())
        for made_for, used_in in (SPACES, SPACES[::-1]):
            with pytest.raises(InvalidArgument, match="was used in"):
                hasher.check(BlockHashes.of(made_for, [b"x"]), used_in)
