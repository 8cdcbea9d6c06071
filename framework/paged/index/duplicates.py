"""An index in which several blocks may hold one content, as vLLM's prefix cache does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framework.paged.index.base import PrefixIndex
from framework.paged.index.hashed import HashIndex
from framework.paged.pool import BlockPool
from framework.types import BlockHash


class DuplicateIndex(HashIndex):
    """A HashIndex that publishes a block beside others of the same content, instead of naming the one that has it.

    Lookups find the block published first, which also counts the children of all; when it goes, the next takes over.

    Source: vLLM 0.33.0, vllm/v1/core/block_pool.py, BlockHashToBlockMap.
    """

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self._later: dict[BlockHash, dict[int, None]] = {}  # of each content, the blocks published after the first

    def count_new(self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes) -> int:
        return len(hashes)

    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        hash_of = self._pool.block_hash
        if hash_of[block] is not None:
            return block
        above = hash_of[parent] if parent else None
        if above is not None:
            parent = self._blocks[above]
        if block_hash not in self._blocks:
            return super().insert(anchor, parent, block_hash, data, block)
        self._later.setdefault(block_hash, {})[block] = None
        self._parents[block] = above
        if self._counting:
            children = self._pool.children
            children[block] = 0
            if parent:
                children[parent] += 1
        return block

    def insert_chain(
        self, anchor: int, parent: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        return PrefixIndex.insert_chain(self, anchor, parent, hashes, data, blocks)

    def remove(self, block: int) -> None:
        block_hash = self._pool.block_hash[block]
        assert block_hash is not None, f"block {block} is not published"
        later = self._later.get(block_hash)
        if later is None:
            super().remove(block)
            return
        if self._blocks[block_hash] == block:
            self._blocks[block_hash] = heir = next(iter(later))
            if self._counting:
                children = self._pool.children
                children[heir], children[block] = children[block], 0
            block_gone = heir
        else:
            block_gone = block
        del later[block_gone]
        if not later:
            del self._later[block_hash]
        above = self._parents[block]
        if self._counting and above is not None:
            self._lost_a_child(above)

    def remove_all(self, blocks: Sequence[int]) -> None:
        PrefixIndex.remove_all(self, blocks)

    def clear(self) -> None:
        super().clear()
        self._later.clear()

    def _published(self) -> Iterable[int]:
        return [*self._blocks.values(), *(block for later in self._later.values() for block in later)]

    def _is_later(self, block: int, block_hash: BlockHash) -> bool:
        return block in self._later.get(block_hash, ())
