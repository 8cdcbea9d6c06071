"""A cache that drives one eviction policy as an allocator would, with legal calls only, for the kit of policies."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.testing.driver import Violation
from framework.types import UNKNOWN_REQUEST, BlockHash, BlockId, Hint, RequestFacts

Step = tuple[str, int, int]
Path = tuple[int, ...]
PATHS: tuple[Path, ...] = ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2))


class Column(list[Any]):
    """One column of facts. The policy is given a view of it, and every read is counted."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


class Cache:
    """A tree of cached prefixes over `num_blocks` blocks, driving one policy with legal calls only.

    A request's content is a path of small numbers; one number is one block. `history` holds every call made.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int) -> None:
        self.policy, self.num_blocks, self.access, self.now = policy, num_blocks, 0, 0.0
        self.columns = {
            name: Column([0] * (num_blocks + 1)) for name in BlockView.__dataclass_fields__ if name != "next_use"
        }
        self.columns["next_use"] = Column([float("inf")] * (num_blocks + 1))
        self.columns["key"] = Column([None] * (num_blocks + 1))
        self.columns["last_request"] = Column([UNKNOWN_REQUEST] * (num_blocks + 1))
        self.free = [BlockId(block) for block in range(num_blocks, 0, -1)]
        self.contents_evicted: list[Path] = []
        self.holder: dict[Path, BlockId] = {}
        self.path: dict[BlockId, Path] = {}
        self.users: dict[BlockId, int] = {}
        self.running: list[list[BlockId]] = []
        self.requests: list[RequestFacts] = []  # of those running
        self.evictions: list[BlockId] = []
        self.history: list[str] = []
        self.num_declined = 0
        policy.attach(BlockView(**self.columns))

    @property
    def candidates(self) -> set[BlockId]:
        """Cached blocks that no request uses."""
        return {block for block in self.path if not self.users[block]}

    def need(self, holds: bool, rule: str, seen: object = "") -> None:
        """Raise unless the rule holds."""
        if not holds:
            calls = "\n".join(f"  {number}. {call}" for number, call in enumerate(self.history, 1))
            name = type(self.policy).__name__
            raise Violation(f"{rule}: {seen}\n{name}, {self.num_blocks} blocks\ncalls so far:\n{calls}")

    def call(self, name: str, blocks: list[BlockId]) -> None:
        """One callback; the list must come back unchanged, and is overwritten afterwards: it may not be kept."""
        if not blocks:
            return
        given, facts = list(blocks), self._facts()
        self.history.append(f"{name}({blocks}, now={self.now})")
        try:
            getattr(self.policy, name)(given, self.now)
        except Exception as error:
            self.need(False, f"{name} raised", repr(error))
        self.need(given == blocks, f"{name} changed the list it was handed", f"{blocks} became {given}")
        self.need(facts == self._facts(), f"{name} wrote to the facts it may only read")
        self.need(sys.getrefcount(given) == 2, f"{name} kept the list it was handed: it is the caller's, copy it")
        given[:] = [BlockId(0)] * len(given)

    def _facts(self) -> Any:
        return {name: list(column) for name, column in self.columns.items()} if self.num_blocks < 64 else None

    def victim(self) -> BlockId:
        """Ask for a victim, twice; it must be a candidate and the same."""
        facts = self._facts()
        try:
            block, again = self.policy.victim(self.now), self.policy.victim(self.now)
        except Exception as error:
            self.need(False, "victim raised", f"{error!r}, candidates {sorted(self.candidates)}")
            raise
        self.history.append(f"victim(now={self.now}) -> {block!r}")
        self.need(type(block) is int, "a victim is no int", repr(block))
        self.need(
            block in self.candidates, "a victim is no candidate", f"{block}, candidates {sorted(self.candidates)}"
        )
        self.need(block == again, "asked twice, victim answers differently", f"{block} then {again}")
        self.need(facts == self._facts(), "victim wrote to the facts it may only read")
        return block

    def nobody(self) -> None:
        """Without a candidate the answer is NoCandidate."""
        self.history.append(f"victim(now={self.now}), no candidate")
        try:
            block = self.policy.victim(self.now)
        except NoCandidate:
            return
        except Exception as error:
            self.need(False, "victim without candidates must raise NoCandidate, it raised", repr(error))
        else:
            self.need(False, "victim without candidates must raise NoCandidate, it returned", repr(block))

    def evict(self) -> None:
        """Evict what the policy names; where it declined all there was, nothing."""
        if self.num_declined and not self.candidates:
            self.nobody()
            return
        block = self.victim()
        self.evictions.append(block)
        self.contents_evicted.append(self.path[block])
        self.drop(block)
        self.free.append(self.next_id(block))

    def next_id(self, block: BlockId) -> BlockId:
        """The id under which the memory of an evicted block is handed out again."""
        return block

    def drop(self, block: BlockId) -> None:
        """The block's content is gone."""
        path = self.path.pop(block)
        del self.holder[path], self.users[block]
        parent = self.holder.get(path[:-1])
        if parent is not None:
            self.columns["children"][parent] -= 1
        for other, below in self.holder.items():
            if other[:-1] == path:
                self.columns["parent"][below] = 0
        self.history.append(f"evicted({block}, now={self.now})")
        try:
            self.policy.evicted(block, self.now)
        except Exception as error:
            self.need(False, "evicted raised", repr(error))

    def begin(self, path: Path, priority: int = 0) -> bool:
        """A request for this path: hits its cached prefix and publishes the rest. False when there is no room."""
        self.access += 1
        prefixes = [path[: depth + 1] for depth in range(len(path))]
        held = [self.holder[prefix] for prefix in prefixes if prefix in self.holder]
        hole = next((depth for depth, prefix in enumerate(prefixes) if prefix not in self.holder), len(path))
        if len(path) - len(held) > len(self.free) + len(self.candidates - set(held)):
            return False
        pinned = [block for block in held if not self.users[block]]
        for block in held:
            self.users[block] += 1
            self.columns["last_access"][block] = self.access
            self.columns["priority"][block] = max(priority, self.columns["priority"][block])
        for block in held[:hole]:
            self.columns["hits"][block] += 1
        self.call("pin", pinned[::-1])
        self.call("hit", held[:hole][::-1])
        while len(path) - len(held) > len(self.free):
            self.evict()
        facts = self._facts_of(path, hole)
        new = [self._publish(prefix, priority, facts) for prefix in prefixes if prefix not in self.holder]
        self.call("admit", new[::-1])
        self.requests.append(facts)
        self.running.append([self.holder[prefix] for prefix in prefixes])
        return True

    def _facts_of(self, path: Path, found: int) -> RequestFacts:
        """What a server may know of a request; of every fourth nothing, as behind an allocator that keeps no facts."""
        if self.access % 4 == 0:
            return UNKNOWN_REQUEST
        hint = (None, Hint(continues=0.5), Hint(continues=0.0, returns_s=3.0))[self.access % 3]
        return RequestFacts(
            turn=len(path) - 1, prompt_tokens=16 * len(path), new_blocks=len(path) - found, arrival=float(self.access),
            session=f"s{path[0]}", category=(None, "chat")[path[0] % 2], hint=hint,
        )  # fmt: skip

    def _publish(self, path: Path, priority: int, request: RequestFacts) -> BlockId:
        block = self.free.pop()
        self.holder[path], self.path[block], self.users[block] = block, path, 1
        orphans = sum(1 for other in self.holder if other[:-1] == path)
        facts = {"depth": len(path) - 1, "num_tokens": 16 * len(path), "admitted": self.access, "hits": 0,
                 "last_access": self.access, "priority": priority, "tenant": path[0] % 2, "children": orphans,
                 "key": BlockHash(repr(path).encode()), "partial": path[-1] == 1,
                 "parent": self.holder.get(path[:-1], 0), "last_request": request}  # fmt: skip
        for name, value in facts.items():
            self.columns[name][block] = value
        parent = self.holder.get(path[:-1])
        if parent is not None:
            self.columns["children"][parent] += 1
        for other, below in self.holder.items():
            if other[:-1] == path:
                self.columns["parent"][below] = block
        return block

    def end(self, pick: int) -> None:
        """A request ends: its blocks without other users become candidates, deepest first."""
        if not self.running:
            return
        self.access += 1
        released, number = [], pick % len(self.running)
        facts = self.requests.pop(number)
        for block in self.running.pop(number)[::-1]:
            self.columns["last_request"][block] = facts
            self.users[block] -= 1
            if not self.users[block]:
                self.columns["last_access"][block] = self.access
                released.append(block)
        self.call("release", [block for block in released if self.keeps(block)])

    def keeps(self, block: BlockId) -> bool:
        """Ask whether the block is worth keeping; one that is declined is gone."""
        facts = self._facts()
        try:
            answer = self.policy.keep(block, self.now)
        except Exception as error:
            self.need(False, "keep raised", repr(error))
            raise
        self.need(type(answer) is bool, "keep must return a bool", repr(answer))
        self.need(facts == self._facts(), "keep wrote to the facts it may only read")
        if not answer:
            self.history.append(f"keep({block}, now={self.now}) -> False")
            self.num_declined += 1
            self.drop(block)
            self.free.append(block)
        return answer

    def play(self, history: list[Step]) -> None:
        """Steps by name; each picks among what is there."""
        for name, first, second in history:
            if name == "begin":
                self.begin(PATHS[first % len(PATHS)][: 1 + second % 4], priority=second % 3)
            elif name == "end":
                self.end(first)
            elif name == "evict" and self.candidates:
                self.evict()
            elif name == "advance":
                self.now += 1.0
            if not self.candidates:
                self.nobody()

    def drain(self) -> None:
        """End everything, then evict everything: each candidate goes exactly once."""
        while self.running:
            self.end(0)
        left = self.candidates
        self.need(left == set(self.path), "the kit itself lost a block")
        gone = len(self.evictions)
        while self.candidates:
            self.evict()
        self.need(sorted(self.evictions[gone:]) == sorted(left), "evicting all did not evict each once")
        self.nobody()


_IDS_A_SLOT = 3


class Relabelled(Cache):
    """Room for `num_slots` blocks, each with three ids: which of them a block gets changes nothing that may be seen.

    Args:
        labels: "same": a slot keeps its first id; "next": each reuse takes the slot's next id, so that the order of
            ids in the cache stays; "any": each reuse takes any id that is free.
    """

    def __init__(self, policy: EvictionPolicy, num_slots: int, labels: str) -> None:
        super().__init__(policy, _IDS_A_SLOT * num_slots)
        self.free = [BlockId(1 + _IDS_A_SLOT * slot) for slot in reversed(range(num_slots))]
        self._labels, self._draw = labels, Random(num_slots)

    def next_id(self, block: BlockId) -> BlockId:
        """See Cache."""
        if self._labels == "same":
            return block
        if self._labels == "next":
            first = block - (block - 1) % _IDS_A_SLOT
            return BlockId(first + (block - first + 1) % _IDS_A_SLOT)
        taken = {*self.free, *self.path}
        return BlockId(self._draw.choice([i for i in range(1, self.num_blocks + 1) if i not in taken]))
