"""What happens in vLLM's cache manager and block pool, reported to an eviction policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from framework.export.pool_facts import PoolFacts
from framework.export.vllm_queue import PolicyQueue
from framework.types import RequestFacts, RequestId, RequestInfo


@dataclass(slots=True)
class _Known:
    """A request that vLLM runs, as far as a policy may know it."""

    priority: int
    tenant: int
    facts: RequestFacts | None


class PoolWatch:
    """Replaces the queue of a manager's pool, and wraps methods of both to follow what the queue does not show.

    The wrapped methods do what they did; a policy that fails is left out from there on.

    Args:
        manager: vLLM's KVCacheManager, with nothing cached yet.
        facts: for the pool's blocks.
        hash_of: as `PolicyQueue` takes it.

    Attributes:
        num_steps: that the scheduler has begun.
        arrivals: of unfinished requests, on the clock of `facts`; kept only for a policy that reads them.
    """

    def __init__(self, manager: Any, facts: PoolFacts, hash_of: Callable[[Any], bytes]) -> None:
        self.pool = manager.block_pool
        self.queue = PolicyQueue(
            self.pool.free_block_queue, self.pool.blocks, facts, on_declined=self._decline, hash_of=hash_of
        )
        self.pool.free_block_queue = self.queue
        self.num_steps = 0
        self.arrivals: dict[str, float] = {}
        self._known: dict[str, _Known] = {}
        self._request: Any = None
        self._hit_blocks = 0
        self._watch(manager, "new_step_starts", self._begin_step)
        self._watch(manager, "allocate_slots", self._allocating, self._allocated)
        self._watch(self.pool, "touch", self._touching)
        self._watch(self.pool, "cache_full_blocks", None, self._cached)
        self._watch(self.pool, "evict_blocks", None, self._unhashed)
        self._watch(self.pool, "reset_prefix_cache", None, self._reset)
        self._watch(manager, "free", lambda request: self._freeing(manager, request, at_once=True), self._freed)
        self._watch(manager, "pop_blocks_for_free", lambda request: self._freeing(manager, request, at_once=False))

    def arrived(self, request: Any) -> None:
        """A request entered the engine."""
        if self.queue.facts is not None and self.queue.facts.requests is not None:
            self.arrivals[request.request_id] = self.queue.facts.clock()

    def _watch(
        self, owner: Any, name: str, before: Callable[..., Any] | None, after: Callable[..., Any] | None = None
    ) -> None:
        call, queue = getattr(owner, name), self.queue

        @wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if queue.facts is None:
                return call(*args, **kwargs)
            if before is not None:
                queue.attempt(lambda facts: before(*args, **kwargs))
            result = call(*args, **kwargs)
            if after is not None:
                queue.attempt(lambda facts: after(facts, result, *args, **kwargs))
            return result

        setattr(owner, name, watched)

    def _begin_step(self) -> None:
        self.num_steps += 1

    def _allocating(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self._request, self._hit_blocks = request, 0

    def _allocated(self, facts: PoolFacts, result: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        if result is not None and facts.requests is not None:
            self._known_of(facts, request)  # a prompt counts for later ones from its admission on

    def _touching(self, blocks: Sequence[Any]) -> None:
        facts, request = self.queue.facts, self._request
        names = facts.names if facts is not None else []
        found = [block.block_id for block in blocks if not block.is_null and names[block.block_id] is not None]
        if facts is None or not found:
            return
        facts.tick()
        self.queue.counted(under_way=True)
        self._hit_blocks = max(self._hit_blocks, facts.hit(found, 0 if request is None else -request.priority))

    def _cached(
        self, facts: PoolFacts, result: None, request: Any, blocks: Sequence[Any], num_cached_blocks: int,
        num_full_blocks: int, *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        new = [
            (place, block)
            for place, block in enumerate(blocks[num_cached_blocks:num_full_blocks], num_cached_blocks)
            if block.block_hash is not None and not block.is_null
        ]
        if not new:
            return
        known = self._known_of(facts, request)
        facts.tick()
        facts.admit(
            [block.block_id for _, block in new],
            [place for place, _ in new],
            [blocks[place - 1].block_id if place else 0 for place, _ in new],
            [self.queue.hash_of(block.block_hash) for _, block in new],
            priority=known.priority,
            tenant=known.tenant,
            request=known.facts,
            chain=request.block_hashes,
        )

    def _unhashed(self, facts: PoolFacts, result: None, block_ids: set[int]) -> None:
        gone = [self.pool.blocks[block] for block in sorted(block_ids) if facts.names[block] is not None]
        gone = [block for block in gone if block.block_hash is None]
        for block in gone:
            facts.drop(block.block_id)
        self._reuse_first([block for block in gone if block.ref_cnt == 0])

    def _reset(self, facts: PoolFacts, done: bool) -> None:
        if done:
            facts.drop_all()

    def _decline(self, blocks: list[Any]) -> None:
        for block in blocks:
            self.pool._maybe_evict_cached_block(block)
        self._reuse_first(blocks)

    def _reuse_first(self, blocks: list[Any]) -> None:
        for block in blocks:
            self.queue.order.remove(block)
        self.queue.order.prepend_n(blocks)

    def _freeing(self, manager: Any, request: Any, *, at_once: bool) -> None:
        facts = self.queue.facts
        if facts is not None and at_once:
            facts.tick()
            self.queue.counted(under_way=True)
        if facts is not None and facts.requests is not None:
            blocks = [block.block_id for group in manager.get_blocks(request.request_id).blocks for block in group]
            facts.ended(blocks, self._known_of(facts, request).facts, request.num_tokens)
        self._known.pop(request.request_id, None)
        if request.is_finished():
            self.arrivals.pop(request.request_id, None)

    def _freed(self, facts: PoolFacts, result: Any, request: Any) -> None:
        self.queue.counted(under_way=False)

    def _known_of(self, facts: PoolFacts, request: Any) -> _Known:
        known = self._known.get(request.request_id)
        if known is None:
            tenant = request.cache_salt or (request.lora_request.lora_name if request.lora_request else "")
            known = _Known(-request.priority, facts.tenant(tenant), None)
            if facts.requests is not None:
                known.facts = self._describe(facts, request, tenant)
            self._known[request.request_id] = known
        return known

    def _describe(self, facts: PoolFacts, request: Any, tenant: str) -> RequestFacts:
        info = RequestInfo(
            id=RequestId(0),
            max_total_tokens=request.num_prompt_tokens + request.max_tokens,
            priority=-request.priority,
            tenant=tenant,
            session=request.session_id,
            arrival=self.arrivals.get(request.request_id),
            prompt_tokens=request.num_prompt_tokens,
        )
        hit_blocks = self._hit_blocks if request is self._request else 0
        return facts.request_of(info, request.num_tokens, request.block_hashes, hit_blocks)
