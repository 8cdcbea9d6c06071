"""Jobs of a sweep that would repeat another to the last digit, because nothing in them draws from the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framework import registry
from framework.registry.signatures import signature

_KINDS_OF_A_REPLAY = ("allocator", "eviction", "hash")


class Repeats:
    """Receives each job of a sweep in turn; knows which repeat an earlier one."""

    def __init__(self) -> None:
        self._seen: dict[frozenset[str], str | None] = {}
        """Overrides but for the seed -> the policy whose seed is unused; "" not asked yet; None where it is used."""
        self.names: dict[str, int] = {}
        """What the repeated jobs ran, and how many of them there were."""

    def repeats(self, words: Sequence[str], config: Callable[[], Mapping[str, Any]]) -> bool:
        """Whether the job of these overrides differs from an earlier one in a seed that it does not use.

        Args:
            config: gives the job's configuration: resolved, plain and checked. Asked for the second of such jobs only.
        """
        bare = [word.lstrip("+") for word in words]
        if not any(word.startswith("seed=") for word in bare):
            return False
        rest = frozenset(word for word in bare if not word.startswith("seed="))
        if rest not in self._seen:
            self._seen[rest] = ""
            return False
        if self._seen[rest] == "":
            plain = config()
            self._seen[rest] = None if uses_seed(plain) else str(plain["eviction"]["name"])
        policy = self._seen[rest]
        if policy is None:
            return False
        name = f"eviction={policy}"
        self.names[name] = self.names.get(name, 0) + 1
        return True


def uses_seed(config: Mapping[str, Any]) -> bool:
    """Whether two runs of this configuration with other seeds may differ.

    A component draws from the run's seed if its constructor has a parameter `seed`. A replay of a trace or of a
    recording has no other source of chance; other modes have the model, the workload, sampling and time.
    """
    if config.get("mode") != "replay" or config["workload"]["name"] not in ("trace", "recording"):
        return True
    kinds = ("eviction",) if config.get("executor") == "cache_only" else _KINDS_OF_A_REPLAY
    return any("seed" in signature(registry.load(kind, config[kind]["name"])).names() for kind in kinds)
