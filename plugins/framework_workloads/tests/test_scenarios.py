"""Synthetic workloads: seeded, streaming, shaped as asked, and the same whether served or written as a trace."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
from synthetic_workloads import drawn

from framework.workload import Workload, WorkloadRequest, build, make, stream
from framework_testing import workload_checks
from framework_workloads.trace.own_format import SYNTHETIC, as_trace

SEEDED = ("chat", "no_sharing", "shared_prefix", *SYNTHETIC)


class Everything(Workload):
    """All drawn workloads, one after the other."""

    def requests(self) -> Iterator[WorkloadRequest]:
        for name in SEEDED:
            yield from islice(stream(name, seed=7), 12)


@pytest.mark.parametrize("check", workload_checks[:-1], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SEEDED)
def test_every_drawn_workload_passes_the_kit(name: str, check: Any) -> None:
    check(partial(make, name))


def test_drawn_workloads_are_the_same_in_any_process() -> None:
    workload_checks[-1](Everything)


@pytest.mark.parametrize("name", SEEDED)
def test_another_seed_draws_another_workload(name: str) -> None:
    assert build(name, seed=3) != build(name, seed=4)


def test_the_streams_themselves_have_not_changed() -> None:
    """A changed stream is a changed workload: results of before and after cannot be compared."""
    text = repr([(r.tokens.tolist(), r.output.tolist()) for name in SYNTHETIC for r in drawn(name, seed=1)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "fb82e621fd9750a9"


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_rate_moves_arrivals_and_nothing_else(name: str) -> None:
    slow, fast = drawn(name, rate_per_s=1.0), drawn(name, rate_per_s=4.0)
    by_key = [{r.key: (r.tokens.tolist(), r.output.tolist()) for r in requests} for requests in (slow, fast)]
    assert by_key[0] == by_key[1]
    arrivals = [[r.arrival_s for r in requests] for requests in (slow, fast)]
    for times in arrivals:
        assert times == sorted(times), times
    assert arrivals[0][-1] == pytest.approx(4 * arrivals[1][-1]), "four times as fast"


def test_an_application_has_one_system_prompt() -> None:
    openings: dict[str, set[bytes]] = {}
    for request in drawn("system_prompts", spread=0.0, system_tokens=64, num_requests=60):
        openings.setdefault(request.tenant, set()).add(request.tokens[:64].tobytes())
    assert len(openings) > 3
    assert all(len(found) == 1 for found in openings.values())
    assert len(set.union(*openings.values())) == len(openings), "different applications open differently"


def infinite_rate(name: str, **options: Any) -> float:
    """Blocks that a cache which never evicts hits, over all: the trace names a block by its whole prefix."""
    seen, hits, total = set[int](), 0, 0
    for request in as_trace(stream(name, options), 16):
        ids = request.block_ids.tolist()
        hits += sum(name in seen for name in ids)
        total += len(ids)
        seen.update(ids)
    return hits / total


def test_shuffled_documents_share_less_than_sorted_ones() -> None:
    shuffled, ordered = (infinite_rate("rag", num_requests=200, shuffle=flag) for flag in (True, False))
    assert shuffled < ordered, (shuffled, ordered)
    sets = [
        {d.tobytes() for d in np.array_split(r.tokens[32 : 32 + 4 * 128], 4)}
        for r in drawn("rag", num_requests=3, spread=0.0)
    ]
    assert all(len(documents) == 4 for documents in sets), "four different documents"


def test_forks_ask_for_samples_and_beams() -> None:
    kinds = Counter((r.sampling.n, r.sampling.beam_width) for r in drawn("forks", num_requests=200, beam_share=0.25))
    assert set(kinds) == {(4, 1), (1, 4)}, kinds
    assert 30 <= kinds[(1, 4)] <= 70, kinds
    assert infinite_rate("forks", num_requests=50) < 0.01
