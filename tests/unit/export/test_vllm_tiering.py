"""A tiering rule before a manager with the methods of vLLM's."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import PluginError, Unsupported
from framework.export.vllm_tiering import as_vllm_spec, with_rule
from framework.interfaces.tiering import Event, TierBlock, Tiering


class Result(Enum):
    HIT = 1
    MISS = 2


class Manager:
    """Stores whatever it is offered."""

    def __init__(self) -> None:
        self.held: list[bytes] = []

    def lookup(self, key: bytes, req_context: Any) -> Result:
        return Result.HIT if key in self.held else Result.MISS

    def prepare_store(self, keys: Any, req_context: Any) -> list[bytes]:
        new = [key for key in keys if key not in self.held]
        self.held += new
        return new


CONTEXT = SimpleNamespace(get_offload_key_position=lambda key: 16 * (key[0] + 1))
KEYS = [bytes([number, 0, 0, 0, 0]) for number in range(3)]


def test_a_threshold_counts_the_offers_of_each_content() -> None:
    manager: Any = with_rule(Manager(), {"name": "on_second_hit", "uses": 3})
    assert manager.prepare_store(KEYS[:1], CONTEXT) == []
    assert manager.prepare_store(KEYS, CONTEXT) == []
    assert manager.prepare_store(KEYS, CONTEXT) == KEYS[:1]
    assert manager.prepare_store(KEYS, CONTEXT) == KEYS[1:]


def test_a_rule_sees_depth_tokens_and_uses_and_only_what_is_not_there() -> None:
    seen: list[tuple[int, int, int, Event]] = []

    class Looks(Tiering):
        def store(self, block: TierBlock, event: Event, now: float) -> bool:
            seen.append((block.depth, block.num_tokens, block.uses, event))
            return block.depth == 0

    manager: Any = with_rule(Manager(), Looks())
    seen.clear()
    manager.prepare_store(KEYS[:2], CONTEXT)
    manager.prepare_store(KEYS[:2], CONTEXT)
    assert seen == [(0, 16, 1, "written"), (1, 32, 1, "written"), (1, 32, 2, "used")]


def test_what_cannot_be_exported_is_refused() -> None:
    for rule in ("never", "on_eviction"):
        with pytest.raises(Unsupported, match="nothing but what is evicted"):
            with_rule(Manager(), rule)


def test_a_rule_that_breaks_its_contract_is_named() -> None:
    class Truthy(Tiering):
        def store(self, block: TierBlock, event: Event, now: float) -> bool:
            return 1  # type: ignore[return-value]

    manager: Any = with_rule(Manager(), Truthy())
    with pytest.raises(PluginError, match=r"Truthy.store: must return a bool"):
        manager.prepare_store(KEYS, CONTEXT)


def test_without_vllm_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "vllm.v1.kv_offload.cpu.spec", None)
    with pytest.raises(Unsupported, match="cannot be imported"):
        as_vllm_spec("write_through")
