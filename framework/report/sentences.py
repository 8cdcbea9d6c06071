"""Sentences of a report: the finding, what it rests on, and where the runs come from."""

from __future__ import annotations

from collections.abc import Iterator

from framework.report import columns
from framework.report.evidence import POLICY_SEED, Comparison, Context, plural
from framework.report.statistics import FEW_RUNS, FEW_SESSIONS, can_test
from framework.report.study import Setting, Study, label
from framework.report.trials import Trials
from framework.results.catalogue import title

_CAPACITIES = frozenset({"cache.num_blocks", "replay.capacity"})
_MOST_COMMANDS, _MOST_TRACES = 3, 4
NEEDS_SCIPY = "Intervals and p values need SciPy: pip install 'kvcache-framework[report]'"


def lead(study: Study) -> str:
    """The finding, in one sentence: who leads by how much, with its interval, and at how many settings."""
    if study.trials is not None:
        return of_search(study.trials)
    online = [made for made in study.comparisons if not study.is_offline(made.challenger)]
    if online:
        ahead = next((made for made in online if made.better and not made.identical), None)
        return _ahead(study, ahead) if ahead is not None else _baseline_leads(study, online)
    best = next((setting for _, setting in _by_metric(study)), None)
    if best is None:
        return f"No run has ended well: {len(study.rows)} in all"
    column = columns.column(study.metric, [best.means[study.metric].value])
    words = f"{title(study.metric)} {column.number(best.means[study.metric].value)} {column.unit}".rstrip()
    gap = best.means.get("gap_to_optimum")
    optimum = f", {100 * gap.value:.1f} % more missed blocks than the optimum" if gap else ""
    return f"{study.label(best)}: {words}{optimum}" if study.keys else f"{words[0].upper()}{words[1:]}{optimum}"


def basis(study: Study) -> str:
    """What the comparison rests on, and what it does not show; empty without a comparison."""
    made = study.comparisons
    if not made or study.trials is not None:
        return ""
    tested = sum(entry.p_adjusted is not None for entry in made)
    units = sorted({entry.difference.unit for entry in made if entry.difference.p is not None})
    parts = [
        f"Runs are paired that differ in {study.baseline_key} alone. Capacities of one trace are averaged, since they "
        "share its requests; runs that repeat each other exactly count once."
    ]
    if units:
        parts.append(
            f"The unit of evidence is the {' or the '.join(units)}; p is two-sided and adjusted for "
            f"{tested} {plural('comparison', tested)} by Holm's method."
        )
    if not can_test():
        parts.append(f"{NEEDS_SCIPY}.")
    elif any(entry.too_few or not entry.difference.unit for entry in made if not entry.identical):
        parts.append(
            f"Not shown: T traces or seeds give no p below 2 / 2^T, {FEW_SESSIONS} sessions or requests in "
            f"{FEW_RUNS} runs are the least to resample, and what repeats nothing is a fact about these runs alone."
        )
    if any("session" in unit or "request" in unit for unit in units):
        parts.append(
            "Sessions, or requests where a trace names none, are drawn with replacement within each trace, in runs "
            "long enough that neighbours hardly correlate; what a draw leaves out still passed through the cache. "
            "Such a verdict holds on these traces, and says nothing about others."
        )
    if POLICY_SEED in units:
        parts.append(
            "Seeds of a policy say how much its own random choices matter on these requests, and nothing about others."
        )
    if cut := study.evidence.pieces():
        parts.append(f"Cut from one recording, and counted as one trace: {'; '.join(cut)}.")
    if any(entry.contradicted for entry in made):
        parts.append("Where traces show opposite differences there is no verdict over all, only one on each.")
    return " ".join(parts)


def ties(study: Study) -> str:
    """Which values have the same results on all these runs; empty where none have."""
    groups: dict[str, list[str]] = {}
    for value, leader in study.ties.items():
        if value != leader:
            groups.setdefault(study.name_of(leader), []).append(study.name_of(value))
    found = [
        f"{', '.join(others)} equal{'s' if len(others) == 1 else ''} {leader}" for leader, others in groups.items()
    ]
    return f"Identical results in every run, at these options: {'; '.join(found)}." if found else ""


def origin(study: Study) -> Iterator[tuple[str, str]]:
    """(what, text) of where the runs come from: traces with checksum, commands, dates, machines, code."""
    traces = {(run.trace_name, entry.sha256) for run in study.rows for entry in run.origin.inputs}
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
    revisions = sorted({_short(run.origin.revision) for run in study.rows if run.origin.revision})
    if revisions:
        several = "; more than one: the numbers may not compare" if len(revisions) > 1 else ""
        changed = "; + has changes beyond it" if any(revision.endswith("+") for revision in revisions) else ""
        yield "code", ", ".join(revisions) + changed + several


def _short(revision: str) -> str:
    return revision[:12] + ("+" if revision.endswith("+") and len(revision) > 12 else "")


def context_label(study: Study, context: Context) -> str:
    """A setting of a comparison in words."""
    keys = [key for key in study.keys if key not in study.compared_keys]
    return label(keys, context.values)


def of_search(found: Trials) -> str:
    """The best trial in words."""
    best, failed = found.best, sum(trial.value is None for trial in found.trials)
    bad = f", {failed} failed" if failed else ""
    if best is None:
        return f"None of {len(found.trials)} trials was good"
    return (
        f"Best of {len(found.trials)} trials{bad}: {found.metric} {best.value:.6g} with {' '.join(best.overrides)} "
        f"(trial {best.number})"
    )


def _ahead(study: Study, made: Comparison) -> str:
    size = len(made.by_setting)
    where = f", best at {made.best_at} of {size} {plural(_setting_word(study), size)}"
    return f"{study.name_of(made.challenger)}: {difference(study, made, ' over ')}{where}. {_shown(study, made)}"


def _baseline_leads(study: Study, online: list[Comparison]) -> str:
    nearest = online[0]
    if nearest.identical:
        return (
            f"{study.baseline}: no {study.baseline_key} is ahead of it; {study.name_of(nearest.challenger)} equals it"
        )
    words = difference(study, nearest, " against ")
    return f"{study.baseline} leads; next is {study.name_of(nearest.challenger)}: {words}. {_shown(study, nearest)}"


def difference(study: Study, made: Comparison, against: str) -> str:
    """`+0.9 points of hit rate over lru, 95 % interval [0.2, 1.6]`."""
    found, column = made.difference, column_of_differences(study)
    amount = f"{column.signed(found.mean)} {column.unit}".rstrip()
    words = f"{amount} of {title(study.metric)}{against}{study.baseline}"
    if found.low is None or found.high is None:
        return words
    return f"{words}, 95 % interval [{column.signed(found.low)}, {column.signed(found.high)}]"


def column_of_differences(study: Study) -> columns.Column:
    """One unit and one precision for every difference of a report."""
    numbers = [number for made in study.comparisons for number in made.by_setting.values()]
    return columns.differences(study.metric, numbers)


def _shown(study: Study, made: Comparison) -> str:
    """What a comparison shows, over all traces and on each."""
    if made.identical:
        return "The results are identical"
    if made.contradicted:
        words = "Traces contradict each other"
    elif made.difference.p is None:
        words = f"Not shown beyond these runs: {made.evidence}"
    else:
        words = f"{'Shown' if made.shown else 'Not shown'}: {made.evidence}, p {p_value(made)}"
    column = column_of_differences(study)
    each = [
        f"{column.signed(alone.difference.mean)} on {name}"
        + (f" ({alone.verdict.partition(' on ')[0]}, p {p_value(alone)})" if alone.p_adjusted is not None else "")
        for name, alone in list(made.by_trace.items())[:_MOST_TRACES]
    ]
    rest = f", and {len(made.by_trace) - _MOST_TRACES} more" if len(made.by_trace) > _MOST_TRACES else ""
    return f"{words}. By trace: {', '.join(each)}{rest}" if each else words


def p_value(made: Comparison) -> str:
    """Adjusted; a dash where there is no test, or where traces contradict each other."""
    if made.p_adjusted is None or made.contradicted:
        return "-"
    return "<0.001" if made.p_adjusted < 0.001 else f"{made.p_adjusted:.3f}"


def _setting_word(study: Study) -> str:
    keys = {key for key in study.keys if key not in study.compared_keys}
    if keys and keys <= _CAPACITIES:
        return "size"
    return "trace" if keys and all(key.startswith("workload") for key in keys) else "setting"


def _by_metric(study: Study) -> list[tuple[float, Setting]]:
    sign = -1 if study.higher_is_better else 1
    found = [(sign * setting.means[study.metric].value, setting) for setting in study.settings
             if study.metric in setting.means]  # fmt: skip
    return sorted(found, key=lambda pair: pair[0])
