"""The attention oracle against PyTorch's own attention and against sums done by hand."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case, build_problem, pairwise, query_lengths
from framework_testing.attention_runs import grid, judge
from framework_testing.oracles.attention import alibi_slopes_for, attend_dense, gather_tokens
from framework_torch.gather import GatherBackend


def spec_of(**changes):
    base = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "dtype": "float64", "block_size": 4}
    return AttentionSpec(**(base | changes))


def solve(spec, contexts, queries, **changes):
    problem = build_problem(Case(spec, contexts, queries))
    for name, value in changes.items():
        setattr(problem.pool, name, value)
    return problem, *attend_dense(problem.q, problem.pool, problem.batch, spec)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("context", "count"), [(1, 1), (9, 1), (9, 9), (11, 4)])
def test_plain_attention_is_pytorchs(layout, context, count):
    spec = spec_of(layout=layout)
    problem, out, _ = solve(spec, (context,), (count,))
    k, v = gather_tokens(problem.pool, problem.batch.block_tables[0].tolist(), context)
    k, v = (t.transpose(0, 1).repeat_interleave(3, dim=0) for t in (k, v))
    seen = torch.ones(count, context, dtype=torch.bool).tril(context - count)
    want = scaled_dot_product_attention(problem.q.transpose(0, 1), k, v, attn_mask=seen).transpose(0, 1)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)


def by_hand(problem, scores_of, sink=None):
    """Softmax of `scores_of(scaled dot product, query position, key position)` for query head 0 of the only row."""
    context, count = problem.case.contexts[0], problem.case.queries[0]
    k, v = gather_tokens(problem.pool, problem.batch.block_tables[0].tolist(), context)
    rows, sums = [], []
    for at in range(count):
        p = context - count + at
        weights = {}
        for j in range(p + 1):
            dot = sum(float(a) * float(b) for a, b in zip(problem.q[at, 0], k[j, 0], strict=True))
            score = scores_of(dot / math.sqrt(problem.spec.head_dim), p, j)
            if score is not None:
                weights[j] = math.exp(score)
        total = sum(weights.values()) + (0.0 if sink is None else math.exp(sink))
        rows.append(sum(weight / total * v[j, 0] for j, weight in weights.items()))
        sums.append(math.log(total))
    return torch.stack(rows), torch.tensor(sums, dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "scores_of", "sink"),
    [
        ({}, lambda s, p, j: s, None),
        ({"sliding_window": 3}, lambda s, p, j: s if p - j < 3 else None, None),
        ({"sliding_window": 1}, lambda s, p, j: s if p == j else None, None),
        ({"soft_cap": 0.7}, lambda s, p, j: 0.7 * math.tanh(s / 0.7), None),
        ({"alibi": True}, lambda s, p, j: s - 0.25 * (p - j), None),
        ({"alibi": True, "soft_cap": 0.7}, lambda s, p, j: 0.7 * math.tanh(s / 0.7) - 0.25 * (p - j), None),
        ({"sinks": True}, lambda s, p, j: s, 1.5),
    ],
)
def test_each_feature_is_what_the_spec_says(changes, scores_of, sink):
    slopes = torch.full((6,), 0.25) if changes.get("alibi") else None
    sinks = torch.full((6,), 1.5) if changes.get("sinks") else None
    problem, out, lse = solve(spec_of(**changes), (7,), (4,), alibi_slopes=slopes, sinks=sinks)
    want, sums = by_hand(problem, scores_of, sink)
    torch.testing.assert_close(out[:, 0], want, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse[:, 0], sums, rtol=0, atol=1e-12)


def test_a_row_of_context_zero_is_zeros_and_minus_infinity():
    _, out, lse = solve(spec_of(), (0, 5), (1, 1))
    assert not out[0].any()
    assert (lse[0] == -math.inf).all()
    assert out[1].isfinite().all()


def test_alibi_slopes_are_the_published_ones():
    assert alibi_slopes_for(8).tolist() == [2.0**-at for at in range(1, 9)]
    assert alibi_slopes_for(6).tolist() == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]


def test_a_verdict_of_nan_or_of_a_wrong_number_is_no_pass():
    problem, out, _ = solve(spec_of(dtype="float32"), (5, 2), (1, 1))
    assert judge(out, problem).ok
    assert not judge(out + 2e-5, problem).ok
    out[1, 0, 0] = math.nan
    assert not judge(out, problem).ok


def test_pairwise_choices_hold_every_pair():
    factors = {"a": (1, 2, 3), "b": "xyzw", "c": (True, False), "d": (0.5, 1.5)}
    rows = pairwise(factors, lambda row: True)
    for a, b in itertools.combinations(factors, 2):
        pairs = {(row[a], row[b]) for row in rows}
        assert pairs == set(itertools.product(factors[a], factors[b])), (a, b)
    assert len(rows) <= 16, f"{len(rows)} rows for 12 pairs of the two largest factors"


@pytest.mark.parametrize("cases", ["small", "full"])
def test_the_grid_holds_every_value_it_names(cases):
    chosen = grid(GatherBackend, "cpu", cases)
    for name in ("block_size", "head_dim", "dtype", "layout", "sliding_window", "soft_cap", "sinks", "alibi"):
        assert len({getattr(case.spec, name) for case in chosen}) > 1, f"{name} never varies"
    assert any(0 in case.contexts for case in chosen)
    assert any(len(set(case.queries)) > 1 and case.queries[0] == 1 for case in chosen), "no mixed batch"
    if cases == "full":
        groups = {case.spec.num_heads // case.spec.num_kv_heads for case in chosen}
        assert groups >= {1, 2, 8, 5}, groups
        assert {case.spec.block_size for case in chosen} == {1, 3, 8, 16, 32, 256}


def test_decode_rows_come_first():
    contexts, queries = query_lengths("mixed", [40, 0, 9, 17], 16)
    assert queries == (1, 1, 1, 17), (contexts, queries)
    assert contexts == (40, 0, 9, 17)
