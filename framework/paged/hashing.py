"""Hashes of the full blocks of a prompt, and the roots of namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from framework.errors import InvalidArgument
from framework.guard.hash import GuardedHash
from framework.interfaces.allocator import Hit
from framework.interfaces.hash import HashScheme, little_endian
from framework.types import BlockHash, Namespace, TokenArray

_MAX_NAMESPACES = 65_536
_LEAST_ROOM = 65_536  # bytes of tokens
_BRANCHES = 4  # prefixes kept of one first block


class BlockHashes(tuple[BlockHash, ...]):
    """Chained hashes that know the namespace they were made for."""

    namespace: Namespace

    @classmethod
    def of(cls, namespace: Namespace, hashes: Iterable[BlockHash]) -> BlockHashes:
        """These hashes, made for this namespace."""
        made = cls(hashes)
        made.namespace = namespace
        return made


class HashedPrefixes:
    """Hashes of prefixes that were hit of late: a scheme is deterministic, so equal tokens need no hashing again.

    Prefixes are found by namespace and first block, a few for each, and compared byte by byte; what they hold is exact.
    Bounded in bytes of tokens, the oldest go first.
    """

    def __init__(self, block_size: int, room: int) -> None:
        self._step = 4 * block_size
        self._room = room
        self._runs: dict[tuple[int, bytes], list[tuple[bytes, tuple[BlockHash, ...]]]] = {}
        self._held = 0

    def find(self, anchor: int, data: bytes) -> tuple[BlockHash, ...]:
        """The hashes that are known of the leading full blocks of `data`, int32 tokens."""
        runs = self._runs.get((anchor, data[: self._step]))
        if runs is None:
            return ()
        best: tuple[BlockHash, ...] = ()
        for known, hashes in runs:
            if len(hashes) > len(best) and data.startswith(known):
                best = hashes
        return best or self._common(data, *runs[-1])

    def _common(self, data: bytes, known: bytes, hashes: tuple[BlockHash, ...]) -> tuple[BlockHash, ...]:
        """Those of the blocks in which `data` and `known` begin alike, of which there is one at least."""
        same, differ, step = 1, min(len(hashes), len(data) // self._step) + 1, self._step
        while differ - same > 1:
            middle = (same + differ) // 2
            if data.startswith(known[: middle * step]):
                same = middle
            else:
                differ = middle
        return hashes[:same]

    def keep(self, anchor: int, data: bytes, hashes: Sequence[BlockHash]) -> None:
        """These are the hashes of the leading blocks of `data`, more than were known."""
        hashes = tuple(hashes[: self._room // 4 // self._step])
        if not hashes:
            return
        key, known = (anchor, data[: self._step]), data[: len(hashes) * self._step]
        runs = self._runs.pop(key, [])
        self._held += len(known) - sum(len(run) for run, _ in runs)
        runs = [run for run in runs if not known.startswith(run[0])][1 - _BRANCHES :]
        self._held += sum(len(run) for run, _ in runs)
        self._runs[key] = [*runs, (known, hashes)]
        while self._held > self._room:
            self._held -= sum(len(run) for run, _ in self._runs.pop(next(iter(self._runs))))


class BlockHasher:
    """A hash scheme, guarded, with the roots of the namespaces seen.

    A root is a hash and an anchor: an integer below 0 that stands for the namespace in a PrefixIndex.
    """

    def __init__(self, scheme: HashScheme, block_size: int, num_blocks: int = 0) -> None:
        self._scheme = GuardedHash(scheme, block_size)
        self._block_size = block_size
        self._roots: dict[Namespace, tuple[BlockHash, int]] = {}
        nothing: tuple[Any, Any] = (None, None)
        self._recent: tuple[tuple[Namespace, tuple[BlockHash, int]], ...] = (nothing, nothing)
        self._last_anchor = 0
        self.blocks = self._scheme.blocks
        self._prefixes = HashedPrefixes(block_size, max(_LEAST_ROOM, 8 * num_blocks))
        self._looked_up: tuple[bytes, int] = (b"", 0)

    def root(self, namespace: Namespace) -> tuple[BlockHash, int]:
        """What the namespace's first blocks hang below: hash and anchor."""
        # A namespace is hashed and compared in Python, so the two objects of late are known by identity: the one a
        # lookup was given, and its request's.
        for known, root in self._recent:
            if known is namespace:
                return root
        found = self._root(namespace)
        self._recent = ((namespace, found), self._recent[0])
        return found

    def _root(self, namespace: Namespace) -> tuple[BlockHash, int]:
        found = self._roots.get(namespace)
        if found is None:
            root = self._scheme.root(namespace)
            if len(self._roots) >= _MAX_NAMESPACES:  # content of the oldest can no longer be hit, and ages out
                del self._roots[next(iter(self._roots))]
            self._last_anchor -= 1
            found = self._roots[namespace] = (root, self._last_anchor)
        return found

    def of(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None) -> tuple[int, BlockHashes]:
        """The anchor, and the hashes of all full blocks of `tokens` (n,) int32; those of `previous` are reused."""
        (root, anchor), size = self.root(namespace), self._block_size
        if previous is None or not previous.hashes:
            data = little_endian(tokens)
            found = self._prefixes.find(anchor, data)
            self._looked_up = data, len(found)
            if not found:
                return anchor, BlockHashes.of(namespace, self.blocks(root, tokens))
            return anchor, BlockHashes.of(namespace, (*found, *self.blocks(found[-1], tokens[len(found) * size :])))
        known = previous.hashes
        self.check(known, namespace)
        if isinstance(known, BlockHashes) and len(known) == len(tokens) // size:
            return anchor, known
        known = known[: len(tokens) // size]
        rest = self.blocks(known[-1] if known else root, tokens[len(known) * size :])
        return anchor, BlockHashes.of(namespace, (*known, *rest))

    def note_hit(self, anchor: int, hashes: Sequence[BlockHash], num_blocks: int) -> None:
        """Of the prompt that `of` hashed last, this many leading blocks are cached: likely to be asked for again."""
        data, known = self._looked_up
        if num_blocks > known:
            self._prefixes.keep(anchor, data, hashes[:num_blocks])

    def check(self, hashes: Sequence[BlockHash], namespace: Namespace) -> None:
        """Refuse hashes made for another namespace.

        Raises:
            InvalidArgument.
        """
        if not isinstance(hashes, BlockHashes) or hashes.namespace is namespace:
            return
        made_for = hashes.namespace
        (one, root), (other, other_root) = self._recent
        if (one is made_for and other is namespace) or (one is namespace and other is made_for):
            same = root is other_root
        else:
            same = made_for == namespace
        if not same:
            raise InvalidArgument(f"a hit looked up in {made_for} was used in {namespace}; look it up again")
