"""Checks of the names that hash schemes give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.guard.boundary import Guard
from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, Namespace, TokenArray


class GuardedHash(Guard):
    """A hash scheme whose names are as many as there are blocks, each non-empty bytes; else a PluginError names it.

    It is handed read-only tokens. `HashScheme.block` is reached through `blocks` alone.
    """

    def __init__(self, scheme: HashScheme, block_size: int) -> None:
        super().__init__("hash scheme", scheme)
        self._block_size = block_size

    def root(self, namespace: Namespace) -> BlockHash:
        """The hash that the namespace's first blocks hang below."""
        root: BlockHash = self.plugin.root(namespace, self._block_size)
        self._check("root", [root])
        return root

    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        """The hash of one full block: `tokens` (block_size,) int32 after `parent`."""
        return self.blocks(parent, tokens)[0]

    def blocks(self, parent: BlockHash, tokens: TokenArray) -> list[BlockHash]:
        """The hashes of all full blocks of `tokens` (n,) int32 after `parent`."""
        count = len(tokens) // self._block_size
        if not count:
            return []
        view = tokens
        if tokens.flags.writeable:
            view = tokens[:]
            view.setflags(write=False)  # a tenth of what assigning to its flags costs
        answer: Any = self.plugin.blocks(parent, view, self._block_size)
        if not isinstance(answer, (list, tuple)) or len(answer) != count:
            text = f"{len(answer)} names" if isinstance(answer, (list, tuple)) else type(answer).__name__
            raise self.fault("blocks", f"must name {count} full blocks in a list, returned {text}")
        self._check("blocks", answer)
        return answer if isinstance(answer, list) else list(answer)

    def _check(self, method: str, answer: Sequence[Any]) -> None:
        if len(answer) == 1 and type(answer[0]) is bytes and answer[0]:
            return
        if [*map(type, answer)].count(bytes) != len(answer) or not all(answer):
            bad = next(one for one in answer if type(one) is not bytes or not one)
            self.wrong(method, "a block's name must be non-empty bytes", bad)
