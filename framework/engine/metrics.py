"""What is counted and timed of a run, with every definition in one place."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from math import isnan, nan
from typing import Any

import numpy as np

from framework.engine.executors.base import Step, work_of
from framework.engine.request import Request, Status
from framework.engine.rows import Rows
from framework.guard.allocator import GuardedAllocator
from framework.interfaces.allocator import AllocatorStats

_sum = np.add.reduce  # what ndarray.sum() calls, at a third of its cost for the few rows of a step
KINDS = ("live", "internal", "reserved", "external", "cached_idle", "free")


class Metrics:
    """Sums over steps and requests.

    Slots (tokens of pool memory) are, at each step after its writes: *live*: hold KV of a running request; *internal*:
    past the end in a row's last written block; *reserved*: promised to a row beyond that block; *external*: free, but
    in no run a request could get; *cached idle*: findable, used by nobody; *free*. They sum to the pool. Utilisation is
    live / (live + internal + reserved), weighted by time. Times are seconds on the engine's clock.

    Attributes:
        slots: of each of `KINDS`, after the last step's writes.
    """

    def __init__(self, guarded: GuardedAllocator, rows: Rows) -> None:
        self._guarded, self._rows = guarded, rows
        self.num_preemptions = self.num_forks = self.num_copied_blocks = 0
        self.num_steps = self.num_scheduled_tokens = self.num_output_tokens = 0
        self.forward_s = self.step_s = 0.0
        self._last: tuple[Step, float] | None = None
        # Of each kind. Lists: for so few, NumPy's overhead a call is more than the work.
        self.slots = [0] * len(KINDS)
        self._slot_seconds = [0.0] * len(KINDS)
        self.peak_used_blocks = 0
        self.peak_rows = 0
        self.statuses: Counter[str] = Counter()
        self.first_failure = ""
        self.num_submitted = 0
        self.first_arrival_s: float | None = None
        self.last_end_s = 0.0
        # Of each request, 8 bytes a value: all that grows with a replay.
        self.ttft_s, self.latency_s, self.request_hit_rates = array("d"), array("d"), array("d")
        self.request_tpot_s = array("d")  # NaN: of a single token
        self.prompt_tokens = self.hit_tokens = self.prompt_blocks = self.hit_blocks = 0
        self.num_recomputed_tokens = self.num_spared_tokens = 0
        self._admitted_tokens = self._found_tokens = 0
        empty = guarded.num_blocks
        self._stats = AllocatorStats(num_blocks=empty, free_blocks=empty, cached_blocks=0, used_blocks=0)

    def submitted(self, request: Request) -> None:
        """A request was submitted."""
        self.num_submitted += 1
        arrival = request.arrival_s
        self.first_arrival_s = arrival if self.first_arrival_s is None else min(self.first_arrival_s, arrival)

    def admitted(self, prompt_tokens: int, num_cached: int) -> None:
        """A request got its row for the first time, with the KV of its first `num_cached` tokens."""
        self._admitted_tokens += prompt_tokens
        self._found_tokens += num_cached

    def ended(self, request: Request) -> None:
        """A request ended, in whatever way."""
        self.statuses[request.status.value] += 1
        if request.status is Status.FAILED:
            self.first_failure = self.first_failure or request.reason
        self.num_recomputed_tokens += request.num_recomputed_tokens
        self.num_spared_tokens += request.num_spared_tokens
        if request.first_scheduled_s is not None:
            # Once a request, at its first admission: what a restored request finds is no merit of the cache.
            length, cached = len(request.prompt), request.num_cached_tokens
            self.prompt_tokens += length
            self.hit_tokens += cached
            self.prompt_blocks += -(-length // self._guarded.block_size)
            self.hit_blocks += cached // self._guarded.block_size
            self.request_hit_rates.append(cached / length)
        if request.status is not Status.FINISHED:
            return
        assert request.finished_s is not None
        assert request.first_token_s is not None
        self.last_end_s = max(self.last_end_s, request.finished_s)
        self.ttft_s.append(request.first_token_s - request.arrival_s)
        self.latency_s.append(request.finished_s - request.arrival_s)
        longest = max(len(completion.tokens) for completion in request.completions)
        tpot = (request.finished_s - request.first_token_s) / (longest - 1) if longest > 1 else nan
        self.request_tpot_s.append(tpot)

    def goodput(self, slo_ttft_s: float, slo_tpot_s: float) -> float | None:
        """Finished requests a second that met both objectives; a single token meets any TPOT."""
        met = sum(
            ttft <= slo_ttft_s and (isnan(tpot) or tpot <= slo_tpot_s)
            for ttft, tpot in zip(self.ttft_s, self.request_tpot_s, strict=True)
        )
        return _ratio(met, self.last_end_s - (self.first_arrival_s or 0.0))

    def occupancy(self, step: Step) -> None:
        """Take the slots' split, after this step's writes."""
        rows, size, stats = self._rows, self._guarded.block_size, self._guarded.stats()
        active = rows.active()
        computed = rows.computed[active]
        unwritten_each = rows.room[active] - computed
        internal = int(_sum(np.minimum(unwritten_each, (rows.removed[active] - computed) % size)))
        unwritten = int(_sum(unwritten_each))
        used = stats.used_blocks * size
        live = max(0, used - unwritten)
        external = stats.external_blocks * size
        free = stats.free_blocks * size - external
        self.slots = [live, internal, unwritten - internal, external, stats.cached_blocks * size, free]
        self._stats = stats
        self.peak_used_blocks = max(self.peak_used_blocks, stats.used_blocks)
        self.peak_rows = max(self.peak_rows, len(active))
        decodes_only = step.num_decodes == len(step.rows)
        self.num_scheduled_tokens += step.num_decodes if decodes_only else int(_sum(step.num_new))

    def stepped(self, step: Step, start: float, scheduled: float, computed: float, end: float) -> None:
        """A step ended: its times on the clock."""
        self.num_steps += 1
        self.forward_s += computed - scheduled
        self.step_s += end - start
        self._last = step, end - start
        seconds, slots = end - start, self.slots
        self._slot_seconds = [total + count * seconds for total, count in zip(self._slot_seconds, slots, strict=True)]

    def step_row(self) -> dict[str, Any]:
        """A line of a run's metrics file: the last step's seconds and work, and the state after it: hits of all
        requests admitted so far, evictions so far. Shares of 0 reserved slots are None."""
        timed: dict[str, Any] = {}
        if self._last is not None:
            step, seconds = self._last
            timed = {"step_s": seconds, **work_of(step.num_new, step.computed)}
        shares = _shares(self.slots)
        del shares["pool_used"]
        return {
            **timed,
            "running": self._rows.num_active,
            "output_tokens": self.num_output_tokens,
            "preemptions": self.num_preemptions,
            "prompt_tokens": self._admitted_tokens,
            "hit_tokens": self._found_tokens,
            "hit_rate": _ratio(self._found_tokens, self._admitted_tokens),
            "evictions": self._stats.evictions,
            **{f"{kind}_slots": count for kind, count in zip(KINDS, self.slots, strict=True)},
            **shares,
        }

    def summary(self, *, complete: bool = True) -> dict[str, Any]:
        """The run's result, flat. What has no denominator is None.

        Args:
            complete: False where the engine broke off: the allocator, which may be half changed, is not asked, and its
                counts are those of the last whole step.
        """
        stats = self._guarded.final_stats() if complete else self._stats
        wall = self.last_end_s - (self.first_arrival_s or 0.0)
        result: dict[str, Any] = {
            "num_requests": self.num_submitted,
            **{f"num_{status.value}": self.statuses[status.value] for status in Status if status.ended},
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "prompt_blocks": self.prompt_blocks,
            "hit_blocks": self.hit_blocks,
            "output_tokens": self.num_output_tokens,
            "scheduled_tokens": self.num_scheduled_tokens,
            "recomputed_tokens": self.num_recomputed_tokens,
            "spared_tokens": self.num_spared_tokens,
            "wall_s": wall,
            "output_tokens_per_s": _ratio(self.num_output_tokens, wall),
            "requests_per_s": _ratio(self.statuses[Status.FINISHED.value], wall),
            "hit_rate": _ratio(self.hit_tokens, self.prompt_tokens),
            "hit_rate_blocks": _ratio(self.hit_blocks, self.prompt_blocks),
            "hit_rate_request_mean": float(np.mean(self.request_hit_rates)) if self.request_hit_rates else None,
            **_shares(self._slot_seconds),
            "peak_used_blocks": self.peak_used_blocks,
            "peak_running": self.peak_rows,
            "num_forks": self.num_forks,
            "num_copied_blocks": self.num_copied_blocks,
            "num_evictions": stats.evictions,
            "num_collisions": stats.collisions,
            "num_preemptions": self.num_preemptions,
            "num_steps": self.num_steps,
            "forward_s": self.forward_s,
            "engine_overhead": _ratio(self.step_s - self.forward_s, self.step_s),
        }
        if self.first_failure:
            result["first_failure"] = self.first_failure
        tpot_s = [tpot for tpot in self.request_tpot_s if not isnan(tpot)]
        for name, values in (("ttft", self.ttft_s), ("tpot", tpot_s), ("latency", self.latency_s)):
            for percent in (50, 95, 99):
                result[f"{name}_s_p{percent}"] = float(np.percentile(values, percent)) if values else None
        return result


def _shares(slots: Sequence[float]) -> dict[str, float | None]:
    """What the slots of each kind, summed over time, are of those reserved or of the pool."""
    live, internal, reserved, external, cached, _ = slots
    used, pool = live + internal + reserved, sum(slots)
    return {
        "utilisation": _ratio(live, used),
        "waste_internal": _ratio(internal, used),
        "waste_reserved": _ratio(reserved, used),
        "waste_external": _ratio(external, pool),
        "cached_idle": _ratio(cached, pool),
        "pool_used": _ratio(used, pool),
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None
