"""What a recording of a live engine keeps to itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework_kv_events.file import read_batches
from framework_kv_events.recording import EventVeil, record
from framework_kv_events.schema import BlockStored, EventBatch


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


@pytest.mark.parametrize("tokens", [True, False])
def test_a_recording_has_tokens_and_names_where_they_are_asked_for(tmp_path: Path, tokens: bool) -> None:
    event = BlockStored(block_hashes=[7], parent_block_hash=None, token_ids=[1, 2], block_size=2,
                        lora_name="firm", extra_keys=[["salt"]], session_id="talk")  # fmt: skip
    batches = [(0, EventBatch(ts=1.0, events=[event]))]
    publisher: Any = SimpleNamespace(batches=lambda wait_s: batches, again=None, endpoint="here", num_damaged=0)
    record(publisher, tmp_path / "events", batches=1, tokens=tokens)
    [(_, batch)] = read_batches(tmp_path / "events")
    [written] = batch.events
    assert isinstance(written, BlockStored)
    if tokens:
        assert (written.block_hashes, tuple(written.token_ids)) == ([7], (1, 2))
        assert (written.lora_name, written.extra_keys, written.session_id) == ("firm", [["salt"]], "talk")
    else:
        assert (list(written.token_ids), written.extra_keys) == ([], None)
        assert "firm" not in (tmp_path / "events").read_text()
    header = json.loads((tmp_path / "events").read_text().splitlines()[0])
    assert header["private"] is not tokens
