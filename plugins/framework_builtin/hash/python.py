"""Python's builtin hash of a tuple: vLLM V0's block hash, kept to show what is wrong with it."""

from __future__ import annotations

from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, Namespace, TokenArray


class PythonHash(HashScheme):
    """`hash((is_first, previous hash, *tokens))`, 64 bits. Unsafe: collisions over valid token ids take minutes to
    find, so the allocator verifies every hit; for comparison, not for use.

    Tuples of integers hash alike in every process (PYTHONHASHSEED touches text only), but not on every Python:
    the tuple hash is an implementation detail of CPython 3.8 and later.
    Source: vllm/core/block/prefix_caching_block.py `hash_block_tokens` (V0); weakness: CVE-2025-25183.
    """

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        return _encode(hash((True, block_size, *namespace.encode())))

    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        return _encode(hash((False, int.from_bytes(parent, "little", signed=True), *tokens.tolist())))


def _encode(value: int) -> BlockHash:
    return BlockHash(value.to_bytes(8, "little", signed=True))
