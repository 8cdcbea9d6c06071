"""vLLM's cache manager and block pool, reported to a policy that leads its free blocks, and to a ledger of misses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial, wraps
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from framework.errors import ConfigError, plugin_note
from framework.files.jsonl import dump_line, json_text
from framework.guard.boundary import OUTSIDE
from framework.registry.culprit import named
from framework.results.layout import REQUESTS, RESULT
from framework.types import RequestFacts, RequestId, RequestInfo
from framework_engines.pool_facts import PoolFacts
from framework_explain.account import REGRET, Account
from framework_explain.ledger import Ledger
from framework_explain.replayed_misses import against_models

logger = logging.getLogger("vllm.framework.export")  # below vLLM's own logger, whose handlers print it


class PolicyQueue:
    """Stands for a BlockPool's `free_block_queue`: same methods, other victims.

    vLLM's own queue is kept, in vLLM's order, and stays the truth about what is free. What it would hand out without a
    hash goes as before; where it would evict, the policy names the block instead. All else that is asked goes to it:
    `iter_blocks_after` in vLLM's order, since a policy names one victim at a time and cannot foretell the next.

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
        counted: a call of vLLM's is under way that was counted: what it takes or frees shares its access count.
        seconds, num_victims: that the policy and its facts took, and the blocks that it gave up.
    """

    def __init__(
        self, order: Any, blocks: Sequence[Any], facts: PoolFacts, *, on_declined: Callable[[list[Any]], Any],
        hash_of: Callable[[Any], bytes],
    ) -> None:  # fmt: skip
        self.order, self.blocks, self._on_declined, self.hash_of = order, blocks, on_declined, hash_of
        self.facts: PoolFacts | None = facts
        self.failure: BaseException | None = None
        self._candidate = facts.candidate
        self.counted = False
        self.seconds, self.num_victims = 0.0, 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks without references, those that eviction would free included."""
        return self.order.num_free_blocks  # type: ignore[no-any-return]

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self.order, name)

    def _tick(self, facts: PoolFacts) -> None:
        if not self.counted:
            facts.tick()
        self.counted = False

    def attempt(self, act: Callable[[PoolFacts], Any]) -> Any:
        """What `act` returns; None without a policy, or when it fails, which is the end of it."""
        if self.facts is None:
            return None
        begun = perf_counter()
        try:
            return act(self.facts)
        except OUTSIDE:
            raise
        except BaseException as raised:  # SystemExit too: the requests are somebody's
            error = named(raised)
            self.facts, self.failure = None, error
            self._candidate[:] = bytes(len(self._candidate))
            logger.error(
                "The eviction policy failed and is not asked again; blocks go in vLLM's own order from here on, as "
                f"without a PolicyConnector. {plugin_note(error) or error}", exc_info=error,
            )  # fmt: skip
            return None
        finally:
            self.seconds += perf_counter() - begun

    def _victims(self, most: int) -> list[Any]:
        """The policy's next victims; none where it has none to name."""
        count = min(most, self.facts.num_candidates) if self.facts is not None else 0
        named = self.attempt(lambda facts: facts.victims(count)) if count else None
        if named is None:
            return []
        self.num_victims += count
        return [self.blocks[block] for block in named]

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


_Known = tuple[int, int, RequestFacts | None]
"""Priority, tenant and facts of a request that vLLM runs, as far as a policy may know it."""


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """From here on `around(method, *args)` is called for the method of that name, where there is one."""
    call = getattr(owner, name, None)
    if call is not None:
        setattr(owner, name, wraps(call)(partial(around, call)))


def follow(
    pool: Any, published: Callable[[Any, Any, int, int], Any], evicted: Callable[[Any], Any], reset: Callable[[], Any]
) -> None:
    """From here on these hear what vLLM's pool did: blocks [first, end) of a request's that it published, the name of a
    content that it evicted, and that it forgot all."""

    def publish(
        call: Any, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *args: Any, **kwargs: Any
    ) -> Any:
        result = call(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
        published(request, blocks, num_cached_blocks, num_full_blocks)
        return result

    def evict(call: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
        name = block.block_hash
        gone = call(block, *args, **kwargs)
        if gone and name is not None:
            evicted(name)
        return gone

    def forget(call: Any, *args: Any, **kwargs: Any) -> Any:
        done = call(*args, **kwargs)
        if done:
            reset()
        return done

    wrap(pool, "cache_full_blocks", publish)
    wrap(pool, "_maybe_evict_cached_block", evict)
    wrap(pool, "reset_prefix_cache", forget)


class PoolWatch:
    """Replaces the queue of a manager's pool, and wraps methods of both to follow what the queue does not show.

    The wrapped methods do what they did; a policy that fails is left out from there on.

    Args:
        manager: vLLM's KVCacheManager, with nothing cached yet.
        facts: for the pool's blocks.
        hash_of: as `PolicyQueue` takes it.

    Attributes:
        num_steps: the number, from 1, of the step that the scheduler began last; one without tokens has none.
        arrivals: of unfinished requests, on the clock of `facts`; kept only for a policy that reads them.
    """

    def __init__(self, manager: Any, facts: PoolFacts, hash_of: Callable[[Any], bytes]) -> None:
        self.pool = manager.block_pool
        self.queue = PolicyQueue(
            self.pool.free_block_queue, self.pool.blocks, facts, on_declined=self._decline, hash_of=hash_of
        )
        self.pool.free_block_queue = self.queue
        self.num_steps = self._computed = 0
        self.arrivals: dict[str, float] = {}
        self._known: dict[str, _Known] = {}
        self._request: Any = None
        self._hit_blocks = 0
        wrap(manager, "new_step_starts", self._begin_step)
        wrap(manager, "allocate_slots", self._allocate)
        self._watch(self.pool, "touch", self._touching)
        self._watch(self.pool, "cache_full_blocks", None, self._cached)
        self._watch(self.pool, "evict_blocks", None, self._unhashed)
        self._watch(self.pool, "reset_prefix_cache", None, self._reset)
        self._watch(manager, "free", lambda request: self._freeing(manager, request, at_once=True), self._freed)
        self._watch(manager, "pop_blocks_for_free", lambda request: self._freeing(manager, request, at_once=False))

    def scheduled(self, output: Any) -> None:
        """A step was scheduled, as vLLM's SchedulerOutput says; one without a token is none."""
        self._computed += output.total_num_scheduled_tokens > 0
        self.num_steps = self._computed

    def arrived(self, request: Any) -> None:
        """A request entered the engine."""
        if self.queue.facts is not None and self.queue.facts.requests is not None:
            self.arrivals[request.request_id] = self.queue.facts.clock()

    def _watch(
        self, owner: Any, name: str, before: Callable[..., Any] | None, after: Callable[..., Any] | None = None
    ) -> None:
        queue = self.queue

        def watched(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if queue.facts is None:
                return call(*args, **kwargs)
            if before is not None:
                queue.attempt(lambda facts: before(*args, **kwargs))
            result = call(*args, **kwargs)
            if after is not None:
                queue.attempt(lambda facts: after(facts, result, *args, **kwargs))
            return result

        wrap(owner, name, watched)

    def _begin_step(self, call: Any) -> Any:
        self.num_steps = self._computed + 1
        return call()

    def _allocate(self, call: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Called for each running request in each step: whatever can be left out is."""
        self._request, self._hit_blocks = request, 0
        result = call(request, *args, **kwargs)
        facts = self.queue.facts
        if result is None or facts is None or facts.requests is None or request.request_id in self._known:
            return result
        self.queue.attempt(lambda facts: self._known_of(facts, request))  # from here on it counts for later prompts
        return result

    def _touching(self, blocks: Sequence[Any]) -> None:
        facts, request = self.queue.facts, self._request
        names = facts.names if facts is not None else []
        named = [block.block_id for block in blocks if not block.is_null and names[block.block_id] is not None]
        if facts is None or not named:
            return
        facts.tick()
        self.queue.counted = True
        self._hit_blocks = max(self._hit_blocks, facts.hit(named, 0 if request is None else -request.priority))

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
        priority, tenant, described = self._known_of(facts, request)
        facts.tick()
        facts.admit(
            [block.block_id for _, block in new],
            [place for place, _ in new],
            [blocks[place - 1].block_id if place else 0 for place, _ in new],
            [self.queue.hash_of(block.block_hash) for _, block in new],
            priority=priority,
            tenant=tenant,
            request=described,
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
            self.queue.counted = True
        if facts is not None and facts.requests is not None:
            blocks = [block.block_id for group in manager.get_blocks(request.request_id).blocks for block in group]
            facts.ended(blocks, self._known_of(facts, request)[2], request.num_tokens)
        self._known.pop(request.request_id, None)
        if request.is_finished():
            self.arrivals.pop(request.request_id, None)

    def _freed(self, facts: PoolFacts, result: Any, request: Any) -> None:
        self.queue.counted = False

    def _known_of(self, facts: PoolFacts, request: Any) -> _Known:
        known = self._known.get(request.request_id)
        if known is None:
            tenant = tenant_of(request)
            described = None if facts.requests is None else self._describe(facts, request)
            known = self._known[request.request_id] = -request.priority, facts.tenant(tenant), described
        return known

    def _describe(self, facts: PoolFacts, request: Any) -> RequestFacts:
        info = info_of(request, self.arrivals.get(request.request_id))
        hit_blocks = self._hit_blocks if request is self._request else 0
        return facts.request_of(info, request.num_tokens, request.block_hashes, hit_blocks)


_MOST_CONTENTS = 2**20
_NEVER_RAN = -1, -1


class MissWatch:
    """Wraps methods of a KVCacheManager and of its pool to follow what is published, given up and asked for.

    It only looks, whoever orders evictions. What is evicted outside an allocation was declined. What another cache salt
    or adapter would have hit is found by the names that vLLM's own hasher gives the prompt there.

    Args:
        manager: vLLM's KVCacheManager, with nothing cached yet.
        hash_of: vLLM's get_block_hash.
        policy: whose decisions evictions are.
        folder: for `requests.jsonl`, `regret.jsonl` and `result.json`, which `python -m framework explain` reads. They
            are whole after each request, since vLLM may kill its engine without a word; the comparison with LRU and the
            optimum comes at the end.

    Raises:
        ConfigError: a folder that holds a result, or cannot be made.
    """

    def __init__(self, manager: Any, hash_of: Callable[[Any], bytes], *, policy: str, folder: Path) -> None:
        pool, size = manager.block_pool, manager.coordinator.single_type_managers[0].block_size
        self.ledger = Ledger(size, policy=policy, most_contents=_MOST_CONTENTS)
        self.ledger.decline(True)  # but in an allocation
        self.num_blocks, self._folder, self._hash_of = pool.num_gpu_blocks - 1, folder, hash_of
        self._numbers: dict[
            str, tuple[int, int]
        ] = {}  # of unfinished requests: (number, tokens computed; -1: never ran)
        self._running: set[str] = set()
        self._count = self._hit_tokens = self._prompt_tokens = 0
        self._rows, self._regret, self._num_written = _open(folder / REQUESTS), _open(folder / REGRET), 0
        wrap(manager, "allocate_slots", self._allocate)
        wrap(manager, "free", self._free)
        wrap(manager, "pop_blocks_for_free", self._free)
        follow(pool, self._published, lambda name: self.ledger.given_up((hash_of(name),)), self.ledger.reset)

    def _allocate(
        self, call: Any, request: Any, num_new_tokens: int, num_new_computed_tokens: int = 0, *args: Any, **kwargs: Any
    ) -> Any:
        ledger, name = self.ledger, request.request_id
        number, before = self._numbers.setdefault(name, (self._count, -1))
        self._count += number == self._count
        cached = num_new_computed_tokens + kwargs.get("num_external_computed_tokens", 0)
        first = before < 0 and name not in self._running
        if first:
            names = list(request.block_hashes)
            space = request.cache_salt, request.lora_request
            start = np.array(request.prompt_token_ids or (), dtype=np.int32)
            others = ledger.others(start, space) if len(start) >= ledger.block_size else ()

            def elsewhere() -> int:
                return max((self._hit_in(other, request) for other in others), default=0)

            ledger.ask(number, number, names, request.num_prompt_tokens, num_new_computed_tokens, elsewhere)
        ledger.serve(number)
        ledger.decline(False)
        try:
            blocks = call(request, num_new_tokens, num_new_computed_tokens, *args, **kwargs)
        finally:
            ledger.decline(True)
        if blocks is None:
            if first:
                ledger.leave(number)
        elif first:
            ledger.admit(number, number, cached, tenant=tenant_of(request))
            self._hit_tokens += cached
            self._prompt_tokens += request.num_prompt_tokens
        elif name not in self._running:
            ledger.preempted_tokens += max(0, before - cached)
            ledger.compute(number, list(request.block_hashes), cached // ledger.block_size)
        if blocks is not None:
            self._running.add(name)
        return blocks

    def _hit_in(self, space: tuple[Any, Any], request: Any) -> int:
        """Leading tokens of the prompt that are there under another cache salt and adapter."""
        other = copy(request)
        other.block_hashes = []
        other.cache_salt, other.lora_request = space
        other.update_block_hashes()
        return self.ledger.num_leading(other.block_hashes) * self.ledger.block_size

    def _free(self, call: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        name = request.request_id
        number, _ = self._numbers.get(name, _NEVER_RAN)
        if name in self._running:
            self._running.remove(name)
            self._numbers[name] = number, request.num_computed_tokens
            self.ledger.leave(number)
        if request.is_finished() and self._numbers.pop(name, _NEVER_RAN)[1] >= 0:
            row = {"request": number, "key": name, "prompt_tokens": request.num_prompt_tokens}
            missed = self.ledger.row(number)
            cached = request.num_prompt_tokens - sum(missed.values())
            if not self._rows.closed:
                self._write({**row, "cached_tokens": cached, **missed})
        return call(request, *args, **kwargs)

    def _published(self, request: Any, blocks: Any, first: int, end: int) -> None:
        new = [block for block in blocks[first:end] if block.block_hash is not None and not block.is_null]
        self.ledger.published([self._hash_of(block.block_hash) for block in new])

    def _write(self, row: dict[str, Any]) -> None:
        """A request's row, what was lost since the last, and the result so far."""
        account = self.ledger.account(since=self._num_written)
        self._num_written += len(account.evictions)
        try:
            self._rows.write(dump_line(row))
            self._regret.write(_lines_of(account))
            self._write_result(account, "interrupted")
        except OSError as error:
            self._rows.close()
            self._regret.close()
            logger.error("%s cannot be written (%s): the explanation ends here, vLLM goes on", self._folder, error)

    def _write_result(self, account: Account, status: str) -> None:
        counts = {"hit_tokens": self._hit_tokens, "prompt_tokens": self._prompt_tokens}
        counts |= {"hit_blocks": account.totals("blocks")["hit"]}
        result = {"status": status, "mode": "vllm", "eviction": account.policy, **counts, **account.results()}
        _replace(self._folder / RESULT, (json_text(result, indent=2) + "\n").encode())

    def close(self) -> None:
        """Write the result of all, compared with LRU and the optimum. Idempotent."""
        if self._rows.closed:
            return
        self._rows.close()
        self._regret.close()
        account = against_models(self.ledger.account(), self.ledger.paths, self.ledger.block_size, self.num_blocks)
        _replace(self._folder / REGRET, _lines_of(account))
        self._write_result(account, "ok")


def _lines_of(account: Account) -> bytes:
    return b"".join(map(dump_line, account.evictions.rows(account.policy)))


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all; without waiting for the disk, in the scheduler's thread."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def tenant_of(request: Any) -> str:
    """Whose blocks no other request may find: vLLM's cache salt, or else the adapter."""
    return request.cache_salt or (request.lora_request.lora_name if request.lora_request else "")


def contents_of(request: Any) -> list[tuple[int, int, str]]:
    """What is not text in the prompt, as vLLM's block hashes know it: where each of its inputs stands, and its name."""
    places = ((one.mm_position, one.identifier) for one in getattr(request, "mm_features", None) or ())
    return [(place.offset, place.offset + place.length, str(name)) for place, name in places if place.length]


def info_of(request: Any, arrival: float | None) -> RequestInfo:
    """What a plugin may know of vLLM's request, which arrived then on the clock that plugins see."""
    return RequestInfo(
        id=RequestId(0),
        max_total_tokens=request.num_prompt_tokens + request.max_tokens,
        priority=-request.priority,
        tenant=tenant_of(request),
        session=request.session_id,
        arrival=arrival,
        prompt_tokens=request.num_prompt_tokens,
    )


def _open(path: Path) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb", buffering=0)
    except OSError as error:
        raise ConfigError(
            f"explain={path.parent}: {error.strerror or error}; name a new folder, for requests.jsonl and the result"
        ) from error
