"""Blocks that all layers' sliding windows have passed are unreferenced while their request runs."""

import pytest
from fake_engines import FakeModel, drive, expected, fake_engine, prompts, tokens_of

from framework.errors import ConfigError
from framework.sampling import Sampling
from framework_builtin.eviction.lru import Lru

WINDOW = 10


def windowed(allocator="prefix_cow", *, window=WINDOW, **options):
    return fake_engine(allocator, model=FakeModel(window=window), window=window, **options)


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 10, 19])
@pytest.mark.parametrize("chunk", [None, 7])
def test_a_row_keeps_the_blocks_that_its_window_still_reads_and_its_last_full_one(window, chunk):
    """Checked after every step, with blocks of 4; the next token is at the position of those that are computed."""
    engine = windowed(num_blocks=64, max_model_len=200, window=window, chunk_size=chunk)
    request = engine.submit(list(range(23)), Sampling(max_tokens=30, ignore_eos=True))
    seen = []

    def kept(engine):
        (seq,) = request.sequences
        if seq.row < 0:
            return
        computed = int(engine.state.rows.computed[seq.row])
        read = range(max(0, computed + 1 - window), computed)
        blocks = {at // 4 for at in read} | set(range(max(0, computed // 4 - 1), -(-computed // 4)))
        assert engine.allocator.stats().used_blocks == -(-computed // 4) - min(blocks), (computed, blocks)
        seen.append(computed)

    drive(engine, kept)
    assert len(seen) > 28
    assert tokens_of(request) == expected(FakeModel(window=window), request)


def test_what_was_passed_stays_findable_until_it_is_evicted():
    engine = windowed(num_blocks=64)
    first = engine.submit(list(range(16)), Sampling(max_tokens=30))
    while engine.num_unfinished and len(first.sequences[0].generated) < 20 and engine.state.step_number < 20:
        engine.step()
    again = engine.submit(list(range(16)), Sampling(max_tokens=2))
    drive(engine)
    assert again.num_cached_tokens == 12, again


def test_a_pool_that_holds_no_whole_sequence_of_each_serves_them_without_preemption():
    counts = {}
    for window in (WINDOW, None):
        engine = fake_engine(num_blocks=24, max_model_len=64, model=FakeModel(window=WINDOW), window=window)
        requests = [engine.submit([i, i + 1, i + 2], Sampling(max_tokens=50)) for i in range(5)]
        drive(engine)
        counts[window] = engine.metrics.num_preemptions
        assert all(tokens_of(r) == expected(FakeModel(window=WINDOW), r) for r in requests)
    assert counts[WINDOW] == 0 < counts[None], counts


class OddKept(Lru):
    """Declines blocks of even depth, unless they were hit."""

    def keep(self, block, now):
        return bool(self.blocks.depth[block] % 2 or self.blocks.hits[block])


def log_of(allocator, work, **options):
    lines = []
    engine = windowed(allocator, log=lambda event, **facts: lines.append((event, facts)), **options)
    work(engine)
    drive(engine)
    return lines, engine.allocator.stats()


@pytest.mark.parametrize("leaf_only", [False, True])
@pytest.mark.parametrize("hash", ["sha256", "constant"])
@pytest.mark.parametrize("eviction", ["lru", "lfu", OddKept])
def test_the_native_allocator_writes_the_same_log(eviction, hash, leaf_only):
    pytest.importorskip("framework_native")

    def work(engine):
        for i, prompt in enumerate(prompts(12, shared=14, unique=9)):
            engine.submit(prompt, Sampling(max_tokens=6 + 3 * i % 20, n=1 + i % 2))

    options = {"num_blocks": 26, "eviction": eviction, "hash": hash, "preempt_every": 7}
    python = log_of({"name": "prefix_cow", "leaf_only": leaf_only}, work, **options)
    native = log_of({"name": "native_cow", "leaf_only": leaf_only}, work, **options)
    assert python == native
    assert any(event == "evict" for event, _ in python[0])


def test_a_window_of_no_token_is_refused():
    with pytest.raises(ConfigError, match="window must be at least 1, found 0"):
        windowed(window=0)
