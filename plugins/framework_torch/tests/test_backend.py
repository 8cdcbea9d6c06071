"""What the torch backend does inside: tiles, chunks, and pools of odd strides."""

import numpy as np
import pytest
import torch

from framework.errors import InvalidArgument
from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case, build_problem
from framework_testing.attention_runs import judge, run_attention
from framework_testing.backend import (
    check_extreme_logits_stay_finite,
    check_numbers_match_fp64_over_the_grid,
    check_rows_of_context_zero_give_zeros,
    check_what_is_no_input_changes_no_bit,
)
from framework_torch.backend import TorchBackend


def sized(tile: int, prefill: int = TorchBackend.prefill_bytes) -> type[TorchBackend]:
    """The backend with other sizes of its buffers, bytes."""
    return type("Sized", (TorchBackend,), {"tile_bytes": tile, "prefill_bytes": prefill})


TINY = sized(2048, 4096)
"""Everything in many chunks with a running maximum."""


def spec_of(**changes):
    base = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": "float32", "block_size": 8}
    return AttentionSpec(**(base | changes))


def ready(make, spec):
    backend = make()
    backend.setup(spec, "cpu")
    return backend


@pytest.mark.parametrize(
    "check",
    [
        check_numbers_match_fp64_over_the_grid,
        check_what_is_no_input_changes_no_bit,
        check_rows_of_context_zero_give_zeros,
        check_extreme_logits_stay_finite,
    ],
)
def test_the_running_maximum_over_tiny_chunks_is_right(check):
    check(TINY, "cpu", "small")


def test_long_rows_are_chunked_and_short_ones_are_not():
    spec = spec_of()
    backend = ready(sized(64 * 256), spec)
    problem = build_problem(Case(spec, (1000, 9), (1, 1)))
    calls = []
    gather = backend._attention._gather
    backend._attention._gather = lambda pool, where: (calls.append(tuple(where.shape)), gather(pool, where))[1]
    out, _ = run_attention(backend, problem)
    assert judge(out, problem).ok, judge(out, problem)
    assert calls == [(1, 9)] + [(1, 64)] * 15 + [(1, 40)], calls


@pytest.mark.parametrize(
    ("contexts", "tiles"),
    [
        ((5, 5, 5), 1),
        ((1, 2, 300), 1),
        ((1, 2000), 1),
        ((1, 2, 3, 100_000), 2),
        ((16_000, 16_000, 16_000), 2),
        ((40_000, 40_000), 2),
        ((0, 0), 0),
    ],
)
def test_rows_share_a_tile_while_padding_is_cheap_and_the_tile_has_room(contexts, tiles):
    backend = ready(TorchBackend, spec_of())  # 256 bytes a token, 8 MiB a tile, 512 KiB of padding
    rows = np.nonzero(contexts)[0]
    groups = list(backend._attention._tiler.groups(rows, np.array(contexts, dtype=np.int64)))
    assert len(groups) == tiles, groups
    assert sorted(row for group in groups for row in group) == rows.tolist()


def test_only_the_window_of_a_decode_row_is_gathered():
    spec = spec_of(sliding_window=10)
    backend = ready(TorchBackend, spec)
    problem = build_problem(Case(spec, (500,), (1,)))
    backend.plan(problem.batch)
    assert [tuple(tile.where.shape) for tile in backend._attention._tiles] == [(1, 10)]


def test_attend_plans_a_batch_it_was_not_given():
    spec = spec_of()
    backend, problem = ready(TorchBackend, spec), build_problem(Case(spec_of(), (17, 3), (1, 2)))
    backend.plan(build_problem(Case(spec, (5,), (1,))).batch)
    out = torch.empty_like(problem.q.contiguous())
    backend.attend(problem.q, problem.pool, problem.batch, out)
    assert judge(out, problem).ok, judge(out, problem)


def test_a_row_longer_than_its_table_is_named():
    spec = spec_of()
    backend, problem = ready(TorchBackend, spec), build_problem(Case(spec, (8, 8), (1, 1)), extra_width=0)
    problem.batch.host_context_lens[1] = 9
    with pytest.raises(InvalidArgument, match="row 1 has 9 tokens of context, its block table holds 8"):
        backend.plan(problem.batch)


@pytest.mark.parametrize("changes", [{}, {"soft_cap": 2.0}, {"sliding_window": 100}])
def test_a_long_prefill_is_cut_into_queries_whose_scores_fit(changes):
    spec = spec_of(**changes)
    backend = ready(sized(2**20, 256 * 500), spec)
    problem = build_problem(Case(spec, (700,), (700,)))
    out, _ = run_attention(backend, problem)
    assert judge(out, problem).ok, judge(out, problem)
    assert [tile.queries.shape[1] for tile in backend._attention._tiles] == [256, 256, 188]
    backend = ready(TorchBackend, spec)
    backend.plan(problem.batch)
    assert len(backend._attention._tiles) == (3 if "soft_cap" in changes else 1)
