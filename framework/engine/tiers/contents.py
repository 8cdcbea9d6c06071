"""Contents of tiers by their block hash, while requests overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framework.paged.last_requests import PromptEnds, facts_of
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestFacts, RequestInfo

_FEWEST = 1 << 16


@dataclass(slots=True)
class _Known:
    depth: int = 0
    num_tokens: int = 0
    parent: BlockHash | None = None
    tenant: int = 0
    last_use: int = 0
    uses: int = 0
    request: RequestFacts = UNKNOWN_REQUEST


class KnownContents:
    """Facts of contents, for the tiers' policies and the rule: those that are held somewhere, and those used lately.

    What an earlier process left is known by its key alone until a request names it: depth, tokens and uses are 0 then.

    Args:
        most: contents remembered beside those that are held.
        with_requests: whether a policy reads the last request of blocks.
    """

    def __init__(self, block_size: int, most: int, *, with_requests: bool = False) -> None:
        self._size, self._most = block_size, max(_FEWEST, most)
        self._known: dict[BlockHash, _Known] = {}
        self._tenants: dict[str, int] = {}
        self._requests = 0
        self._prompts = PromptEnds() if with_requests else None

    def used(self, request: RequestInfo, path: Sequence[BlockHash], num_tokens: int, num_cached: int) -> None:
        """A request uses these contents, all full blocks of its prompt of `num_tokens`, `num_cached` of them found."""
        self._requests += 1
        tenant = self._tenants.setdefault(request.tenant, len(self._tenants))
        facts = UNKNOWN_REQUEST
        if self._prompts is not None:
            turn = self._prompts.turn_of(path) if request.turn is None else request.turn
            facts = facts_of(request, num_tokens, max(0, -(-num_tokens // self._size) - num_cached), turn)
        parent: BlockHash | None = None
        for depth, key in enumerate(path):
            known = self._learn(key, depth, parent)
            known.uses += 1
            known.last_use, known.request = self._requests, facts
            if depth >= num_cached:
                known.tenant = tenant
            parent = key

    def computed(self, key: BlockHash, depth: int, parent: BlockHash | None) -> None:
        """A request generated this content: it is part of no prompt yet."""
        known = self._learn(key, depth, parent)
        known.uses = max(1, known.uses)
        known.last_use = self._requests

    def learn(self, path: Sequence[BlockHash]) -> None:
        """These are the leading blocks of a prompt: where each stands is known from here on."""
        parent: BlockHash | None = None
        for depth, key in enumerate(path):
            self._learn(key, depth, parent)
            parent = key

    def _learn(self, key: BlockHash, depth: int, parent: BlockHash | None) -> _Known:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known()
        known.depth, known.num_tokens, known.parent = depth, (depth + 1) * self._size, parent
        return known

    def prune(self, held: Callable[[BlockHash], bool]) -> None:
        """Forget contents that are held nowhere, those longest unused first, when there are too many."""
        if len(self._known) <= 2 * self._most:
            return
        gone = sorted((known.last_use, key) for key, known in self._known.items() if not held(key))
        for _, key in gone[: len(self._known) - self._most]:
            del self._known[key]

    def found(self, key: BlockHash) -> None:
        """An earlier process left this content."""
        self._known.setdefault(key, _Known())

    def name(self, key: BlockHash) -> BlockHash:
        return key

    def depth(self, key: BlockHash) -> int:
        return self._known[key].depth

    def num_tokens(self, key: BlockHash) -> int:
        return self._known[key].num_tokens

    def parent(self, key: BlockHash) -> BlockHash | None:
        return self._known[key].parent

    def partial(self, key: BlockHash) -> bool:
        return False

    def tenant(self, key: BlockHash) -> int:
        return self._known[key].tenant

    def last_use(self, key: BlockHash) -> int:
        return self._known[key].last_use

    def uses(self, key: BlockHash) -> int:
        return self._known[key].uses

    def next_use(self, key: BlockHash) -> float:
        return float("inf")

    def last_request(self, key: BlockHash) -> RequestFacts:
        return self._known[key].request
