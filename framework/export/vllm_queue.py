"""vLLM's queue of free blocks, led by an eviction policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from framework.export.pool_facts import PoolFacts
from framework.guard.boundary import OUTSIDE

logger = logging.getLogger("vllm.framework.export")  # below vLLM's own logger, whose handlers print it


class PolicyQueue:
    """Stands for a BlockPool's `free_block_queue`: same methods, other victims.

    vLLM's own queue is kept, in vLLM's order, and stays the truth about what is free. What it would hand out without a
    hash goes as before; where it would evict, the policy names the block instead.

    NOTE. A policy that fails is given up for good: from there on vLLM's own queue decides, as if we were not here.
    The engine goes on, and one error in the log says why.

    Args:
        order: vLLM's FreeKVCacheBlockQueue.
        blocks: the pool's blocks, by id.
        hash_of: what names a content to `facts`, of a block's `block_hash`: its hash, and its group where there are
            several.
        on_declined: takes free blocks whose content the policy would not keep, to give it up.

    Attributes:
        facts: None once the policy failed.
    """

    def __init__(
        self,
        order: Any,
        blocks: Sequence[Any],
        facts: PoolFacts,
        *,
        on_declined: Callable[[list[Any]], Any],
        hash_of: Callable[[Any], bytes],
    ) -> None:
        self.order, self.blocks, self._on_declined, self.hash_of = order, blocks, on_declined, hash_of
        self.facts: PoolFacts | None = facts
        self.failure: Exception | None = None
        self._candidate = facts.candidate
        self._counted = False

    @property
    def num_free_blocks(self) -> int:
        """Blocks without references, those that eviction would free included."""
        return int(self.order.num_free_blocks)

    def popleft(self) -> Any:
        """The next block to reuse.

        Raises:
            ValueError: there is none, as vLLM's own queue does.
        """
        return self.order.popleft() if self.facts is None or not self.num_free_blocks else self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Any]:
        """The next n blocks to reuse: those without content, then the policy's victims."""
        order = self.order
        if self.facts is None or n == 0 or n > order.num_free_blocks:
            return order.popleft_n(n)  # type: ignore[no-any-return]
        self._tick(self.facts)
        taken: list[Any] = []
        while len(taken) < n:
            first = order.fake_free_list_head.next_free_block
            chosen = [first] if first.block_hash is None else self._victims(n - len(taken)) or [first]
            for block in chosen:
                order.remove(block)
            taken += chosen
        return taken

    def remove(self, block: Any) -> None:
        """A free block is used again."""
        if self._candidate[block.block_id]:
            self.attempt(lambda facts: facts.pin(block.block_id))
        self.order.remove(block)

    def append_n(self, blocks: list[Any]) -> None:
        """Blocks that nobody uses any more, deepest first; with content, as a rule."""
        self.order.append_n(blocks)
        if self.facts is not None and blocks:
            self.attempt(lambda facts: self._release(facts, blocks))

    def prepend_n(self, blocks: list[Any]) -> None:
        """Blocks without content that nobody uses any more."""
        self.order.prepend_n(blocks)

    def iter_blocks_after(self, cursor: Any) -> Iterator[Any]:
        """Free blocks in vLLM's order: a policy names one victim at a time and cannot foretell the next."""
        return self.order.iter_blocks_after(cursor)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.order, name)

    def counted(self, *, under_way: bool) -> None:
        """Whether a call of vLLM's is under way that was counted: what it takes or frees shares its access count."""
        self._counted = under_way

    def _tick(self, facts: PoolFacts) -> None:
        if not self._counted:
            facts.tick()
        self._counted = False

    def attempt(self, act: Callable[[PoolFacts], Any]) -> Any:
        """What `act` returns; None without a policy, or when it fails, which is the end of it."""
        if self.facts is None:
            return None
        try:
            return act(self.facts)
        except OUTSIDE:
            raise
        except Exception as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self.facts, self.failure = None, error
        self._candidate[:] = bytes(len(self._candidate))
        logger.error(
            "The eviction policy failed and is not asked again; blocks go in vLLM's own order from here on, as without "
            "a PolicyConnector. %s: %s",
            type(error).__name__,
            error,
            exc_info=error,
        )

    def _victims(self, most: int) -> list[Any]:
        """The policy's next victims; none where it has none to name."""
        count = min(most, self.facts.num_candidates) if self.facts is not None else 0
        named = self.attempt(lambda facts: facts.victims(count)) if count else None
        return [] if named is None else [self.blocks[block] for block in named]

    def _release(self, facts: PoolFacts, blocks: list[Any]) -> None:
        self._tick(facts)
        names = facts.names
        cached = [block for block in blocks if block.block_hash is not None]
        for block in cached:
            if names[block.block_id] is None:  # published by a way that nobody watches, such as a load by a connector
                name = self.hash_of(block.block_hash)
                depth = max(0, (block.block_hash_num_tokens or 0) // facts.tokens_of(name) - 1)
                facts.admit([block.block_id], [depth], [0], [name])
        declined = facts.release([block.block_id for block in cached])
        if declined:
            self._on_declined([self.blocks[block] for block in declined])
