"""The modes of the framework itself, and the session that every run is held in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from framework.interfaces.mode import Mode, OnBegin

if TYPE_CHECKING:
    from framework.config.config import Config


class Serve(Mode):
    """A real model answers a workload."""

    executors = ("model",)

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework.modes.serve import serve

        return serve(config, on_begin)

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        return ("replay", "executor")


def unread_of_a_trace(config: Mapping[str, Any]) -> list[str]:
    """What nothing reads that runs on a trace without a model; see `Mode.unread`."""
    words = ["model", "backend", "device", "cache.memory_fraction", "cache.layout", "cache.memory",
             "cache.group_block_size", "faults.poison"]  # fmt: skip
    if config.get("executor") != "roofline":
        words += ["replay.device", "replay.efficiency"]
        below = config.get("below") or "none"
        if below in ("none", {"name": "none"}) and (config.get("replay") or {}).get("capacity") is None:
            words.append("replay.shape")  # nothing asks for the bytes of a block
    return words


class Replay(Mode):
    """The same scheduler, allocators, policies and hash schemes on a trace, with the model taken out."""

    executors = ("none", "roofline")
    workload = "conversations"  # the default one is text, which no replay reads
    repeats: ClassVar[tuple[str, ...]] = ("allocator", "eviction", "hash")

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework.modes.replay import replay

        return replay(config, on_begin)

    @classmethod
    def unread(cls, config: Mapping[str, Any]) -> Sequence[str]:
        return unread_of_a_trace(config)
