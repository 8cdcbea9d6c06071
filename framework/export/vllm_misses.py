"""A cause for each prompt token that a vLLM computed: its cache manager and block pool, reported to a ledger."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from framework.errors import ConfigError
from framework.files.jsonl import dump_line, json_text
from framework.misses.ledger import Ledger
from framework.replay.misses import against_models
from framework.results.layout import REGRET, REQUESTS, RESULT

MOST_CONTENTS = 2**20


class MissWatch:
    """Wraps methods of a KVCacheManager and of its pool to follow what is published, given up and asked for.

    It only looks, whoever orders evictions. What is evicted outside an allocation was declined. What another cache salt
    or adapter would have hit is found by the names that vLLM's own hasher gives the prompt there.

    Args:
        manager: vLLM's KVCacheManager, with nothing cached yet.
        hash_of: vLLM's get_block_hash.
        policy: whose decisions evictions are.
        folder: for `requests.jsonl`, and at the end `result.json` and `regret.jsonl`, which `python -m
            framework.explain` reads; None for none.

    Raises:
        ConfigError: a folder that holds a result, or cannot be made.
    """

    def __init__(
        self,
        manager: Any,
        hash_of: Callable[[Any], bytes],
        *,
        policy: str,
        folder: Path | None = None,
        most_contents: int = MOST_CONTENTS,
    ) -> None:
        pool, size = manager.block_pool, manager.coordinator.single_type_managers[0].block_size
        self.ledger = Ledger(size, policy=policy, most_contents=most_contents)
        self.ledger.decline(True)  # but in an allocation
        self.num_blocks, self._folder, self._hash_of = pool.num_gpu_blocks - 1, folder, hash_of
        self._numbers: dict[str, tuple[int, int]] = {}  # of requests that have not ended: (number, tokens computed)
        self._running: set[str] = set()
        self._count = self._hit_tokens = self._prompt_tokens = 0
        self._rows = None
        if folder is not None:
            self._rows = _open(folder)
        self._wrap(manager, "allocate_slots", self._allocate)
        self._wrap(manager, "free", self._free)
        self._wrap(manager, "pop_blocks_for_free", self._free)
        self._wrap(pool, "cache_full_blocks", self._publish)
        self._wrap(pool, "_maybe_evict_cached_block", self._evict)
        self._wrap(pool, "reset_prefix_cache", self._reset)

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        call = getattr(owner, name, None)
        if call is not None:
            setattr(owner, name, wraps(call)(lambda *args, **kwargs: around(call, *args, **kwargs)))

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
            found = call(request, num_new_tokens, num_new_computed_tokens, *args, **kwargs)
        finally:
            ledger.decline(True)
        if found is None:
            if first:
                ledger.leave(number)
        elif first:
            tenant = request.cache_salt or (request.lora_request.lora_name if request.lora_request else "")
            ledger.admit(number, number, cached, tenant=tenant)
            self._hit_tokens += cached
            self._prompt_tokens += request.num_prompt_tokens
        elif name not in self._running:
            ledger.preempted_tokens += max(0, before - cached)
            ledger.compute(number, list(request.block_hashes), cached // ledger.block_size)
        if found is not None:
            self._running.add(name)
        return found

    def _hit_in(self, space: tuple[Any, Any], request: Any) -> int:
        """Leading tokens of the prompt that are there under another cache salt and adapter."""
        other = copy(request)
        other.block_hashes = []
        other.cache_salt, other.lora_request = space
        other.update_block_hashes()
        return self.ledger.num_leading(other.block_hashes) * self.ledger.block_size

    def _free(self, call: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        name = request.request_id
        number, _ = self._numbers.get(name, (-1, 0))
        if name in self._running:
            self._running.remove(name)
            self._numbers[name] = number, request.num_computed_tokens
            self.ledger.leave(number)
        if request.is_finished() and number >= 0:
            del self._numbers[name]
            row = {"request": number, "key": name, "prompt_tokens": request.num_prompt_tokens}
            missed = self.ledger.row(number)
            if self._rows is not None:
                cached = request.num_prompt_tokens - sum(missed.values())
                self._rows.write(dump_line({**row, "cached_tokens": cached, **missed}))
        return call(request, *args, **kwargs)

    def _publish(
        self,
        call: Any,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found = call(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
        new = blocks[num_cached_blocks:num_full_blocks]
        self.ledger.published([self._hash_of(b.block_hash) for b in new if b.block_hash is not None and not b.is_null])
        return found

    def _evict(self, call: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
        name = block.block_hash
        gone = call(block, *args, **kwargs)
        if gone and name is not None:
            self.ledger.given_up((self._hash_of(name),))
        return gone

    def _reset(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        done = call(*args, **kwargs)
        if done:
            self.ledger.reset()
        return done

    def close(self) -> None:
        """Write the result, where a folder was named. Idempotent."""
        if self._rows is None or self._folder is None:
            return
        self._rows.close()
        self._rows = None
        account = against_models(self.ledger.account(), self.ledger.paths, self.ledger.block_size, self.num_blocks)
        counts = {"hit_tokens": self._hit_tokens, "prompt_tokens": self._prompt_tokens}
        counts |= {"hit_blocks": account.totals("blocks")["hit"]}
        result = {"status": "ok", "mode": "vllm", "eviction": account.policy, **counts, **account.results()}
        (self._folder / REGRET).write_bytes(b"".join(map(dump_line, account.evictions.rows(account.policy))))
        (self._folder / RESULT).write_text(json_text(result, indent=2) + "\n")


def _open(folder: Path) -> Any:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / REQUESTS).open("xb")
    except OSError as error:
        raise ConfigError(
            f"explain={folder}: {error.strerror or error}; name a new folder, for requests.jsonl and the result"
        ) from error
