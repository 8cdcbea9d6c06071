"""One name a kind of event, whatever the version of the log."""

from __future__ import annotations

from framework.results.events import event_kind


def test_a_published_block_has_one_name_in_logs_of_both_versions():
    assert event_kind({"event": "admit", "step": 1, "block": 2, "key": "aa"}) == "publish"
    assert event_kind({"event": "publish", "step": 1, "block": 2, "key": "aa"}) == "publish"
    assert event_kind({"event": "admit", "step": 1, "request": 0, "sequence": 1, "cached": 0}) == "admit"
    assert event_kind({"event": "log", "version": 2}) == "log"
