"""Our policies in vLLM's CPU tier, driven in the order its offloading manager calls; without vLLM.

plugins/framework_engines/tests/engines does it with vLLM's own manager, and holds the signatures below against its.
"""

import importlib.util

import pytest
from engine_stand_ins import StandIn

from framework.errors import InvalidArgument, UnknownPlugin, Unsupported
from framework.interfaces.eviction import ScoredPolicy
from framework_engines import as_vllm


class Chunk:
    def __init__(self, chunk_id):
        self.chunk_id, self.ref_cnt = chunk_id, -1


class Context:
    def __init__(self, ends):
        self.ends, self.state = ends, {}

    def set_state(self, value):
        self.state[type(value)] = value

    def get_state(self, cls):
        return self.state.get(cls)

    def get_offload_key_position(self, key):
        return self.ends.get(key)


class Host:
    """What CPUOffloadingManager does with its policy for a request that loads what is there and stores the rest."""

    def __init__(self, policy_class, capacity):
        self.policy, self.capacity, self.resident = policy_class(cache_capacity=capacity), capacity, 0

    def request(self, *keys):
        context = Context({key: 16 * (i + 1) for i, key in enumerate(keys)})
        found = [key for key in keys if self.policy.get(key)]
        for key in found:
            self.policy.get(key).ref_cnt += 1
            self.policy.mark_non_evictable(key)
        for key in found:
            self.policy.get(key).ref_cnt -= 1
            self.policy.mark_evictable(key)
        missing = [key for key in keys if key not in found]
        if missing:
            self.policy.on_store_miss(missing, context)
            self.policy.on_request_access(keys, context)
            self.make_room(len(missing), set(keys))
            for key in missing:
                self.policy.insert(key, Chunk(self.resident), context)
                self.resident += 1
            for key in missing:
                self.policy.get(key).ref_cnt = 0
                self.policy.mark_evictable(key)
        self.policy.on_request_finished((keys,), set(missing), set(found), context)
        return len(found)

    def make_room(self, needed, protected):
        excess = self.resident + needed - self.capacity
        if excess > 0:
            gone = self.policy.evict(excess, protected)
            assert gone is not None, f"{excess} could not be evicted"
            assert len(gone) == excess, gone
            self.resident -= excess


def host(policy, capacity=3):
    return Host(as_vllm(policy, base=StandIn), capacity)


def test_the_least_recently_finished_chunk_goes_first_and_a_prefix_outlives_its_suffix():
    vllm = host("lru", 4)
    assert [vllm.request(b"a", b"b"), vllm.request(b"c", b"d"), vllm.request(b"a", b"b")] == [0, 0, 2]
    gone = vllm.policy.evict(4, set())
    assert [key for key, _ in gone] == [b"d", b"c", b"b", b"a"], gone


@pytest.mark.parametrize(
    ("policy", "hits"), [("lru", [0, 0, 0, 1, 0, 0]), ("fifo", [0, 0, 0, 1, 0, 1]), ("mru", [0, 0, 0, 1, 0, 1])]
)
def test_policies_differ_where_they_should(policy, hits):
    vllm = host(policy)
    names = [b"a", b"b", b"c", b"a", b"d", b"b"]
    assert [vllm.request(name) for name in names] == hits


@pytest.mark.parametrize("policy", ["lru", "s3fifo", "arc", "slru", "w_tinylfu", "gdsf", "clock", "leaf_lru", "ttl"])
def test_a_long_run_keeps_the_counts_of_every_policy(policy):
    vllm = host(policy, 12)
    total = sum(vllm.request(*(b"%d-%d" % (i * i % 13, d) for d in range(1 + i % 4))) for i in range(300))
    held = {key for key, _ in vllm.policy.evict(vllm.resident, set())}
    assert len(held) == vllm.resident <= 12, (len(held), vllm.resident)
    assert total > 0, "a stream without hits shows nothing"
    assert vllm.policy.evict(1, set()) is None
    assert all(vllm.policy.get(key) is None for key in held)


def test_chunks_in_transfer_and_protected_ones_are_never_evicted_and_a_short_eviction_changes_nothing():
    policy = as_vllm("lru", base=StandIn)(3)
    for key in (b"a", b"b", b"c"):
        policy.insert(key, Chunk(0), Context({}))
    assert policy.evict(1, set()) is None, "evicted a chunk whose store is under way"
    for key in (b"a", b"b", b"c"):
        policy.mark_evictable(key)
    policy.mark_non_evictable(b"c")
    assert policy.evict(2, {b"a"}) is None
    assert [policy.get(key) is not None for key in (b"a", b"b", b"c")] == [True] * 3
    assert [key for key, _ in policy.evict(1, {b"a"})] == [b"b"]
    assert [key for key, _ in policy.evict(1, set())] == [b"a"], "a spared chunk lost its place"
    assert policy.evict(0, set()) == []


def test_a_failed_store_and_a_reset_leave_nothing_behind():
    policy = as_vllm("s3fifo", base=StandIn)(2)
    policy.insert(b"a", Chunk(0), Context({}))
    policy.remove(b"a")
    assert policy.get(b"a") is None
    policy.insert(b"a", Chunk(0), Context({}))
    policy.insert(b"b", Chunk(1), Context({}))
    policy.clear()
    assert policy.get(b"b") is None
    assert policy.evict(1, set()) is None
    policy.insert(b"b", Chunk(1), Context({}))


def test_a_policy_that_asks_for_the_depth_gets_it_from_the_positions():
    class DeepestFirst(ScoredPolicy):
        def score(self, block, now):
            return (-block.depth, -block.num_tokens)

    policy = as_vllm(DeepestFirst, base=StandIn, chunk_tokens=16)(3)
    context = Context({b"root": 16, b"mid": 32, b"leaf": 48})
    for key in (b"leaf", b"root", b"mid"):
        policy.insert(key, Chunk(0), context)
        policy.mark_evictable(key)
    assert [key for key, _ in policy.evict(3, set())] == [b"leaf", b"mid", b"root"]


def test_what_cannot_be_exported_is_refused_before_an_engine_starts():
    with pytest.raises(UnknownPlugin):
        as_vllm("lruu", base=StandIn)
    with pytest.raises(Unsupported, match="reads the future"):
        as_vllm("belady", base=StandIn)
    with pytest.raises(InvalidArgument, match="chunk_tokens must be at least 1"):
        as_vllm("lru", base=StandIn, chunk_tokens=0)
    with pytest.raises(Unsupported, match="has no mark_evictable"):
        as_vllm("lru", base=object)


def test_without_vllm_the_missing_package_is_named():
    if importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is installed")
    with pytest.raises(Unsupported, match="No module named 'vllm'"):
        as_vllm("lru")


def test_only_what_a_request_found_is_hit():
    class Watching(ScoredPolicy):
        def score(self, block, now):
            return block.last_access

        def hit(self, blocks, now):
            hits.append([(self.blocks.key[block], self.blocks.depth[block]) for block in blocks])

    hits = []
    vllm = host(Watching)
    vllm.request(b"a")
    assert not hits, "it created the chunk"
    vllm.request(b"a", b"b")
    assert hits == [[(b"a", 0)]]
