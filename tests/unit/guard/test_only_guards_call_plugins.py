"""Answers that index memory are checked: a run in which the plugins that give them look at who calls."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engines import Heard, make_llm
from watched_plugins import watch

from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.llm import EngineOptions
from framework.sampling import Sampling


def test_only_guards_call_allocators_policies_and_hash_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    others: set[str] = set()
    parts: dict[str, Any] = {
        "allocator": watch(monkeypatch, "allocator", "prefix_cow", Allocator, others),
        "eviction": watch(monkeypatch, "eviction", "fifo", EvictionPolicy, others),
        "hash": watch(monkeypatch, "hash", "sha256", HashScheme, others),
    }
    options = EngineOptions(max_batch_requests=4, max_batch_tokens=16)
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, number] for number in range(6)]
    with make_llm(
        "tiny", num_blocks=24, block_size=2, device="cpu", engine=options, observers=(Heard(),), **parts
    ) as llm:
        for sampling in (Sampling(max_tokens=6), Sampling(max_tokens=6, beam_width=2)):
            for request in llm.generate(prompts, sampling):
                assert request.status.value == "finished", request.reason
        llm.stats()
        llm.engine.check()
        llm.reset()
    assert not others, "\n".join(sorted(others))
