"""Orders by what is cached of the requests that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.interfaces.scheduling import QueueView, Scheduling, WaitingRequest
from framework.types import BlockHash


class LongestPrefix(Scheduling):
    """The request of which most tokens are cached is next.

    Where many wait, in order of arrival, since looking all of them up was slow there. Of requests with little in the
    cache that share a prefix with one another, the first goes on and the others come last: once its prefix is computed,
    they hit it. Source: SGLang, python/sglang/srt/managers/schedule_policy.py, `lpm`, whose prefixes are tokens where
    these are whole blocks. SGLang sets no bound on how long a request may wait.

    Args:
        most_waiting: above so many it is first come, first served (SGLang: 128).
        check_tokens: a request with at most so many cached tokens is compared with the others (SGLang: 32).
        shared_tokens: it comes last if it shares at least so many tokens with one before it (SGLang: 32).
        max_passed: most requests that may pass another; None: no bound.
    """

    needs_hits = True

    def __init__(
        self, most_waiting: int = 128, check_tokens: int = 32, shared_tokens: int = 32, max_passed: int | None = None
    ) -> None:
        if (least := min(most_waiting, check_tokens, shared_tokens)) < 0:
            raise InvalidArgument(f"most_waiting, check_tokens and shared_tokens must be at least 0, found {least}")
        self.most_waiting, self.check_tokens, self.shared_tokens = most_waiting, check_tokens, shared_tokens
        self.max_passed = max_passed

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        if len(waiting) > self.most_waiting:
            return None
        prefixes: set[BlockHash] = set()  # of the requests before, down to each of their blocks
        needed = max(1, -(-self.shared_tokens // view.block_size))
        hits, last = {}, set()
        for request in waiting:
            hits[request.number] = request.hit_tokens
            if request.hit_tokens > self.check_tokens:
                continue
            hashes = request.hashes
            if len(hashes) >= needed and hashes[needed - 1] in prefixes:
                last.add(request.number)
            else:
                prefixes.update(hashes)
        return sorted(waiting, key=lambda request: (request.number in last, -hits[request.number]))


class DfsWeight(Scheduling):
    """Depth first through the tree of cached prefixes, where most requests wait first.

    Each request hangs on the last cached block of its prompt; the subtree with most requests comes first, and within a
    subtree those that hang deeper. Requests that use the same blocks so run one after the other. Source: SGLang,
    python/sglang/srt/managers/schedule_policy.py, `dfs-weight`, whose nodes are of the radix tree where these are
    blocks. SGLang sets no bound on how long a request may wait.

    Args:
        max_passed: most requests that may pass another; None: no bound.
    """

    needs_hits = True

    def __init__(self, max_passed: int | None = None) -> None:
        self.max_passed = max_passed

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        paths = [request.hashes[: request.hit_tokens // view.block_size] for request in waiting]
        weight = Counter(key for path in paths for key in path)
        # Siblings in order of weight, then of their first request; a node's own requests after its children's.
        first: dict[BlockHash, int] = {}
        for place, path in enumerate(paths):
            for key in path:
                first.setdefault(key, place)

        def place_of(at: int) -> tuple[tuple[int, int, int], ...]:
            steps = ((0, -weight[key], first[key]) for key in paths[at])
            return (*steps, (1, 0, at))

        return [waiting[at] for at in sorted(range(len(waiting)), key=place_of)]


class WindowedLookahead(Scheduling):
    """Admits those with most tokens in the cache first, among the first requests of the queue.

    Source: vllm-project/vllm pull request 54625 ("cache-aware admission ordering"). There it is off unless a window is
    given; those who measured it took 16 or 64. The thread leaves open how long a request may be passed over: a request
    at the head of the window can be passed for ever.

    Args:
        window: requests at the head of the queue among which it chooses.
        threshold: share of the pool's blocks in use below which requests are admitted in order of arrival.
        max_passed: most requests that may pass another; None: no bound.
    """

    needs_hits = True

    def __init__(self, window: int = 16, threshold: float = 0.0, max_passed: int | None = None) -> None:
        if window < 1 or not 0 <= threshold <= 1:
            raise InvalidArgument(f"window must be at least 1 and threshold 0 to 1, found {window} and {threshold}")
        self.window, self.threshold, self.max_passed = window, threshold, max_passed

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        head = waiting[: self.window]
        if len(head) < 2 or view.used_blocks < self.threshold * view.num_blocks:
            return None
        return [*sorted(head, key=lambda request: -request.hit_tokens), *waiting[self.window :]]


class SessionAffinity(Scheduling):
    """First come, first served, but one request of a session that ran lately may go first in each step.

    It is the one with most cached blocks among the first of the queue, the session that was admitted last among equals.
    Nobody passes a request that has waited `max_wait_s`. Source: vllm-project/vllm pull request 51384
    (SessionAffinityScheduler); the defaults of its options are not in the text that could be read, so these are ours.
    There a session counts as recent while any of its requests is computed, here from its last admission.

    Args:
        window: requests at the head of the queue among which it chooses.
        min_blocks: fewest cached blocks of the one that goes first.
        max_wait_s: wait of the oldest, seconds, from which on it is next.
        ttl_s: seconds after which a session that was not admitted again is forgotten.
    """

    needs_hits = True

    def __init__(self, window: int = 16, min_blocks: int = 1, max_wait_s: float = 5.0, ttl_s: float = 300.0) -> None:
        self.window, self.min_blocks, self.max_wait_s, self.ttl_s = window, min_blocks, max_wait_s, ttl_s
        self._admitted_s: dict[str, float] = {}

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        oldest = view.now_s - self.ttl_s
        while self._admitted_s and next(iter(self._admitted_s.values())) < oldest:
            del self._admitted_s[next(iter(self._admitted_s))]
        best, best_key = None, (self.min_blocks - 1, 0.0)
        for request in waiting[1 : self.window]:
            at = self._admitted_s.get(request.info.session or "")
            if at is not None:
                key = (request.hit_tokens // view.block_size, at)
                if key[0] >= self.min_blocks and key > best_key:
                    best, best_key = request, key
        return None if best is None else [best, *(request for request in waiting if request is not best)]

    def admitted(self, request: WaitingRequest, view: QueueView) -> None:
        if request.info.session:
            self._admitted_s.pop(request.info.session, None)  # the dict is in order of admission
            self._admitted_s[request.info.session] = view.now_s
