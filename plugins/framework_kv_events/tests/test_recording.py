"""What a recording of a live engine keeps to itself."""

from __future__ import annotations

from typing import Any

from framework_kv_events.recording import EventVeil
from framework_kv_events.schema import BlockStored


def test_a_veil_keeps_equality_and_nothing_else() -> None:
    veil, other = EventVeil(), EventVeil()
    stored = BlockStored(block_hashes=[b"x", b"y"], parent_block_hash=b"x", token_ids=[1, 2], block_size=1,
                         lora_name="secret", extra_keys=[["salt"]], session_id="talk", cache_salt="s")  # fmt: skip
    hidden: Any = veil.event(stored)
    assert hidden.parent_block_hash == hidden.block_hashes[0] != hidden.block_hashes[1]
    assert hidden.token_ids == ()
    assert hidden.extra_keys is hidden.cache_salt is None
    assert "secret" not in str(hidden)
    assert "talk" not in str(hidden)
    assert veil.event(stored) == hidden
    assert other.name(b"x") != veil.name(b"x"), "who guesses a prompt cannot look for it"
    assert veil.name(7) == veil.name(7) != veil.name("7")
