from __future__ import annotations

import pytest

from framework.errors import InvalidArgument
from framework.paged.index import BlockHasher, BlockHashes
from framework.types import Namespace
from framework_builtin.hash.sha256 import Sha256

SPACES = (Namespace(), Namespace(salt="x"))


def test_hashes_of_another_namespace_are_refused_by_value():
    hasher = BlockHasher(Sha256(), 4)
    hasher.check(BlockHashes.of(SPACES[0], [b"x"]), Namespace())
    for made_for, used_in in (SPACES, SPACES[::-1]):
        with pytest.raises(InvalidArgument, match="was used in"):
            hasher.check(BlockHashes.of(made_for, [b"x"]), used_in)
