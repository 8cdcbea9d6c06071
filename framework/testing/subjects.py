"""How the kits make allocators, and find out what an allocator shares and reserves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.testing.adversarial import Fickle, ReferenceHash
from framework.testing.driver import Driver, Traits, Violation
from framework.testing.hash import spreads
from framework.testing.oracles.eviction import SlowLru
from framework.types import Namespace, RequestId, RequestInfo, as_tokens

Make = Callable[..., Allocator]

PLAIN, SALTED = Namespace(), Namespace(salt="x")


def traits_of(make: Make, *, collides: bool = False, num_blocks: int = 8, block_size: int = 2) -> Traits:
    """What a fresh allocator is seen to do: share, keep tables exact, give one request the whole pool."""
    try:
        return _traits(make, collides, num_blocks, block_size)
    except Exception as error:
        raise Violation(f"the simplest life of one request failed: {error!r}") from error


def _traits(make: Make, collides: bool, num_blocks: int, block_size: int) -> Traits:
    allocator = fresh(make, 8, 2)
    prompt = as_tokens([0, 1, 0, 1, 0])
    allocator.allocate(info(1, 16), prompt[:1], allocator.lookup(prompt[:1], PLAIN))
    exact = len(allocator.table(RequestId(1))) == 1
    allocator.free(RequestId(1))
    allocator.allocate(info(2, 5), prompt, allocator.lookup(prompt, PLAIN))
    allocator.promise(RequestId(2), prompt)
    promises = allocator.lookup(prompt, PLAIN).num_tokens > 0
    allocator.commit(RequestId(2), prompt)
    shares = allocator.lookup(prompt, PLAIN).num_tokens > 0
    idle = fresh(make, num_blocks, block_size)
    capacity = _most_blocks(idle)
    idle.allocate(info(1, 1), prompt[:1], idle.lookup(prompt[:1], PLAIN))
    kept = num_blocks - 1 - _most_blocks(idle) if exact else 0
    return Traits(
        shares=shares,
        exact=exact,
        capacity=capacity * block_size,
        kept=kept,
        promises=promises,
        strict=shares and not collides,
    )


def _most_blocks(allocator: Allocator) -> int:
    """The most blocks that one more request may have now, as `fits` says."""
    for blocks in range(allocator.num_blocks, 0, -1):
        prompt = as_tokens([7] * (blocks * allocator.block_size))
        if allocator.fits(info(9, len(prompt)), prompt, allocator.lookup(prompt, PLAIN)):
            return blocks
    return 0


def info(number: int, tokens: int = 8) -> RequestInfo:
    """A request of this id."""
    return RequestInfo(id=RequestId(number), max_total_tokens=tokens)


def fresh(
    make: Make,
    num_blocks: int,
    block_size: int,
    scheme: HashScheme | None = None,
    policy: EvictionPolicy | None = None,
) -> Allocator:
    """An allocator from those shared values that `make` takes."""
    shared: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": max(block_size, num_blocks * block_size * 2 // 3),
        "hash": scheme or ReferenceHash(),
        "eviction": policy or SlowLru(),
    }
    accepted = inspect.signature(make).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        return make(**shared)
    return make(**{name: value for name, value in shared.items() if name in accepted})


def collides_often(scheme: HashScheme) -> bool:
    """Whether misses through collisions are to be expected: for few bits, and for names that change."""
    return isinstance(scheme, Fickle) or not spreads(scheme)


def driver_of(
    make: Make,
    num_blocks: int,
    block_size: int,
    scheme: HashScheme | None = None,
    policy: EvictionPolicy | None = None,
    traits: Traits | None = None,
) -> Driver:
    """A fresh allocator under a driver that knows its traits."""
    scheme, policy = scheme or ReferenceHash(), policy or SlowLru()
    if traits is None:
        traits = traits_of(make, collides=collides_often(scheme), num_blocks=num_blocks, block_size=block_size)
    allocator = fresh(make, num_blocks, block_size, scheme, policy)
    about = (
        f"{type(allocator).__name__}, {num_blocks} blocks of {block_size} tokens, "
        f"{type(scheme).__name__}, {type(policy).__name__}"
    )
    return Driver(allocator, traits, about, repeats=not isinstance(scheme, Fickle))
