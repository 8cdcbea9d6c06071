"""What if a plugin inside the allocator misbehaves?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framework.errors import NoCandidate, PluginError
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, BlockId, Namespace, TokenArray

_BYTES = {bytes}


class GuardedPolicy:
    """An eviction policy whose every failure is a PluginError naming class, method and rule.

    It is handed tuples, so it cannot change the allocator's lists.

    Attributes:
        hears_admit, hears_hit: whether the policy overrides that callback; calling one that it inherits does nothing.
        needs_requests: whether the policy reads the last request of blocks.
        in_bulk: whether the policy names many victims by a method of its own, and `victims` may be called.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self.name = type(policy).__name__
        self._victim = policy.victim
        self._evicted = policy.evicted
        self.hears_admit = getattr(policy.admit, "__func__", None) is not EvictionPolicy.admit
        self.hears_hit = getattr(policy.hit, "__func__", None) is not EvictionPolicy.hit
        self.needs_requests = bool(policy.needs_requests)
        self.in_bulk = names_in_bulk(policy)

    def fault(self, method: str, rule: str) -> PluginError:
        return PluginError(f"eviction policy {self.name}.{method}: {rule}")

    def attach(self, blocks: BlockView) -> None:
        try:
            self._policy.attach(blocks)
        except Exception as error:
            raise self.fault("attach", f"raised {error!r}") from error

    def _tell(self, callback: Callable[..., Any], blocks: Sequence[int], now: float) -> None:
        try:
            callback(blocks if type(blocks) is tuple else tuple(blocks), now)
        except Exception as error:
            raise self.fault(callback.__name__, f"raised {error!r} for {len(blocks)} blocks") from error

    def admit(self, blocks: Sequence[int], now: float) -> None:
        self._tell(self._policy.admit, blocks, now)

    def hit(self, blocks: Sequence[int], now: float) -> None:
        self._tell(self._policy.hit, blocks, now)

    def pin(self, blocks: Sequence[int], now: float) -> None:
        self._tell(self._policy.pin, blocks, now)

    def release(self, blocks: Sequence[int], now: float) -> None:
        self._tell(self._policy.release, blocks, now)

    def victim(self, now: float, candidates: bytearray) -> int:
        """The policy's choice, checked: a Python int that names a candidate."""
        try:
            block: Any = self._victim(now)
        except NoCandidate as error:
            raise self.fault("victim", f"raised NoCandidate while {sum(candidates)} candidates are left") from error
        except Exception as error:
            raise self.fault("victim", f"raised {error!r}") from error
        if type(block) is not int:
            raise self.fault("victim", f"must return a block id (int), returned {block!r} ({type(block).__name__})")
        if not 0 < block < len(candidates):
            raise self.fault("victim", f"must name a block 1 to {len(candidates) - 1}, named {block}")
        if not candidates[block]:
            raise self.fault("victim", f"must name a candidate, named block {block}, which is in use, free or evicted")
        return block

    def victims(self, count: int, now: float) -> list[Any]:
        """What the policy's own `victims` answers. Not checked: the caller does, as it takes them."""
        try:
            return list(self._policy.victims(count, now))
        except Exception as error:
            raise self.fault("victims", f"raised {error!r} when asked for {count}") from error

    def evicted(self, block: int, now: float) -> None:
        try:
            self._evicted(BlockId(block), now)
        except Exception as error:
            raise self.fault("evicted", f"raised {error!r} for block {block}") from error


def names_in_bulk(policy: EvictionPolicy) -> bool:
    """Whether `victims` is as specific as `victim` and `evicted`: a subclass may override one of those alone."""
    names = ("victims", "victim", "evicted")
    if any(name in getattr(policy, "__dict__", ()) for name in names):
        return False
    owner = next(kind for kind in type(policy).__mro__ if any(name in vars(kind) for name in names))
    return "victims" in vars(owner) and owner is not EvictionPolicy


class GuardedHash:
    """A hash scheme whose every failure is a PluginError naming class, method and rule.

    It is handed read-only tokens.
    """

    def __init__(self, scheme: HashScheme, block_size: int) -> None:
        self._scheme = scheme
        self._block_size = block_size
        self.name = type(scheme).__name__

    def fault(self, method: str, rule: str) -> PluginError:
        return PluginError(f"hash scheme {self.name}.{method}: {rule}")

    def root(self, namespace: Namespace) -> BlockHash:
        try:
            name = self._scheme.root(namespace, self._block_size)
        except Exception as error:
            raise self.fault("root", f"raised {error!r} for {namespace}") from error
        self._check("root", [name])
        return name

    def blocks(self, parent: BlockHash, tokens: TokenArray) -> list[BlockHash]:
        """The names of all full blocks of `tokens` (n,) int32 after `parent`."""
        count = len(tokens) // self._block_size
        if not count:
            return []
        view = tokens
        if tokens.flags.writeable:
            view = tokens[:]
            view.flags.writeable = False
        try:
            names = self._scheme.blocks(parent, view, self._block_size)
        except Exception as error:
            raise self.fault("blocks", f"raised {error!r} for {len(tokens)} tokens") from error
        if not isinstance(names, (list, tuple)) or len(names) != count:
            found = f"{len(names)} names" if isinstance(names, (list, tuple)) else type(names).__name__
            raise self.fault("blocks", f"must name {count} full blocks in a list, returned {found}")
        self._check("blocks", names)
        return names if isinstance(names, list) else list(names)

    def _check(self, method: str, names: Sequence[Any]) -> None:
        if len(names) == 1 and type(names[0]) is bytes and names[0]:
            return
        if {*map(type, names)} != _BYTES or not all(names):
            bad = next(name for name in names if type(name) is not bytes or not name)
            raise self.fault(method, f"a block's name must be non-empty bytes, found {bad!r} ({type(bad).__name__})")
