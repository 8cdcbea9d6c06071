"""The extension points: allocator, eviction, hash, backend. An interface knows no implementation."""

CONTRACT = 1
"""The version of these four interfaces as plugins see them: see docs/stability.md."""

CONTRACT_MINOR = 1
"""Counts what was added that plugins made before need not know; docs/stability.md says what."""
