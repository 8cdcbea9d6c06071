"""Our policies in libcachesim: the hits of our own replay, and of libcachesim's own LRU."""

import subprocess
import sys

import numpy as np
import pytest
from replay_helpers import flat_paths

from framework.errors import ConfigError, InvalidArgument, UnknownPlugin, Unsupported
from framework.interfaces.workload import WorkloadRequest
from framework_cache_only.paths import build_paths
from framework_cache_only.reference import replay
from framework_engines import as_libcachesim
from framework_engines.host_blocks import build_policy

libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed")


def synthetic(seed, count=3000):
    rng = np.random.default_rng(seed)
    zipf = np.minimum(rng.zipf(1.2, count), 400)
    return np.where(rng.random(count) < 0.7, zipf, 1000 + np.arange(count) % 90).tolist()


def accesses(cache, ids, size=1):
    found = []
    for name in ids:
        request = libcachesim.Request()
        request.obj_id, request.obj_size = name, size
        found.append(cache.get(request))
    return found


def ours(policy, ids, num_blocks):
    paths = flat_paths(
        build_paths(
            WorkloadRequest(arrival_s=0.0, input_tokens=1, output_tokens=1, block_ids=np.array([i]), block_tokens=1)
            for i in ids
        )
    )
    return (replay(paths, build_policy(policy, num_blocks), num_blocks).request_hits > 0).tolist()


@pytest.mark.parametrize("policy", ["lru", "fifo", "s3fifo", "arc", "lfu", "lru_k", "gdsf", "sieve", "random"])
def test_a_policy_hits_in_libcachesim_where_it_hits_in_our_replay(policy):
    ids = synthetic(1)
    theirs, here = accesses(as_libcachesim(policy, 60), ids), ours(policy, ids, 60)
    different = [i for i, pair in enumerate(zip(theirs, here, strict=True)) if pair[0] != pair[1]]
    assert not different, f"{policy}: {len(different)} accesses differ, the first is {different[0]}"
    assert 0 < sum(theirs) < len(ids), f"{policy}: a stream that shows nothing, {sum(theirs)} hits"


@pytest.mark.parametrize(("name", "cls"), [("lru", "LRU"), ("fifo", "FIFO"), ("s3fifo", "S3FIFO")])
@pytest.mark.parametrize("size", [1, 16])
def test_a_policy_hits_access_by_access_as_libcachesims_own(name, cls, size):
    ids = synthetic(2)
    exported = accesses(as_libcachesim(name, 50 * size, object_size=size), ids, size)
    native = accesses(getattr(libcachesim, cls)(50 * size, hashpower=10), ids, size)
    assert exported == native, f"{sum(exported)} hits exported, {sum(native)} native"


def test_an_object_removed_by_the_host_is_gone_from_the_policy():
    cache = as_libcachesim("lru", 2)
    assert accesses(cache, [1, 2, 2]) == [False, False, True]
    assert cache.remove(1)
    assert accesses(cache, [3, 2, 1, 2]) == [False, True, False, True]


def test_one_object_serves_several_caches_and_stays_fresh():
    from framework_builtin.eviction.lru import Lru

    policy = Lru()
    first, second = as_libcachesim(policy, 3), as_libcachesim(policy, 3)
    ids = [1, 2, 3, 1, 4, 2]
    assert accesses(first, ids) == accesses(second, ids), "the caches share state"
    assert not hasattr(policy, "blocks"), "the caller's object was attached"


def test_what_cannot_be_exported_is_refused_with_a_reason():
    with pytest.raises(UnknownPlugin, match="no eviction named 'lruu'"):
        as_libcachesim("lruu", 4)
    with pytest.raises(Unsupported, match="Belady reads the future"):
        as_libcachesim("belady", 4)
    with pytest.raises(InvalidArgument, match="size 3 holds no object of size 4"):
        as_libcachesim("lru", 3, object_size=4)
    with pytest.raises(ConfigError, match="found <object"):
        as_libcachesim(object(), 4)


def test_an_object_of_another_size_is_refused_where_it_appears():
    cache = as_libcachesim("lru", 8, object_size=2)
    with pytest.raises(InvalidArgument, match="object 5 has size 3"):
        accesses(cache, [5], size=3)


def test_importing_the_package_imports_nothing_of_theirs():
    heavy = "{'torch', 'libcachesim', 'vllm', 'sglang', 'transformers'}"
    code = f"import sys, framework_engines; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stdout
