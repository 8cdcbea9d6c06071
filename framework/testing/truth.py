"""What every slot of the KV pool really holds, whatever the allocator says.

The oracle of the allocator kit: a dict from slot to meaning. It learns only what the pool itself would see (tokens
written, blocks copied, blocks handed out and so overwritten) and never what an allocator believes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from framework.types import BlockCopy, Namespace


@dataclass(frozen=True)
class Meaning:
    """What one slot's KV stands for: its namespace, all tokens up to it, and the oldest weights it depends on."""

    namespace: Namespace
    tokens: tuple[int, ...]
    epoch: int


Key = tuple[Namespace, tuple[int, ...]]


@dataclass
class Truth:
    """Slots by (block, offset); a slot that is absent is poison: handed out and not written since."""

    block_size: int
    epoch: int = 0
    slots: dict[tuple[int, int], Meaning] = field(default_factory=dict)
    published: dict[Key, int] = field(default_factory=dict)
    """The block that first published each full block's content, while it and all its ancestors last."""

    def read(self, table: list[int], position: int) -> Meaning | None:
        """What the token at `position` would find."""
        return self.slots.get((table[position // self.block_size], position % self.block_size))

    def next_meaning(self, table: list[int], namespace: Namespace, tokens: list[int], position: int) -> Meaning:
        """What writing token `position` makes of its slot, given what its predecessor's slot holds."""
        before = self.read(table, position - 1) if position else None
        epoch = self.epoch if position == 0 else min(self.epoch, before.epoch if before else self.epoch)
        return Meaning(namespace, tuple(tokens[: position + 1]), epoch)

    def write(self, block: int, offset: int, meaning: Meaning) -> None:
        """The forward pass stored one token."""
        self.slots[block, offset] = meaning

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """The pool did these copies, in order."""
        for pair in copies:
            for offset in range(self.block_size):
                meaning = self.slots.get((pair.source, offset))
                self.slots.pop((pair.destination, offset), None)
                if meaning is not None:
                    self.slots[pair.destination, offset] = meaning

    def poison(self, blocks: Iterable[int]) -> None:
        """These blocks were handed out: their next owner may overwrite them at any time."""
        for block in blocks:
            self.unpublish(block)
            for offset in range(self.block_size):
                self.slots.pop((block, offset), None)

    def unpublish(self, block: int) -> None:
        """The block's content need not be found any more, nor what follows it."""
        for key in [key for key, holder in self.published.items() if holder == block]:
            for other in list(self.published):
                if other[0] == key[0] and other[1][: len(key[1])] == key[1]:
                    del self.published[other]

    def publish(self, table: list[int], namespace: Namespace, tokens: list[int], first: int, last: int) -> None:
        """A commit filled blocks `first` to `last` - 1 of this table. Content under old weights is never published."""
        for index in range(first, last):
            end = (index + 1) * self.block_size
            meaning = self.read(table, end - 1)
            parent = (namespace, tuple(tokens[: index * self.block_size]))
            if meaning is None or meaning.epoch < self.epoch or (index and parent not in self.published):
                return
            self.published.setdefault((namespace, tuple(tokens[:end])), table[index])

    def must_hit(self, namespace: Namespace, tokens: list[int]) -> int:
        """Tokens of the longest prefix that is published whole, and leaves one token to compute."""
        size = self.block_size
        for end in range(size, len(tokens), size):
            if (namespace, tuple(tokens[:end])) not in self.published:
                return end - size
        return max(0, (len(tokens) - 1) // size * size)

    def reset(self) -> None:
        """The weights changed."""
        self.epoch += 1
        self.published.clear()
