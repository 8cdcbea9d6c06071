"""The blocks of another engine's cache as an eviction policy sees them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import Component, build_component
from framework.types import BlockHash
from framework_tiers.named import Name, NamedBlocks


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


class HostBlocks(NamedBlocks):
    """Contents of another engine's cache by its own names for them, each list of names deepest first.

    `count` is the access count and the policy's `now`: one `tick` a request or access.

    Attributes:
        depth, num_tokens, priority, children, key: columns of BlockView, for the host to write.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int) -> None:
        super().__init__(policy, num_blocks)
        rows = len(self.name_of)
        self.depth, self.num_tokens, self.priority, self.children = ([0] * rows for _ in range(4))
        self.key: list[BlockHash | None] = [None] * rows
        self.count = 0
        self.attach(depth=self.depth, num_tokens=self.num_tokens, priority=self.priority, children=self.children,
                    key=self.key)  # fmt: skip

    def tick(self, by: int = 1) -> None:
        """A new request or access begins."""
        self.count += by
        self.host.now = self.count

    def add(self, name: Name, key: bytes, *, depth: int = 0, num_tokens: int = 1) -> None:
        """Give a new content its block and facts; `admit` tells the policy. Errors: as `hold`."""
        block = self.hold(name, self.count)
        self.key[block], self.depth[block], self.num_tokens[block] = BlockHash(key), depth, num_tokens
        self.priority[block] = self.children[block] = 0

    def admit(self, names: Iterable[Name]) -> None:
        """Added contents were published; they are in use until released."""
        self.host.admit([self.block_of[name] for name in names])

    def release(self, names: Iterable[Name]) -> None:
        """Nobody uses these any more. Those that nobody used are left alone."""
        self.host.release([block for block in map(self.block_of.__getitem__, names) if not self.host.candidate[block]])

    def pin(self, names: Iterable[Name]) -> None:
        """These are in use now. Those in use already are left alone."""
        self.host.pin([block for block in map(self.block_of.__getitem__, names) if self.host.candidate[block]])

    def hit(self, names: Sequence[Name]) -> None:
        """A request found these; candidates among them are in use only for that call."""
        idle = self.idle(names)
        self.pin(idle)
        blocks = [self.block_of[name] for name in names]
        for block in blocks:
            self.last_access[block] = self.count
            self.hits[block] += 1
        self.host.hit(blocks)
        self.release(idle)

    def idle(self, names: Iterable[Name]) -> list[Name]:
        """Those of these that nobody uses: the candidates."""
        return [name for name in names if self.host.candidate[self.block_of[name]]]

    def victim(self) -> Name:
        """The name of the candidate to evict next; `evict` it.

        Raises:
            PluginError: there is no candidate, or the policy named another block.
        """
        return self.name_of[self.host.victim()]

    def evict(self, name: Name) -> None:
        """The content is gone. One in use is released first: only candidates are evicted."""
        self.release([name])
        self.forget(name)
