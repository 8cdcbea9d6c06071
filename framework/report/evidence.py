"""What a study shows of one value against the baseline: differences by setting, pooled, and what they rest on.

NOTE 1: a difference is taken within a context, which is everything that varied but the compared component and the seed.
Contexts of one trace (capacities, say) share its requests, so they are averaged and never counted as independent.
NOTE 2: the unit of evidence is chosen for each compared pair, the first of these that can show something: traces; seeds
that draw the workload; sessions, drawn within each trace; seeds of a random policy. The last two speak for those traces
alone. Runs that repeat each other exactly are copies of one observation, whatever their seeds are; traces of which one
begins where another ends were cut from one recording, and are one.
NOTE 3: sign flips of N units cannot give a p below 2 / 2^N: with C comparisons N units can show something only if C
times that is at most 5 %, see `Comparison.too_few`.
NOTE 4: over several traces each has a verdict of its own, adjusted for all of them; where they contradict each other
there is no verdict over all.
NOTE 5: a session is what one user or agent sent; where a trace names none, each request is a unit of its own. What a
resample leaves out still passed through the cache: intervals say how much a difference hangs on which sessions were
recorded, not how a cache would fare without them.
."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.errors import FrameworkError
from framework.files.jsonl import iter_objects
from framework.report.statistics import Difference, Floats, Interval, can_test, holm, least_p, paired, rate, sessions
from framework.results.catalogue import is_wall_time
from framework.results.layout import REQUESTS
from framework.results.metric import is_number
from framework.results.records import Run
from framework.results.settings import Value

if TYPE_CHECKING:
    from framework.report.study import Study

_MOST_BYTES = 300_000_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sums over each session of one run.

    Attributes:
        named: whether sessions are the trace's own; else each is a request.
        labels: in order of the first request.
        hit_tokens, prompt_tokens: (U,) of each.
        begin_s, end_s: first and last arrival; None where the lines do not say.
    """

    named: bool
    labels: tuple[str, ...]
    hit_tokens: Floats
    prompt_tokens: Floats
    begin_s: float | None = None
    end_s: float | None = None

    @property
    def word(self) -> str:
        """What a unit is called in a report."""
        return "session" if self.named else "request"

    def goes_on_in(self, other: Sessions) -> bool:
        """Whether `other` begins where this ends, in time of one clock: then both were cut from one recording.

        A recording of its own begins at 0, or at a date of its own.
        """
        if self.begin_s is None or self.end_s is None or other.begin_s is None or other.begin_s <= 0:
            return False
        return 0 <= other.begin_s - self.end_s <= 0.1 * (self.end_s - self.begin_s)


def sessions_of(run: Run) -> Sessions | None:
    """None where the run left no line a request, too many of them, or lines that do not say what was hit."""
    path = run.path / REQUESTS
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        lines = sorted(_lines(run), key=lambda line: _number(line.get("request")))
    except (FrameworkError, OSError):
        return None
    hits, prompts = ([line.get(key) for line in lines] for key in ("cached_tokens", "prompt_tokens"))
    if not lines or not all(map(is_number, (*hits, *prompts))) or not any(prompts):
        return None
    names = [line.get("session") for line in lines]
    named = all(name not in (None, "") for name in names)
    places: dict[str, int] = {}
    units = np.array([places.setdefault(str(name if named else i), len(places)) for i, name in enumerate(names)])
    arrivals = [_number(line.get("arrival_s")) for line in lines if is_number(line.get("arrival_s"))]
    hit, prompt = (np.bincount(units, weights=np.array(column, dtype=np.float64)) for column in (hits, prompts))
    times = min(arrivals, default=None), max(arrivals, default=None)
    return Sessions(named, tuple(places), hit.astype(np.float64), prompt.astype(np.float64), *times)


def mean_hits(runs: Sequence[Run], known: dict[str, Sessions | None]) -> Sessions | None:
    """The mean over runs that differ in their seed alone; None unless all have the same sessions."""
    found = []
    for run in runs:
        key = str(run.path)
        if key not in known:
            known[key] = sessions_of(run)
        found.append(known[key])
    first = found[0] if found else None
    if first is None or any(other is None or not alike(first, other) for other in found):
        return None
    hits = np.mean([other.hit_tokens for other in found if other is not None], axis=0)
    return replace(first, hit_tokens=hits)


def alike(one: Sessions, other: Sessions) -> bool:
    """Whether two runs had the same requests."""
    return one.labels == other.labels and bool(np.array_equal(one.prompt_tokens, other.prompt_tokens))


def _lines(run: Run) -> Sequence[Mapping[str, object]]:
    return [line for _, line in iter_objects(run.path / REQUESTS, FrameworkError)]


def _number(value: Any) -> float:
    return float(value) if is_number(value) else 0.0


Key = tuple[Value, ...]
Differences = dict["Context", dict[Value, float]]
POLICY_SEED = "seed of a policy"
_BY_SESSION = "hit_rate"
_BEYOND_TRACES = frozenset({"trace", "seed", "repeat"})


@dataclass(frozen=True, slots=True)
class Context:
    """What the runs of a pair have in common.

    Attributes:
        values: of the study's keys without the compared ones.
        trace: tells one workload's content from another's.
    """

    values: Key
    trace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One value of the compared key against the baseline's.

    Attributes:
        challenger: its values of the compared keys: the component, then its options that varied.
        difference: over all settings.
        by_setting: context -> mean difference there.
        p_adjusted: None where there is no test.
        too_few: what more evidence it would take for a test; empty where there is one.
        better: whether the difference is to the better; None where neither direction is.
        best_at: of the contexts in `by_setting`, those in which no other online policy is better.
        identical: every result of every pair is equal.
        num_traces: recordings that the pair was compared on.
        by_trace: name of a trace -> the comparison on it alone, where there are several; adjusted over all of them.
    """

    challenger: Key
    difference: Difference
    by_setting: Mapping[Context, float]
    p_adjusted: float | None
    better: bool | None
    best_at: int
    identical: bool
    num_traces: int
    too_few: str = ""
    by_trace: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def contradicted(self) -> bool:
        """Whether one trace shows a difference and another the opposite."""
        return len({made.difference.mean > 0 for made in self.by_trace.values() if made.shown}) > 1

    @property
    def shown(self) -> bool:
        """Whether the difference is beyond chance at 5 %, adjusted for the number of comparisons."""
        return not self.contradicted and self.p_adjusted is not None and self.p_adjusted <= 0.05

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.identical:
            return "equal"
        if self.contradicted:
            return "differs by trace"
        if not self.shown:
            return "not shown"
        if self.better is None:
            word = "higher" if self.difference.mean > 0 else "lower"
        else:
            word = "better" if self.better else "worse"
        if self.difference.unit in _BEYOND_TRACES:
            return word
        return f"{word} on {'this trace' if self.num_traces == 1 else 'these traces'}"

    @property
    def evidence(self) -> str:
        """What the verdict rests on, or why there is none."""
        traces = f"{self.num_traces} trace{'s' if self.num_traces != 1 else ''}"
        if self.identical:
            return f"identical results, {traces}"
        count, unit = self.difference.count, self.difference.unit
        if not unit:
            return f"{traces}, no repetition"
        words = f"{count:,} {plural(unit, count)}"
        words = words if unit == "trace" else f"{words}, {traces}"
        return f"{words}: {self.too_few}" if self.too_few else words


class Evidence:
    """All comparisons of a study with its baseline.

    Args:
        study: with a baseline and a metric.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._metric = study, study.metric
        self._compared = study.compared_keys
        self._known: dict[str, Sessions | None] = {}
        self._names: dict[str, str] = {}
        self.table: dict[Key, dict[Context, dict[Value, list[Run]]]] = {}
        for run in study.good:
            if run.number(self._metric) is not None:
                value = tuple(run.settings.get(key) for key in self._compared)
                rest = tuple(run.settings.get(key) for key in study.keys if key not in self._compared)
                seeds = self.table.setdefault(value, {}).setdefault(Context(rest, run.trace), {})
                seeds.setdefault(run.settings.get("seed"), []).append(run)

    def comparisons(self) -> list[Comparison]:
        """Best first; those without a test are among them."""
        reference = self._reference()
        if reference is None:
            return []
        pairs = {value: made for value in self.table if value != reference if (made := self._pairs(reference, value))}
        num = sum(not _identical(differences) for differences in pairs.values())
        found = _adjusted([self._compare(reference, *pair, num) for pair in pairs.items()])
        parts = [
            (place, name, {context: seeds for context, seeds in differences.items() if context.trace == trace})
            for place, differences in enumerate(pairs.values())
            for trace, name in self._traces(differences).items()
        ]
        num = sum(not _identical(part) for _, _, part in parts)
        alone = _adjusted([self._compare(reference, found[place].challenger, part, num) for place, _, part in parts])
        for place in range(len(found)):
            mine = {name: made for (at, name, _), made in zip(parts, alone, strict=True) if at == place}
            found[place] = replace(found[place], by_trace=mine if len(mine) > 1 else {})
        sign = 1 if self._study.higher_is_better else -1
        return sorted(found, key=lambda made: (-sign * made.difference.mean, str(made.challenger)))

    def interval(self, runs: Sequence[Run]) -> Interval | None:
        """Of the ranked metric over the sessions of these runs' trace; None where it is not counted by session."""
        found = mean_hits(runs, self._known) if self._metric == _BY_SESSION else None
        return None if found is None else rate(found.hit_tokens, found.prompt_tokens)

    @cached_property
    def recordings(self) -> dict[str, str]:
        """Trace -> the first of those that were cut from one recording; itself where it is whole."""
        found: dict[str, Sessions | None] = {}
        for contexts in self.table.values():
            for context, seeds in contexts.items():
                if context.trace not in found:
                    found[context.trace] = mean_hits(next(iter(seeds.values()))[:1], self._known)
        first = {trace: trace for trace in found}
        for one, ahead in found.items():
            for other, behind in found.items():
                if ahead is not None and behind is not None and one != other and ahead.goes_on_in(behind):
                    first = {trace: first[one] if root == first[other] else root for trace, root in first.items()}
        return first

    def ties(self) -> dict[Key, Key]:
        """Value -> the first value with exactly the same results in every context; itself where it is the first."""
        if is_wall_time(self._metric):
            return {value: value for value in self.table}
        firsts: dict[object, Key] = {}
        return {value: firsts.setdefault(self._signature(value), value) for value in self._in_order()}

    def means(self, value: Key) -> dict[Context, float]:
        """Context -> mean over the seeds."""
        return {
            context: float(np.mean([self._number(runs) for runs in seeds.values()]))
            for context, seeds in self.table[value].items()
        }

    def best_at(self) -> dict[Key, frozenset[Context]]:
        """Value -> the contexts in which no other online policy is better."""
        sign = 1 if self._study.higher_is_better else -1
        means = {value: self.means(value) for value in self.table if not self._study.is_offline(value)}
        contexts = {context for found in means.values() for context in found}
        best = {c: max(sign * found[c] for found in means.values() if c in found) for c in contexts}
        return {
            value: frozenset(c for c, number in found.items() if sign * number == best[c])
            for value, found in means.items()
        }

    def _in_order(self) -> list[Key]:
        reference = self._reference()
        return sorted(self.table, key=lambda value: (value != reference, tuple(map(str, value))))

    def _reference(self) -> Key | None:
        of_baseline = [value for value in self.table if value[0] == self._study.baseline]
        return min(of_baseline, key=lambda value: tuple(map(str, value)), default=None)

    def pieces(self) -> list[str]:
        """The names of traces that were cut from one recording, a text for each recording."""
        groups: dict[str, list[str]] = {}
        for trace, name in self._traces(context for contexts in self.table.values() for context in contexts).items():
            groups.setdefault(self.recordings[trace], []).append(name)
        return sorted(", ".join(sorted(names)) for names in groups.values() if len(names) > 1)

    def _traces(self, differences: Iterable[Context]) -> dict[str, str]:
        """Trace -> its name, and where others have it the begin of its checksum."""
        if not self._names:
            names = {run.trace: run.trace_name for run in self._study.good}
            same = Counter(names.values())
            self._names = {t: name if same[name] == 1 else f"{name} ({t[:6]})" for t, name in names.items()}
        return {context.trace: self._names[context.trace] for context in differences}

    def _compare(self, reference: Key, value: Key, differences: Differences, num_comparisons: int) -> Comparison:
        by_setting = {context: float(np.mean(list(seeds.values()))) for context, seeds in differences.items()}
        by_trace = _by_trace(by_setting)
        mean = float(np.mean(list(by_trace.values())))
        identical, too_few, difference = _identical(differences), "", Difference(mean=0.0)
        if not identical:
            difference, too_few = self._difference(reference, value, differences, mean, num_comparisons)
        higher = self._study.direction
        return Comparison(
            challenger=value,
            difference=difference,
            by_setting=by_setting,
            p_adjusted=None,
            better=None if higher is None or mean == 0 else (mean > 0) == higher,
            best_at=len(self._study.best_at.get(value, frozenset()) & by_setting.keys()),
            identical=identical,
            num_traces=len({self.recordings[trace] for trace in by_trace}),
            too_few=too_few,
        )

    def _pairs(self, reference: Key, value: Key) -> Differences:
        """Context -> seed -> difference, of what both have."""
        found: Differences = {}
        for context, seeds in self.table[value].items():
            others = self.table[reference].get(context, {})
            pairs = {s: self._number(runs) - self._number(others[s]) for s, runs in seeds.items() if s in others}
            if pairs:
                found[context] = pairs
        return found

    def _difference(
        self, reference: Key, value: Key, differences: Differences, mean: float, num_comparisons: int
    ) -> tuple[Difference, str]:
        """With the interval and the test that the evidence allows, and why there is no test."""
        by_recording: dict[str, list[float]] = {}
        for trace, number in _by_trace({c: float(np.mean(list(s.values()))) for c, s in differences.items()}).items():
            by_recording.setdefault(self.recordings[trace], []).append(number)
        by_traces = [float(np.mean(numbers)) for numbers in by_recording.values()]
        by_seed = _by_seed(differences)
        seed_unit = self._seed_unit(value, list(differences))
        by_seeds = paired(by_seed, seed_unit) if len(set(by_seed)) > 1 else None
        found = [
            paired(by_traces, "trace") if len(by_traces) > 1 else None,
            by_seeds if seed_unit != POLICY_SEED else None,
            self._by_session(reference, value, list(differences)),
            by_seeds if seed_unit == POLICY_SEED else None,
        ]
        kinds = [(made, _too_few(made, num_comparisons)) for made in found if made is not None]
        # With none that can show something, what says why: most of all sessions, whose number can be raised.
        chosen = next((pair for pair in kinds if not pair[1]), None)
        chosen = chosen or max(kinds, key=lambda pair: pair[0].count, default=(Difference(mean=mean), ""))
        return replace(chosen[0], mean=mean, p=None if chosen[1] else chosen[0].p), chosen[1]

    def _seed_unit(self, value: Key, contexts: list[Context]) -> str:
        """What a seed repeats: a measurement of time, the drawing of the workload, or a policy's random choices."""
        if is_wall_time(self._metric):
            return "repeat"
        runs = [run for context in contexts for found in self.table[value][context].values() for run in found]
        recorded = any(run.settings.get("workload.path") or run.origin.inputs for run in runs)
        return POLICY_SEED if recorded else "seed"

    def _by_session(self, reference: Key, value: Key, contexts: list[Context]) -> Difference | None:
        """Over the sessions of each trace, of which all contexts are averaged; None unless all have them."""
        if self._metric != _BY_SESSION:
            return None
        traces: dict[str, list[Sessions]] = {}
        more: dict[str, list[Floats]] = {}
        for context in contexts:
            ours, theirs = (
                mean_hits([run for runs in self.table[v][context].values() for run in runs], self._known)
                for v in (value, reference)
            )
            same = traces.setdefault(context.trace, [])
            if ours is None or theirs is None or not alike(ours, (same or [theirs])[0]) or not alike(ours, theirs):
                return None
            same.append(ours)
            more.setdefault(context.trace, []).append(ours.hit_tokens - theirs.hit_tokens)
        words = {found[0].word for found in traces.values()}
        pairs = [(np.mean(more[trace], axis=0), found[0].prompt_tokens) for trace, found in traces.items()]
        return sessions(pairs, " or ".join(sorted(words, reverse=True)))

    def _signature(self, value: Key) -> object:
        """Equal for values with the same results in every context; seeds that only repeat each other count once."""
        keys = (self._metric, "hit_tokens", "hit_blocks", "num_evictions")
        return frozenset(
            (context, frozenset(tuple(run.number(key) for key in keys) for runs in seeds.values() for run in runs))
            for context, seeds in self.table[value].items()
        )

    def _number(self, runs: Sequence[Run]) -> float:
        numbers = [number for run in runs if (number := run.number(self._metric)) is not None]
        return numbers[0] if len(set(numbers)) == 1 else float(np.mean(numbers))


def plural(word: str, count: int) -> str:
    """`trace` or `traces`; `run of 50 requests` or `runs of 50 requests`."""
    head, space, rest = word.partition(" ")
    return word if count == 1 else f"{head}s{space}{rest}"


def _adjusted(found: list[Comparison]) -> list[Comparison]:
    """With p adjusted for all that are tested; values that differ nowhere are no comparison."""
    tested = [place for place, made in enumerate(found) if made.difference.p is not None]
    adjusted = dict(zip(tested, holm([float(found[place].difference.p or 0) for place in tested]), strict=True))
    return [replace(made, p_adjusted=adjusted.get(place)) for place, made in enumerate(found)]


def _too_few(found: Difference, num_comparisons: int) -> str:
    """Why these units can show nothing; empty where they can."""
    if not can_test():
        return "SciPy is not installed"
    if found.p is None:
        return "too few"
    least = num_comparisons * least_p(found.count)
    return f"too few for {num_comparisons} comparisons, p {least:.2g} at least" if least > 0.05 else ""


def _identical(differences: Differences) -> bool:
    return all(number == 0 for seeds in differences.values() for number in seeds.values())


def _by_trace(by_setting: Mapping[Context, float]) -> dict[str, float]:
    """Trace -> the mean over its contexts."""
    found: dict[str, list[float]] = {}
    for context, number in by_setting.items():
        found.setdefault(context.trace, []).append(number)
    return {trace: float(np.mean(numbers)) for trace, numbers in found.items()}


def _by_seed(differences: Mapping[Context, Mapping[Value, float]]) -> list[float]:
    """The mean over contexts for each seed that all contexts have."""
    common = set.intersection(*(set(seeds) for seeds in differences.values()))
    return [
        float(np.mean([seeds[seed] for seeds in differences.values()])) for seed in sorted(common, key=lambda s: str(s))
    ]
