"""Hashes of the full blocks of a prompt, and the roots of namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framework.errors import InvalidArgument
from framework.guard.hash import GuardedHash
from framework.interfaces.allocator import Hit
from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, Namespace, TokenArray

_MAX_NAMESPACES = 65_536


class BlockHashes(tuple[BlockHash, ...]):
    """Chained hashes that know the namespace they were made for."""

    namespace: Namespace

    @classmethod
    def of(cls, namespace: Namespace, hashes: Iterable[BlockHash]) -> BlockHashes:
        """These hashes, made for this namespace."""
        made = cls(hashes)
        made.namespace = namespace
        return made


class BlockHasher:
    """A hash scheme, guarded, with the roots of the namespaces seen.

    A root is a hash and an anchor: an integer below 0 that stands for the namespace in a PrefixIndex.
    """

    def __init__(self, scheme: HashScheme, block_size: int) -> None:
        self._scheme = GuardedHash(scheme, block_size)
        self._block_size = block_size
        self._roots: dict[Namespace, tuple[BlockHash, int]] = {}
        self._last_anchor = 0
        self.blocks = self._scheme.blocks

    def root(self, namespace: Namespace) -> tuple[BlockHash, int]:
        """What the namespace's first blocks hang below: hash and anchor."""
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
            return anchor, BlockHashes.of(namespace, self.blocks(root, tokens))
        known = previous.hashes
        self.check(known, namespace)
        if isinstance(known, BlockHashes) and len(known) == len(tokens) // size:
            return anchor, known
        known = known[: len(tokens) // size]
        rest = self.blocks(known[-1] if known else root, tokens[len(known) * size :])
        return anchor, BlockHashes.of(namespace, (*known, *rest))

    def check(self, hashes: Sequence[BlockHash], namespace: Namespace) -> None:
        """Refuse hashes made for another namespace.

        Raises:
            InvalidArgument.
        """
        if isinstance(hashes, BlockHashes) and hashes.namespace != namespace:
            raise InvalidArgument(f"a hit looked up in {hashes.namespace} was used in {namespace}; look it up again")
