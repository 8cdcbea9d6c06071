"""What a comparison rests on; above all, data from which nothing can be shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import add_sha256, make_run, make_runs

from framework_report.evidence import Comparison
from framework_report.records import collect
from framework_report.study import Study
from framework_report.tables import basis, comparison, lead, ranking, ties


def compare(folder: Path, **options: Any) -> dict[str, Comparison]:
    return {str(made.challenger[0]): made for made in Study(collect([folder]), **options).comparisons}


def test_a_random_policy_in_the_sweep_makes_no_evidence_of_the_copies_of_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for seed in range(8):
        make_runs(tmp_path, {"lru": 0.5, "s3fifo": 0.6, "random": 0.4 + 0.01 * float(rng.random())}, seed=seed)
    found = compare(tmp_path)
    copies = found["s3fifo"]
    assert (copies.verdict, copies.p_adjusted, copies.evidence) == ("not shown", None, "1 trace, no repetition")
    assert copies.difference.interval is None
    assert (found["random"].verdict, found["random"].evidence) == (
        "worse on this trace",
        "8 seeds of a policy, 1 trace",
    )
    assert found["random"].p_adjusted == pytest.approx(2 / 2**8)


def test_best_at_counts_the_settings_that_were_compared(tmp_path: Path) -> None:
    for num_blocks in (8, 16):
        make_runs(tmp_path, {"lru": 0.5, "arc": 0.51}, num_blocks=num_blocks)
    make_runs(tmp_path, {"arc": 0.51}, num_blocks=32)  # the baseline's run was lost
    made = compare(tmp_path)["arc"]
    assert (made.best_at, len(made.by_setting)) == (2, 2)


def test_capacities_of_one_trace_are_not_independent(tmp_path: Path) -> None:
    for num_blocks in (8, 16, 32, 64, 128, 256, 512, 1024):
        rate = 0.5 + num_blocks / 1e5
        make_runs(tmp_path, {"lru": rate, "arc": rate + 0.01}, num_blocks=num_blocks)
    made = compare(tmp_path)["arc"]
    assert (made.verdict, made.p_adjusted, len(made.by_setting)) == ("not shown", None, 8)
    assert made.best_at == 8
    assert made.difference.value == pytest.approx(0.01)
    study = Study(collect([tmp_path]))
    assert lead(study) == (
        "arc: +1.00 points of hit rate over lru, best at 8 of 8 settings. "
        "Not shown beyond these runs: 1 trace, no repetition"
    )


@pytest.mark.parametrize("differ", [True, False])
def test_six_traces_are_evidence_and_six_copies_of_one_are_not(tmp_path: Path, differ: bool) -> None:
    rng = np.random.default_rng(0)
    for trace in range(7):
        sha256, rates = f"{trace if differ else 0}" * 64, {"lru": 0.5, "arc": 0.52 + float(rng.random()) / 100}
        make_runs(tmp_path, rates, path=f"trace{trace}.jsonl", sha256=sha256)
    made = compare(tmp_path)["arc"]
    if differ:
        assert (made.verdict, made.evidence, made.p_adjusted) == ("better", "7 traces", 2 / 2**7)
    else:
        assert (made.verdict, made.evidence) == ("not shown", "1 trace, no repetition"), "one file under seven names"


def test_seeds_are_those_that_every_setting_has_of_both(tmp_path: Path) -> None:
    rates, rng = dict[tuple[str, int, int], float](), np.random.default_rng(0)
    lost = {("arc", 64, 6), ("arc", 128, 7), ("lru", 64, 8)}
    for seed in range(9):
        base = rng.random()
        for eviction, more in (("lru", 0.0), ("arc", 0.01 + 0.002 * seed)):
            for num_blocks in (64, 128):
                rate = rates[eviction, num_blocks, seed] = float(base + more * num_blocks / 64)
                if (eviction, num_blocks, seed) not in lost:
                    make_runs(tmp_path, {eviction: rate}, seed=seed, num_blocks=num_blocks, workload={"name": "chat"})
    made = compare(tmp_path)["arc"]
    assert (made.verdict, made.evidence) == ("better", "6 seeds, 1 trace")
    pairs = {
        num_blocks: [
            rates["arc", num_blocks, seed] - rates["lru", num_blocks, seed]
            for seed in range(9)
            if not {("arc", num_blocks, seed), ("lru", num_blocks, seed)} & lost
        ]
        for num_blocks in (64, 128)
    }
    assert list(map(len, pairs.values())) == [7, 8]
    assert made.difference.value == pytest.approx(np.mean([np.mean(found) for found in pairs.values()]))


def test_a_trace_counts_once_however_many_settings_it_has(tmp_path: Path) -> None:
    for trace, capacities, more in ((0, (8, 16, 32), 0.01), (1, (64,), 0.05)):
        for num_blocks in capacities:
            rates = {"lru": 0.5, "arc": 0.5 + more}
            make_runs(tmp_path, rates, path=f"t{trace}.jsonl", sha256=f"{trace}" * 64, num_blocks=num_blocks)
    assert compare(tmp_path)["arc"].difference.value == pytest.approx(0.03)


def test_the_baseline_s_options_are_the_first_by_name_whatever_was_run_first(tmp_path: Path) -> None:
    for at, (eviction, k) in enumerate((("lru_k", 3), ("lru_k", 2), ("arc", None))):
        options = {} if k is None else {"k": k}
        make_run(tmp_path / f"{at}", result={"hit_rate": 0.5 + 0.1 * at}, eviction=eviction, options=options)
    found = Study(collect([tmp_path]), baseline="eviction=lru_k").comparisons
    assert {made.challenger: round(made.difference.value, 6) for made in found} == {
        ("arc", None): 0.1, ("lru_k", 3): -0.1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (lambda lines: lines[::-1], "60 sessions, 1 trace"),
        (lambda lines: [{**lines[0], "session": None}, *lines[1:]], "1 trace, no repetition"),
        (lambda lines: [{**lines[0], "prompt_tokens": 999}, *lines[1:]], "1 trace, no repetition"),
        (lambda lines: lines[:-1], "1 trace, no repetition"),
    ],
    ids=["ended in another order", "one without a session", "another prompt", "one lost"],
)
def test_sessions_are_compared_where_both_runs_had_the_same_requests(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]], evidence: str
) -> None:
    make_traces(tmp_path, [0.3])
    path = tmp_path / "p0-0" / "requests.jsonl"
    lines = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (made,) = Study(collect([tmp_path])).comparisons
    assert made.evidence == evidence


def test_where_one_request_has_no_session_each_is_a_unit(tmp_path: Path) -> None:
    make_traces(tmp_path, [0.3])
    for path in tmp_path.glob("*/requests.jsonl"):
        path.write_text(path.read_text().replace('"session": "s0"', '"session": null', 1))
    (made,) = Study(collect([tmp_path])).comparisons
    assert "request" in made.difference.unit, made.evidence


def make_capacities(folder: Path, gains: list[float], sessions: int = 600) -> None:
    """Two policies at several capacities of one trace of 600 requests; the second hits `gains` more."""
    prompts, rng = np.full(600, 1000), np.random.default_rng(3)
    for num_blocks, gain in enumerate(gains, start=1):
        base = rng.integers(300, 500, size=600)
        for eviction, more in (("lru", 0 * base), ("arc", 1000 * gain + rng.integers(-30, 31, size=600))):
            run, hits = folder / f"{eviction}{num_blocks}", base + more
            make_run(run, result={"hit_rate": hits.sum() / prompts.sum()}, eviction=eviction, num_blocks=num_blocks)
            write_requests(run, hits, prompts, sessions)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.0373, 0.0069, -0.0111, -0.0091], "differs by setting"),
        ([0.0373, 0.0069, 0.0111, 0.0091], "better on this trace"),
        ([0.0373, 0.0069, -0.0021, 0.0091], "better on this trace"),  # below a tenth of the greatest
    ],
)
def test_capacities_that_contradict_each_other_are_not_pooled(tmp_path: Path, gains: list[float], verdict: str) -> None:
    make_capacities(tmp_path, gains)
    study = Study(collect([tmp_path]))
    (made,) = study.comparisons
    assert (made.verdict, made.shown) == (verdict, verdict.startswith("better")), made
    if not made.shown:
        assert lead(study).endswith("Settings contradict each other"), lead(study)
        assert comparison(study).rows[0][4] == "-", "nor a p"
        assert "no verdict over them" in basis(study)


@pytest.mark.parametrize(("gains", "advised"), [([0.02, -0.018], False), ([0.001], True)])
def test_no_more_sessions_are_asked_for_where_settings_contradict_each_other(
    tmp_path: Path, gains: list[float], advised: bool
) -> None:
    make_capacities(tmp_path, gains)
    (made,) = Study(collect([tmp_path])).comparisons
    assert (made.verdict, "would show" in made.evidence) == ("not shown", advised), made.evidence


def test_settings_that_contradict_each_other_on_every_trace_are_not_pooled(tmp_path: Path) -> None:
    for trace in range(8):
        for num_blocks, gain in ((8, 0.05), (16, -0.02)):
            rates = {"lru": 0.5, "arc": 0.5 + gain + trace / 1e4}
            make_runs(tmp_path, rates, num_blocks=num_blocks, path=f"t{trace}.jsonl", sha256=f"{trace}" * 64)
    made = compare(tmp_path)["arc"]
    assert (made.evidence, made.verdict) == ("8 traces", "differs by setting")


def test_a_difference_that_is_not_shown_says_how_much_would_show_it(tmp_path: Path) -> None:
    for seed, gain in enumerate((0.01, -0.01, 0.02, 0.0, 0.01, -0.004, 0.012)):
        make_runs(tmp_path, {"lru": 0.5, "arc": 0.5 + gain}, seed=seed, workload={"name": "chat"})
    made = compare(tmp_path)["arc"]
    assert made.verdict == "not shown"
    low, high = made.difference.interval
    needed = int(np.ceil(7 * ((high - low) / 2 / made.difference.value) ** 2))
    assert made.evidence == f"7 seeds, 1 trace: about {needed} would show such a difference"


def write_requests(folder: Path, hits: np.ndarray, prompts: np.ndarray, sessions: int) -> None:
    lines = [
        {"request": i, "session": f"s{i % sessions}", "prompt_tokens": int(prompt), "cached_tokens": int(hit)}
        for i, (hit, prompt) in enumerate(zip(hits, prompts, strict=True))
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("sessions", "gain", "verdict"),
    [(60, 0.04, "better on this trace"), (60, 0.0, "not shown"), (5, 0.04, "not shown")],
)
def test_the_sessions_of_one_trace_are_resampled(tmp_path: Path, sessions: int, gain: float, verdict: str) -> None:
    make_capacities(tmp_path, [gain, gain], sessions)
    made = compare(tmp_path)["arc"]
    assert (made.verdict, made.difference.unit, made.difference.count) == (verdict, "session", sessions)
    assert made.difference.interval[0] < made.difference.value < made.difference.interval[1]
    if sessions < 20:
        assert (made.p_adjusted, made.evidence) == (
            None,
            "5 sessions, 1 trace: too few, 35 more would be enough for a test",
        )


def test_policies_with_the_same_results_everywhere_share_a_row_and_the_report_says_so(tmp_path: Path) -> None:
    for num_blocks in (64, 128):
        rates = {"lru": 0.5, "ttl": 0.5, "priority": 0.5, "fifo": 0.4, "arc": 0.6 if num_blocks == 64 else 0.5}
        make_runs(tmp_path, rates, num_blocks=num_blocks)
    study = Study(collect([tmp_path]))
    rows = [(row[0], row[1], row[2]) for row in ranking(study).rows]
    assert rows == [
        ("1", "arc", "64"), ("2", "lru = priority = ttl", "64"), ("5", "fifo", "64"),
        ("1", "arc", "128"), ("1", "lru = priority = ttl", "128"), ("5", "fifo", "128"),
    ]  # fmt: skip
    assert ties(study) == "Identical results in every run, at these options: priority, ttl equal lru."
    verdicts = {row[0]: row[5] for row in comparison(study).rows}
    assert verdicts == {"arc": "not shown", "priority": "equal", "ttl": "equal", "fifo": "not shown"}


def test_a_policy_that_knows_the_future_is_never_best(tmp_path: Path) -> None:
    for eviction, rate in (("lru", 0.5), ("arc", 0.6), ("belady", 0.8)):
        facts = {"eviction_needs_future": True} if eviction == "belady" else {}
        make_run(tmp_path / eviction, result={"hit_rate": rate, **facts}, eviction=eviction)
    study = Study(collect([tmp_path]))
    assert lead(study).startswith("arc: +10.0 points of hit rate over lru, best at 1 of 1 setting.")
    assert comparison(study).rows[0][3] == "knows the future"


def test_nothing_ahead_of_the_baseline_is_said_first(tmp_path: Path) -> None:
    make_runs(tmp_path, {"lru": 0.5, "fifo": 0.4})
    assert lead(Study(collect([tmp_path]))).startswith("lru leads; next is fifo: -10.0 points of hit rate against lru.")


def test_wall_time_repeats_are_called_repeats(tmp_path: Path) -> None:
    for seed in range(6):
        rates = {"lru": 100.0 + seed, "fifo": 90.0 + 1.5 * seed}
        make_runs(tmp_path, rates, metric="output_tokens_per_s", seed=seed)
    made = compare(tmp_path)["fifo"]
    assert (made.evidence, made.verdict) == ("6 repeats, 1 trace", "worse")


def test_an_undeclared_metric_is_compared_without_a_better_or_worse(tmp_path: Path) -> None:
    for seed in range(6):
        make_runs(tmp_path, {"lru": 1.0, "fifo": 2.0 + 0.1 * seed}, metric="eviction_depth", seed=seed)
    assert compare(tmp_path, metric="eviction_depth")["fifo"].verdict == "higher on this trace"


def make_traces(
    folder: Path, shifts: list[float], policies: int = 1, sessions: int = 60, requests: bool = True
) -> None:
    """A run of lru and of each policy on every trace; on trace t the policies hit `shifts[t]` more."""
    for trace, shift in enumerate(shifts):
        for index, eviction in enumerate(["lru", *(f"p{i}" for i in range(policies))]):
            rng = np.random.default_rng([trace, index])
            prompts = np.full(600, 1000)
            hits = 400 + (1000 * shift + rng.integers(-100, 101, size=600) if index else np.zeros(600))
            run = folder / f"{eviction}-{trace}"
            make_run(run, result={"hit_rate": hits.sum() / prompts.sum()}, eviction=eviction, path=f"t{trace}.jsonl")
            add_sha256(run, f"{trace}" * 64)
            if requests:
                write_requests(run, hits, prompts, sessions)


@pytest.mark.parametrize(("shifts", "second"), [([0.3, -0.35], "worse on this trace"), ([0.03, -0.0082], "not shown")])
def test_each_of_two_traces_has_its_verdict_and_opposite_ones_are_not_pooled(
    tmp_path: Path, shifts: list[float], second: str
) -> None:
    """Though over both it is better by their sessions."""
    make_traces(tmp_path, shifts)
    study = Study(collect([tmp_path]))
    (made,) = study.comparisons
    assert {name: alone.verdict for name, alone in made.by_trace.items()} == {
        "t0.jsonl": "better on this trace", "t1.jsonl": second,
    }  # fmt: skip
    assert (made.verdict, made.shown) == ("differs by trace", False)
    assert lead(study).endswith("Traces contradict each other"), lead(study)
    assert [row[1] for row in comparison(study).rows] == ["all", "t0.jsonl", "t1.jsonl"]
    assert comparison(study).rows[0][5] == "-", "nor a p"
    assert "no verdict over all" in basis(study)


def test_evidence_does_not_vanish_when_a_trace_is_added(tmp_path: Path) -> None:
    make_traces(tmp_path, [0.02])
    (alone,) = Study(collect([tmp_path])).comparisons
    assert (alone.verdict, alone.by_trace) == ("better on this trace", {})
    make_traces(tmp_path / "more", [0.0, 0.02][1:], sessions=5)  # a second trace, with too few sessions
    for run in (tmp_path / "more").iterdir():
        add_sha256(run, "f" * 64)
    (made,) = Study(collect([tmp_path])).comparisons
    assert sorted(found.verdict for found in made.by_trace.values()) == ["better on this trace", "not shown"]
    assert (made.verdict, made.evidence) == (
        "not shown", "65 sessions, 2 traces: too few, 35 more would be enough for a test",
    )  # fmt: skip
    assert len(set(made.by_trace)) == 2, "two files of one name have two names"


def test_sessions_of_two_traces_that_agree_are_pooled_and_named(tmp_path: Path) -> None:
    make_traces(tmp_path, [0.02, 0.03])
    (made,) = Study(collect([tmp_path])).comparisons
    assert (made.verdict, made.evidence) == ("better on these traces", "120 sessions, 2 traces")
    smallest = min(made.by_trace.values(), key=lambda alone: alone.difference.p)
    assert smallest.p_adjusted == 2 * smallest.difference.p, "adjusted for both traces"
    assert sorted(alone.difference.count for alone in made.by_trace.values()) == [60, 60]


@pytest.mark.parametrize(("policies", "requests"), [(1, False), (2, False), (2, True)])
def test_six_traces_allow_one_comparison_and_more_take_their_sessions(
    tmp_path: Path, policies: int, requests: bool
) -> None:
    make_traces(tmp_path, [0.1, 0.12, 0.14, 0.15, 0.18, 0.2], policies, requests=requests)
    study = Study(collect([tmp_path]))
    found = {(made.verdict, made.evidence) for made in study.comparisons}
    if policies == 1:
        assert found == {("better", "6 traces")}
    elif requests:
        assert {verdict for verdict, _ in found} == {"better on these traces"}
        assert all(re.fullmatch(r"\d+ (runs of 1 to \d )?sessions, 6 traces", rests) for _, rests in found), found
    else:
        assert found == {("not shown", "6 traces: too few for 2 comparisons, p 0.062 at least; 1 more would be enough")}


def test_pieces_cut_from_one_recording_are_one_trace(tmp_path: Path) -> None:
    make_traces(tmp_path, [0.1, 0.12, 0.14, 0.15, 0.18, 0.2], requests=True)
    (whole,) = Study(collect([tmp_path])).comparisons
    assert whole.evidence == "6 traces"
    _arrive(tmp_path, lambda trace: 5.0 + trace)
    (overlapping,) = Study(collect([tmp_path])).comparisons
    assert overlapping.evidence == "6 traces", "what was recorded at one time was recorded twice, not cut"
    _arrive(tmp_path, lambda trace: 720.0 * trace)
    (apart,) = Study(collect([tmp_path])).comparisons
    assert apart.evidence == "6 traces", "a fifth of its length lies between one's end and the next one's begin"
    _arrive(tmp_path, lambda trace: 600.0 * trace)
    study = Study(collect([tmp_path]))
    (made,) = study.comparisons
    assert made.verdict == "better on this trace"
    assert made.evidence.endswith("sessions, 1 trace"), made.evidence
    assert "Cut from one recording, and counted as one trace: t0.jsonl, t1.jsonl" in basis(study)


def _arrive(folder: Path, begin_s: Callable[[int], float]) -> None:
    """Give every request an arrival, a second after the one before; those of trace t from `begin_s(t)` on."""
    for run in folder.iterdir():
        lines = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
        lines = [{**line, "arrival_s": begin_s(int(run.name[-1])) + line["request"]} for line in lines]
        (run / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_values_that_differ_nowhere_do_not_cost_the_others_their_evidence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for trace in range(6):
        rates = {"lru": 0.5, "arc": 0.6 + 0.01 * float(rng.random()), **{f"copy{i}": 0.5 for i in range(5)}}
        make_runs(tmp_path, rates, path=f"t{trace}.jsonl", sha256=f"{trace}" * 64)
    found = compare(tmp_path)
    assert (found["arc"].verdict, found["arc"].p_adjusted) == ("better", 2 / 2**6)
    assert {found[f"copy{i}"].verdict for i in range(5)} == {"equal"}
    assert {found[f"copy{i}"].p_adjusted for i in range(5)} == {None}


def test_sessions_come_before_the_seeds_of_a_policy(tmp_path: Path) -> None:
    """Seeds of a random policy repeat its own choices; sessions also say how much hangs on what was recorded."""
    rng = np.random.default_rng(1)
    for seed in range(8):
        for eviction, more in (("lru", 0), ("random", 45 if seed < 7 else 5)):
            hits = 300 + more + rng.integers(-30, 31, size=600)
            run = tmp_path / f"{eviction}{seed}"
            make_run(run, result={"hit_rate": hits.sum() / 6e5}, eviction=eviction, seed=seed)
            write_requests(run, hits, np.full(600, 1000), 60)
    made = compare(tmp_path)["random"]
    assert (made.evidence, made.verdict) == ("60 sessions, 1 trace", "better on this trace")
    assert made.difference.interval is not None
    assert made.difference.interval[0] < made.difference.value < made.difference.interval[1], "of all seeds"
