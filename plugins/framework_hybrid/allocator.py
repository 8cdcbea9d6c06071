"""What a replay over groups through the engine counts beside a served one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from framework.groups.allocator import GroupedAllocator, Running
from framework.groups.checkpoints import CheckpointRule
from framework.groups.memory import Memory
from framework.interfaces.allocator import Hit
from framework.interfaces.groups import GroupHit
from framework.types import BlockHash, RequestId, RequestInfo, TokenArray
from framework_hybrid.replay import GroupCounts, resident_bytes, stranded_bytes
from framework_hybrid.rules import GuardedRule

_MOST_SAMPLES = 32


class CountedGroups(GroupedAllocator):
    """The allocator that serves, counted as the replay without an engine counts.

    It remembers all contents and requests of the trace.
    """

    def __init__(self, memory: Memory, rule: CheckpointRule, *given: Any, **options: Any) -> None:
        super().__init__(memory, GuardedRule(rule), *given, **options)
        self._seen: set[BlockHash] = set()
        self._admitted: dict[RequestId, tuple[int, GroupHit]] = {}
        self._samples: list[tuple[list[int], list[int]]] = []
        self._every, self._ended = 1, 0

    def _find(self, names: Sequence[BlockHash], limit: int) -> GroupHit:
        known = next((number for number, name in enumerate(names) if name not in self._seen), len(names))
        return replace(super()._find(names, limit), seen=known * self.block_size)

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        super().allocate(request, tokens, hit, num_tokens)
        self._seen.update(hit.hashes)
        prompt = self._runs[request.id].asked.prompt
        if len(tokens) == prompt and request.id not in self._admitted:
            assert hit.found is not None
            self._admitted[request.id] = prompt, hit.found

    def _publish(self, run: Running, tokens: TokenArray, *, computed: bool) -> int:
        before = len(run.path)
        changed = super()._publish(run, tokens, computed=computed)
        self._seen.update(run.path[before:])
        return changed

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        super().free(request, next_use)
        self._sample()

    def reset(self, request: RequestId | None = None) -> None:
        super().reset(request)
        if request is None:
            self._seen.clear()

    def _sample(self) -> None:
        """Note what is resident and what is stranded, at a few ends of requests, evenly spread."""
        self._ended += 1
        if self._ended % self._every == 0:
            self._samples.append((resident_bytes(self.memory), stranded_bytes(self.memory)))
            if len(self._samples) == _MOST_SAMPLES:
                self._samples, self._every = self._samples[1::2], 2 * self._every

    def counts(self) -> GroupCounts:
        """The first admission of each request: what the replay without an engine counts."""
        admitted, samples = self._admitted.values(), self._samples
        return GroupCounts.of(
            self.memory, [prompt for prompt, _ in admitted], [hit for _, hit in admitted],
            checkpoints=self._num_states, resident=[resident for resident, _ in samples],
            stranded=[lost for _, lost in samples],
        )  # fmt: skip

    def results(self) -> dict[str, Any]:
        """The numbers of groups beside those that the engine counts."""
        engine_counts = {"hit_tokens", "prompt_tokens", "hit_rate", "num_evictions", "refused_requests"}
        return {name: value for name, value in self.counts().results().items() if name not in engine_counts}
