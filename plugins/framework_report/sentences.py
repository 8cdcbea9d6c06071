"""Sentences of a report: the finding, what it rests on, and where the runs come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from framework.results.catalogue import title
from framework_report.columns import column as column_of
from framework_report.columns import column_of_differences
from framework_report.evidence import Comparison, plural
from framework_report.statistics import FEW_RUNS, FEW_SESSIONS
from framework_report.study import Study
from framework_report.trials import Trials

_MOST_COMMANDS = 3


def lead(study: Study) -> str:
    """The finding, in one sentence: who leads by how much, with its interval, and at how many settings."""
    if study.trials is not None:
        return _of_search(study.trials)
    online = [made for made in study.comparisons if made.challenger not in study.evidence.offline]
    if online:
        ahead = next((made for made in online if made.better and not made.identical), None)
        return _baseline_leads(study, online[0]) if ahead is None else _ahead(study, ahead)
    ranked = [setting for setting in sorted(study.settings, key=study.order) if study.metric in setting.means]
    if not ranked:
        return f"No run has ended well: {len(study.rows)} in all"
    mean, gap = ranked[0].means[study.metric].value, ranked[0].means.get("gap_to_optimum")
    column = column_of(study.metric, [mean])
    words = f"{title(study.metric)} {column.number(mean)} {column.unit}".rstrip()
    optimum = f", {100 * gap.value:.1f} % more missed blocks than the optimum" if gap else ""
    return f"{study.label(ranked[0])}: {words}{optimum}" if study.keys else f"{words[0].upper()}{words[1:]}{optimum}"


def headline(study: Study) -> str:
    """One line: how many runs, what became of them, ranked by what."""
    counts = Counter(row.status for row in study.rows)
    states = ", ".join(f"{counts[status]} {status}" for status in sorted(counts, key=lambda s: (s != "ok", s)))
    ranked = f"; ranked by {title(study.metric)}, {'lower' if study.higher_is_better is False else 'higher'} is better"
    return f"{len(study.rows)} {plural('run', len(study.rows))} ({states}){ranked if study.metric else ''}"


def basis(study: Study) -> str:
    """What the comparison rests on, and what it does not show."""
    made = study.comparisons
    tested = sum(entry.p_adjusted is not None for entry in made)
    parts = [
        f"Runs are paired that differ in {study.baseline_key} alone. Capacities of one trace are averaged, since they "
        "share its requests; runs that repeat each other exactly count once. p is two-sided and adjusted for "
        f"{tested} {plural('comparison', tested)} by Holm's method: T traces or seeds give none below 2 / 2^T, and "
        f"{FEW_SESSIONS} sessions (requests where a trace names none) in {FEW_RUNS} runs are the least to draw from "
        "with replacement. A verdict by these, or by seeds of a policy, says nothing about other traces."
    ]
    if cut := study.evidence.pieces():
        parts.append(f"Cut from one recording, and counted as one trace: {'; '.join(cut)}.")
    opposed = {entry.contradicted for entry in (*made, *(alone for entry in made for alone in entry.by_trace.values()))}
    if "trace" in opposed:
        parts.append("Where traces have opposite differences there is no verdict over all, only one on each.")
    if "setting" in opposed:
        parts.append(
            "Where settings of one trace have opposite differences, of which the lesser is a tenth of the greatest or "
            "more, there is no verdict over them: choose one by its row in the table of differences."
        )
    return " ".join(parts)


def ties(study: Study) -> str:
    """Which values have the same results on all these runs; empty where none have."""
    groups: dict[str, list[str]] = {}
    for value, leader in study.evidence.ties.items():
        if value != leader:
            groups.setdefault(study.name_of(leader), []).append(study.name_of(value))
    equalities = [
        f"{', '.join(others)} equal{'s' if len(others) == 1 else ''} {leader}" for leader, others in groups.items()
    ]
    return f"Identical results in every run, at these options: {'; '.join(equalities)}." if equalities else ""


def origin(study: Study) -> Iterator[tuple[str, str]]:
    """(what, text) of where the runs come from: traces with checksum, commands, dates, machines, code."""
    traces = {(run.trace_name, sha256) for run in study.rows for sha256 in run.origin.inputs}
    named = {run.trace_name for run in study.rows if run.trace_name and not run.origin.inputs}
    for name, sha256 in sorted(traces):
        yield "trace", f"{name}, SHA-256 {sha256 or 'unknown'}"
    if named:
        yield "workload", ", ".join(sorted(named))
    commands = list(dict.fromkeys(run.origin.command for run in study.rows if run.origin.command))
    for command in commands[:_MOST_COMMANDS]:
        yield "command", command
    if len(commands) > _MOST_COMMANDS:
        yield "command", f"and {len(commands) - _MOST_COMMANDS} more, in each run's provenance.json"
    dates = sorted(run.origin.date for run in study.rows if run.origin.date)
    if dates:
        yield "date", f"{dates[0]} UTC" if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]} UTC"
    for machine in sorted({run.origin.machine for run in study.rows if run.origin.machine}):
        yield "machine", machine
    revisions = sorted({run.origin.revision for run in study.rows if run.origin.revision})
    if revisions:
        several = "; more than one: the numbers may not compare" if len(revisions) > 1 else ""
        changed = "; + has changes beyond it" if any(revision.endswith("+") for revision in revisions) else ""
        yield "code", ", ".join(revisions) + changed + several


def _of_search(search: Trials) -> str:
    """The best trial in words."""
    best, failed = search.best, sum(trial.value is None for trial in search.trials)
    bad = f", {failed} failed" if failed else ""
    if best is None:
        return f"None of {len(search.trials)} trials was good"
    return (
        f"Best of {len(search.trials)} trials{bad}: {search.metric} {best.value:.6g} with {' '.join(best.overrides)} "
        f"(trial {best.number})"
    )


def _ahead(study: Study, made: Comparison) -> str:
    size = len(made.by_setting)
    where = f", best at {made.best_at} of {size} {plural('setting', size)}"
    return f"{study.name_of(made.challenger)}: {_difference(study, made, 'over')}{where}. {_shown(made)}"


def _baseline_leads(study: Study, nearest: Comparison) -> str:
    name = study.name_of(nearest.challenger)
    if nearest.identical:
        return f"{study.baseline}: no {study.baseline_key} is ahead of it; {name} equals it"
    words = _difference(study, nearest, "against")
    return f"{study.baseline} leads; next is {name}: {words}. {_shown(nearest)}"


def _difference(study: Study, made: Comparison, against: str) -> str:
    """`+0.9 points of hit rate over lru, 95 % interval [0.2, 1.6]`."""
    difference, column = made.difference, column_of_differences(study)
    amount = f"{column.signed(difference.value)} {column.unit}".rstrip()
    words = f"{amount} of {title(study.metric)} {against} {study.baseline}"
    if difference.interval is None:
        return words
    return f"{words}, 95 % interval [{', '.join(map(column.signed, difference.interval))}]"


def _shown(made: Comparison) -> str:
    """What a comparison shows, over all traces."""
    if made.contradicted:
        return f"{made.contradicted.capitalize()}s contradict each other"
    if made.difference.p is None:
        return f"Not shown beyond these runs: {made.evidence}"
    return f"{'Shown' if made.shown else 'Not shown'}: {made.evidence}, p {made.p}"
