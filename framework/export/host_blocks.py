"""The blocks of another engine's cache as an eviction policy sees them."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Sequence

from framework.errors import InvalidArgument, OutOfBlocks, Unsupported
from framework.guard.policy import GuardedPolicy
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.registry.components import Component, build_component
from framework.types import BlockHash, BlockId


def build_policy(policy: Component, num_blocks: int, *, block_size: int = 1, seed: int = 0) -> EvictionPolicy:
    """A policy of its own for one cache, not attached: from a name, a mapping with a name, a class, or an object.

    An object is copied, so that one may serve for several caches.

    Raises:
        InvalidArgument: no policy, or one that serves a cache already.
        Unsupported: it reads the future, which only a replay has.
        UnknownPlugin and others: as `framework.registry.build`.
    """
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": seed}
    built = build_component("eviction", policy, shared)
    if not isinstance(built, EvictionPolicy):
        raise InvalidArgument(f"an eviction policy is needed to export one, found {type(built).__name__}")
    if built.needs_future:
        raise Unsupported(f"{type(built).__name__} reads the future of a trace, which another engine does not have")
    if hasattr(built, "blocks"):
        raise InvalidArgument(f"this {type(built).__name__} serves a cache already; give a fresh one, or its name")
    return copy.deepcopy(built) if built is policy else built


class HostBlocks:
    """The facts of another engine's blocks by block id, and which are candidates; drives one policy.

    The host knows its blocks by name: any hashable, unique among residents. Each list of names is deepest first.
    `count` is the access count and the policy's `now`: one `tick` a request or access.

    Args:
        policy: fresh; it is attached here.
        num_blocks: most blocks resident at a time.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int) -> None:
        rows = num_blocks + 1
        self.policy, self.count = policy, 0
        self.depth, self.num_tokens, self.admitted, self.last_access = ([0] * rows for _ in range(4))
        self.hits, self.priority, self.tenant, self.children = ([0] * rows for _ in range(4))
        self.key: list[BlockHash | None] = [None] * rows
        self.block_of: dict[Hashable, BlockId] = {}
        self.name_of: list[Hashable] = [None] * rows
        self.candidates: set[BlockId] = set()
        self._marks = bytearray(rows)  # 1 for candidates
        self._free = [BlockId(block) for block in range(num_blocks, 0, -1)]
        self._guarded = GuardedPolicy(policy)
        self._guarded.attach(
            BlockView(
                depth=self.depth,
                num_tokens=self.num_tokens,
                admitted=self.admitted,
                last_access=self.last_access,
                hits=self.hits,
                priority=self.priority,
                tenant=self.tenant,
                children=self.children,
                next_use=[float("inf")] * rows,
                key=self.key,
            )
        )

    def tick(self) -> None:
        """A new request or access begins."""
        self.count += 1

    def add(self, name: Hashable, key: bytes, *, depth: int = 0, num_tokens: int = 1, priority: int = 0) -> BlockId:
        """Give a new block its id and facts; `admit` tells the policy.

        Raises:
            InvalidArgument: the name is resident.
            OutOfBlocks: all `num_blocks` are.
        """
        if name in self.block_of:
            raise InvalidArgument(f"the host inserted {name!r}, which is in the cache already")
        if not self._free:
            raise OutOfBlocks(f"the host holds more than the {len(self.name_of) - 1} blocks announced; announce more")
        block = self._free.pop()
        self.block_of[name], self.name_of[block], self.key[block] = block, name, BlockHash(key)
        self.depth[block], self.num_tokens[block], self.priority[block] = depth, num_tokens, priority
        self.admitted[block] = self.last_access[block] = self.count
        self.hits[block] = self.children[block] = 0
        return block

    def admit(self, names: Iterable[Hashable]) -> None:
        """Added blocks were published; they are in use until released."""
        if blocks := self._ids(names):
            self._guarded.admit(blocks, self.count)

    def release(self, names: Iterable[Hashable]) -> None:
        """Nobody uses these blocks any more. Those that nobody used are left alone."""
        if blocks := [block for block in self._ids(names) if block not in self.candidates]:
            self._guarded.release(blocks, self.count)
            self.candidates.update(blocks)
            for block in blocks:
                self._marks[block] = 1

    def pin(self, names: Iterable[Hashable]) -> None:
        """These blocks are in use now. Those in use already are left alone."""
        if blocks := [block for block in self._ids(names) if block in self.candidates]:
            self._guarded.pin(blocks, self.count)
            self.candidates.difference_update(blocks)
            for block in blocks:
                self._marks[block] = 0

    def hit(self, names: Sequence[Hashable]) -> None:
        """A request found these blocks; candidates among them are in use only for that call."""
        blocks = self._ids(names)
        if not blocks:
            return
        idle = [self.name_of[block] for block in blocks if block in self.candidates]
        self.pin(idle)
        for block in blocks:
            self.last_access[block] = self.count
            self.hits[block] += 1
        self._guarded.hit(blocks, self.count)
        self.release(idle)

    def victim(self) -> Hashable:
        """The name of the candidate to evict next; `evict` it.

        Raises:
            PluginError: there is no candidate, or the policy named another block.
        """
        return self.name_of[self._guarded.victim(self.count, self._marks)]

    def evict(self, name: Hashable) -> None:
        """The content of this block is gone. One in use is released first: only candidates are evicted."""
        self.release([name])
        block = self.block_of.pop(name)
        self._guarded.evicted(block, self.count)
        self.candidates.discard(block)
        self._marks[block] = 0
        self.name_of[block] = self.key[block] = None
        self._free.append(block)

    def _ids(self, names: Iterable[Hashable]) -> list[BlockId]:
        return [self.block_of[name] for name in names]
