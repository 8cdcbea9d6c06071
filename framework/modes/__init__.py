"""The modes of the framework itself, and the session that every run is held in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.interfaces.mode import Mode, OnBegin

if TYPE_CHECKING:
    from framework.config.config import Config

_OF_A_CLOCK = ("step_s", "costs", "slo_ttft_s", "slo_tpot_s")
_OF_A_ROOFLINE = ("device", "efficiency")


class Serve(Mode):
    """A real model answers a workload."""

    executors = ("model",)

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework.modes.serve import serve

        return serve(config, on_begin)

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        return ("replay", "executor")


class Replay(Mode):
    """The same scheduler, allocators, policies and hash schemes on a trace, with the model taken out."""

    executors = ("none", "roofline", "cache_only")
    workload = "conversations"  # the default one is text, which no replay reads
    repeats = True

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework.modes.replay import replay

        return replay(config, on_begin)

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        executor, below = config.get("executor") or "none", config.get("below") or "none"
        words = ["model", "backend", "device", "cache.memory_fraction", "cache.layout", "faults.poison"]
        if executor == "cache_only":
            words += ["engine", "faults", "hash", *(f"replay.{key}" for key in _OF_A_CLOCK)]
        else:
            words += ["replay.leaf_first", "replay.full_blocks_only"]
        if executor != "roofline":
            words += [f"replay.{key}" for key in _OF_A_ROOFLINE]
            if below in ("none", {"name": "none"}) and (config.get("replay") or {}).get("capacity") is None:
                words.append("replay.shape")  # nothing asks for the bytes of a block
        return words
