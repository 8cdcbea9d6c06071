"""Choice of the index for a pool."""

from __future__ import annotations

from framework.errors import InvalidArgument
from framework.interfaces.hash import HashScheme
from framework.paged.index.base import PrefixIndex
from framework.paged.index.duplicates import DuplicateIndex
from framework.paged.index.runs import RunIndex
from framework.paged.index.token_runs import TokenRunIndex
from framework.paged.pool import BlockPool


def index_of(pool: BlockPool, hash: HashScheme, duplicates: str, *, leaf_only: bool) -> PrefixIndex:
    """The index for names of this scheme, and for contents that several blocks may hold ("keep") or not ("merge").

    Raises:
        InvalidArgument: duplicates that are neither, or kept with `leaf_only` or with names that may collide.
    """
    if duplicates not in ("merge", "keep"):
        raise InvalidArgument(f"duplicates is merge or keep, found {duplicates!r}")
    if duplicates == "merge":
        return RunIndex(pool) if hash.collision_resistant else TokenRunIndex(pool)
    if not hash.collision_resistant:
        raise InvalidArgument(
            f"duplicates=keep finds equal contents by hash, and those of {type(hash).__name__} may collide; take a "
            "collision-resistant scheme such as sha256, or duplicates=merge"
        )
    if leaf_only:
        raise InvalidArgument("duplicates=keep lets a block be in use below one that is not; set leaf_only=false")
    return DuplicateIndex(pool)
