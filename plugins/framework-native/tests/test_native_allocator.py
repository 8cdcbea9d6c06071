"""The C++ allocators pass the kit and tell the same story as the Python ones, event for event."""

from __future__ import annotations

import gc
import hashlib
import json
import weakref
from functools import partial
from importlib.metadata import entry_points
from random import Random

import numpy as np
import pytest

from framework.api import run
from framework.errors import FrameworkError, InvariantViolation, UnknownRequest
from framework.interfaces.allocator import Hit
from framework.interfaces.hash import DigestScheme
from framework.types import Namespace, RequestId, RequestInfo
from framework_builtin.allocator.prefix import PrefixAllocator
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.eviction.lru import Lru
from framework_builtin.hash.sha256 import Sha256
from framework_native.allocator import NativeAllocator, NativeCowAllocator
from framework_testing import allocator_checks
from framework_testing.allocator import driver_of
from framework_testing.histories import SHARING_AHEAD, play, random_history

PAIRS = {"native": (PrefixAllocator, NativeAllocator), "native_cow": (PrefixCowAllocator, NativeCowAllocator)}
VARIANTS = [{}, {"leaf_only": True}, {"watermark": 0.4}]
NS = (Namespace(), Namespace(salt="x"))


class LongNames(DigestScheme):
    """Names of 64 bytes: more than the core keeps in place."""

    collision_resistant = True

    def digest(self, data: bytes) -> bytes:
        return hashlib.sha512(data).digest()


def load(kind: str, name: str):
    (point,) = entry_points(group=f"framework.{kind}", name=name)
    return point.load()


SCHEMES = {
    "sha256": Sha256,
    "long": LongNames,
    "weak": partial(load("hash", "truncated"), 3),
    **{name: load("hash", name) for name in ("xxh3_128", "xxh64", "constant", "polynomial")},
}


@pytest.mark.parametrize("check", allocator_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", [NativeAllocator, NativeCowAllocator])
def test_a_native_allocator_keeps_its_promises(kind, options, check):
    check(partial(kind, **options))


def story(kind, *, seed: int, scheme, policy, **options) -> list[object]:
    """Everything one allocator answers to one random history of the kit, right calls and wrong ones."""
    draw, answers = Random(seed), []
    size, blocks = draw.choice((1, 2, 3, 16)), draw.randint(2, 24)
    driver = driver_of(partial(kind, **options), blocks, size, scheme(), policy())
    call = driver.call

    def heard(text, method, *allowed):
        answer = call(text, method, *allowed)
        answers.append((text, (answer.num_tokens, answer.blocks) if isinstance(answer, Hit) else repr(answer)))
        return answer

    driver.call = heard
    for step in random_history(draw, 80, longest=6 * size, weights={**SHARING_AHEAD, "free": 6, "reset": 2}):
        play(driver, [step])
        answers += [driver.allocator.stats(), {**driver.tables}]
        driver.allocator.check()
    return [*answers, *driver.events, *(list(hit.hashes) for _, _, hit in driver.hits)]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAIRS)
def test_random_histories_give_the_same_story(name, scheme, options):
    python, native = PAIRS[name]
    evictions = 0
    for seed in range(6):
        expected = story(python, seed=seed, scheme=SCHEMES[scheme], policy=Lru, **options)
        found = story(native, seed=seed, scheme=SCHEMES[scheme], policy=Lru, **options)
        first = next((at for at, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
        assert found == expected, f"seed {seed}, entry {first}: {found[first or 0]}, expected {expected[first or 0]}"
        evictions += sum(len(entry.blocks) for entry in found if getattr(entry, "kind", "") == "evict")
    assert evictions > 10, f"the histories evict too little to judge: {evictions}"


POLICIES = sorted(point.name for point in entry_points(group="framework.eviction"))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_installed_policy_evicts_alike_under_both_cores(policy):
    for seed in range(3):
        for options in VARIANTS[:2]:
            kinds = (PrefixCowAllocator, NativeCowAllocator)
            expected, found = (
                story(kind, seed=seed, scheme=Sha256, policy=load("eviction", policy), **options) for kind in kinds
            )
            assert found == expected, f"{policy}, seed {seed}, {options}"


def test_what_is_foreseen_is_what_a_policy_reads():
    allocator = NativeAllocator(num_blocks=4, block_size=2, hash=Sha256(), eviction=load("eviction", "belady")())
    prompt = np.array([1, 2, 3, 4, 5], np.int32)
    allocator.allocate(RequestInfo(id=RequestId(1), max_total_tokens=9), prompt, allocator.lookup(prompt, NS[0]))
    allocator.commit(RequestId(1), prompt)
    seen, blocks = allocator.view().next_use, allocator.table(RequestId(1)).tolist()
    assert [seen[block] for block in blocks] == [float("inf")] * 3
    with pytest.raises(TypeError):
        allocator.free(RequestId(1), [3.0, "soon"])
    assert [seen[block] for block in blocks] == [float("inf")] * 3, "nothing changed"
    with pytest.raises(UnknownRequest):
        allocator.free(RequestId(2), [1.0])
    allocator.free(RequestId(1), [3.0, 7.0, 9.0])
    assert [seen[block] for block in blocks] == [3.0, 7.0, float("inf")], "only published blocks are noted"
    allocator.check()


@pytest.mark.parametrize("policy", ["belady", "optimum", "lru"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_replay_that_knows_the_future_gives_the_same_events(tmp_path, name, policy):
    draw = Random(3)
    rows = [
        {
            "timestamp": 200 * at,
            "input_length": 512 * 4,
            "output_length": draw.randint(1, 40),
            "hash_ids": [draw.randrange(3), 10 + draw.randrange(4), 20 + draw.randrange(8), 100 + at],
        }
        for at in range(120)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen_ = []
    for allocator in ({"native": "prefix", "native_cow": "prefix_cow"}[name], name):
        result = run(
            {
                "mode": "replay",
                "allocator": {"name": allocator},
                "eviction": {"name": policy},
                "hash": {"name": "sha256"},
                "cache": {"num_blocks": 24, "block_size": 512},
                "workload": {"name": "trace", "path": str(path)},
                "run": {"dir": str(tmp_path / allocator), "progress": False, "events": True},
            }
        )
        seen_.append(
            (result["num_evictions"], result["hit_blocks"], (tmp_path / allocator / "events.jsonl").read_text())
        )
    assert seen_[0] == seen_[1]
    assert seen_[0][0] > 50, "the pool is too large to judge"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 31, 64, 100, 512])
@pytest.mark.parametrize("name", ["sha256", "xxh3_128"])
def test_a_chain_of_hashes_made_in_cpp_is_that_of_the_scheme(name, size):
    draw, scheme = np.random.default_rng(size), SCHEMES[name]()
    allocator = NativeAllocator(num_blocks=9, block_size=size, hash=scheme, eviction=Lru())
    for count in (1, 2, 3, 7):
        tokens = draw.integers(0, 2**31 - 1, count * size, dtype=np.int32)
        expected = scheme.blocks(scheme.root(NS[1], size), tokens, size)
        assert list(allocator.lookup(tokens, NS[1]).hashes) == expected, (size, count)
        again = allocator.lookup(tokens, NS[1], allocator.lookup(tokens[: size * (count - 1)], NS[1]))
        assert list(again.hashes) == expected, "from an earlier hit on"


class PythonLru(Lru):
    """The built-in LRU under another name, so that the core calls it."""


def make(kind=NativeCowAllocator, **options):
    return kind(**{"num_blocks": 8, "block_size": 2, "hash": Sha256(), "eviction": Lru(), **options})


def admitted(scheme=None):
    allocator = NativeCowAllocator(num_blocks=8, block_size=2, hash=scheme or Sha256(), eviction=Lru())
    prompt = np.array([1, 2, 3, 4, 5], np.int32)
    allocator.allocate(RequestInfo(id=RequestId(1), max_total_tokens=9), prompt, allocator.lookup(prompt, NS[0]))
    allocator.commit(RequestId(1), prompt)
    allocator.check()
    return allocator


def test_hashes_of_a_hit_stay_as_they_were_when_its_table_grows():
    allocator = NativeCowAllocator(num_blocks=8, block_size=2, hash=Sha256(), eviction=Lru())
    tokens = np.arange(1, 9, dtype=np.int32)
    hit = allocator.lookup(tokens[:4], NS[0])
    known = list(hit.hashes)
    allocator.allocate(RequestInfo(id=RequestId(1), max_total_tokens=8), tokens[:4], hit)
    allocator.extend(RequestId(1), 8)
    allocator.commit(RequestId(1), tokens)
    assert list(hit.hashes) == known
    assert list(allocator.lookup(tokens, NS[0]).hashes)[:2] == known
    assert len(allocator._core.hashes(RequestId(1))) == 4


@pytest.mark.parametrize("name", ["sha256", "xxh3_128"])
def test_hashes_of_a_hit_are_of_the_tokens_that_were_looked_up(name):
    """They are made when somebody needs them; what the caller does to the array by then changes nothing."""
    scheme, allocator = SCHEMES[name](), make(hash=SCHEMES[name]())
    tokens = np.arange(1, 12, dtype=np.int32)
    expected = scheme.blocks(scheme.root(NS[0], 2), tokens, 2)
    hit, read = allocator.lookup(tokens, NS[0]), allocator.lookup(tokens, NS[0])
    other = np.arange(21, 32, dtype=np.int32)
    tokens[:] = other
    assert list(read.hashes) == expected
    allocator.allocate(RequestInfo(id=RequestId(1), max_total_tokens=11), tokens, hit)
    assert allocator._core.hashes(RequestId(1)) == expected
    assert hit.hashes == read.hashes


@pytest.mark.parametrize("name", ["sha256", "xxh3_128"])
@pytest.mark.parametrize("change", ["commit in parts", "fork", "publish", "free"])
def test_hashes_that_are_yet_to_be_made_are_those_of_the_scheme_whatever_comes_first(name, change):
    scheme, allocator = SCHEMES[name](), make(hash=SCHEMES[name]())
    tokens, other = np.arange(1, 9, dtype=np.int32), np.array([1, 2, 3, 4, 50, 60, 70, 80], np.int32)
    expected, branch = (scheme.blocks(scheme.root(NS[0], 2), ids, 2) for ids in (tokens, other))
    hit, request, child = allocator.lookup(tokens, NS[0]), RequestId(1), RequestId(2)
    allocator.allocate(RequestInfo(id=request, max_total_tokens=8), tokens, hit)
    if change == "commit in parts":
        for length in (3, 4, 7, 8):
            allocator.commit(request, tokens[:length])
            allocator.check()
    elif change == "fork":
        allocator.fork(request, RequestInfo(id=child, max_total_tokens=8), 4)
        allocator.extend(child, 8)
        allocator.commit(child, other)
        assert allocator._core.hashes(child) == branch
    elif change == "publish":
        allocator.publish(request, tokens[:6])
        assert allocator.lookup(tokens, NS[0]).num_tokens == 6
    else:
        allocator.free(request)
    allocator.check()
    assert list(hit.hashes) == expected
    if change != "free":
        allocator.commit(request, tokens)
        assert allocator._core.hashes(request) == expected
        assert allocator.lookup(np.append(tokens, 9).astype(np.int32), NS[0]).num_tokens == 8
    allocator.check()


def test_a_lookup_hashes_what_it_needs_and_commit_the_rest():
    allocator = NativeCowAllocator(num_blocks=64, block_size=2, hash=Sha256(), eviction=Lru())
    hashed, tokens = allocator._core.hashed_blocks, np.arange(80, dtype=np.int32)
    hit = allocator.lookup(tokens, NS[0])
    assert hashed() < 8, "the first block is not there"
    assert len(hit.hashes) == 40
    allocator.allocate(RequestInfo(id=RequestId(1), max_total_tokens=80), tokens, hit)
    allocator.commit(RequestId(1), tokens)
    assert hashed() == 40
    assert list(hit.hashes) == Sha256().blocks(Sha256().root(NS[0], 2), tokens, 2)
    assert hashed() == 40, "none is made twice"


def test_namespaces_differ_by_value_not_by_object():
    allocator, tokens = make(), np.arange(1, 6, dtype=np.int32)
    info = {space: RequestInfo(id=RequestId(at), max_total_tokens=9, namespace=space) for at, space in enumerate(NS)}
    for _ in range(3):  # both namespaces are known from the second round on
        for space in NS:
            hit, equal = allocator.lookup(tokens, space), Namespace(salt=space.salt)
            other = NS[1] if space is NS[0] else NS[0]
            assert allocator.fits(info[space], tokens, allocator.lookup(tokens, equal))
            with pytest.raises(FrameworkError, match="was used in"):
                allocator.fits(info[other], tokens, hit)


@pytest.mark.parametrize("scheme", ["sha256", "xxh64"])
@pytest.mark.parametrize(
    ("column", "value", "invariant"),
    [("ref", 2, "I2"), ("ref", -1, "I6"), ("candidate", 1, "I5"), ("children", 7, "I20"), ("depth", 4, "I22")],
)
def test_check_names_the_broken_invariant(scheme, column, value, invariant):
    allocator = admitted(SCHEMES[scheme]())
    allocator._columns[column][int(allocator.table(RequestId(1))[0])] = value
    with pytest.raises(InvariantViolation, match=rf"\b{invariant}: "):
        allocator.check()


def test_a_policy_cannot_write_to_the_facts():
    view = make().view()
    for name in ("depth", "hits", "last_access", "next_use"):
        with pytest.raises(TypeError):
            getattr(view, name)[1] = 3
    assert view.num_blocks == 8
    assert list(view.key) == [None] * 9
    assert view.num_tokens[1] == 2


def test_the_facts_outlive_the_allocator():
    view = make().view()
    gc.collect()
    assert list(view.hits) == [0] * 9


def test_an_allocator_in_a_cycle_is_collected():
    class Holder:
        def hear(self, event):
            pass

    holder = Holder()
    holder.allocator = NativeCowAllocator(num_blocks=4, block_size=2, hash=Sha256(), eviction=PythonLru())
    holder.allocator.listen(holder.hear)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None, "listener, allocator and core keep each other alive"
