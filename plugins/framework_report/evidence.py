"""What runs show of one value against the baseline: differences by setting, pooled, and what they rest on.

NOTE 1: a difference is taken within a context, which is everything that varied but the compared component and the seed.
Contexts of one trace (capacities, say) share its requests, so they are averaged and never counted as independent.
NOTE 2: the unit of evidence is chosen for each compared pair, the first of these that can show something: traces; seeds
that draw the workload; sessions, drawn within each trace; seeds of a random policy. The last two speak for those traces
alone. Runs that repeat each other exactly are copies of one observation, whatever their seeds are; traces of which one
begins where another ends were cut from one recording, and are one.
NOTE 3: sign flips of N units cannot give a p below 2 / 2^N: with C comparisons N units can show something only if C
times that is at most 5 %, see `Comparison.too_few`.
NOTE 4: over several traces each has a verdict of its own, adjusted for all of them; where they contradict each other
there is no verdict over all. A mean over what goes both ways says nothing of either: settings of one trace (capacities,
say) contradict each other where differences have opposite signs, the lesser of them at least a tenth of the greatest,
and so do traces, unless traces are the unit that is tested, of which one in many may go the other way.
NOTE 5: a session is what one user or agent sent; where a trace names none, each request is a unit of its own. What a
resample leaves out still passed through the cache: intervals say how much a difference hangs on which sessions were
recorded, not how a cache would fare without them.
."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import permutations
from pathlib import Path
from statistics import fmean

import numpy as np

from framework.errors import FrameworkError
from framework.results.catalogue import is_wall_time
from framework.results.layout import REQUESTS
from framework.results.metric import is_number
from framework_report.records import Run, Value
from framework_report.statistics import (
    Estimate,
    Floats,
    enough,
    holm,
    least_p,
    mean_of,
    paired,
    rate_interval,
    sessions,
)
from framework_workloads.lines import iter_objects

_MOST_BYTES = 300_000_000
_MOST_TIMES = 100
"""The evidence there is, up to which a report says how much would show a difference."""
_OPPOSED = 0.1
"""What share of the greatest difference an opposite one must be to contradict it."""
_SUMMED = ("cached_tokens", "prompt_tokens")


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sums over each session of one run.

    Attributes:
        named: whether sessions are the trace's own; else each is a request.
        labels: in order of the first request.
        hit_tokens, prompt_tokens: (U,) of each.
        span_s: first and last arrival; None where the lines do not say.
    """

    named: bool
    labels: tuple[str, ...]
    hit_tokens: Floats
    prompt_tokens: Floats
    span_s: tuple[float, float] | None

    @property
    def word(self) -> str:
        """What a unit is called in a report."""
        return "session" if self.named else "request"

    def goes_on_in(self, other: Sessions) -> bool:
        """Whether `other` begins where this ends, in time of one clock: then both were cut from one recording.

        A recording of its own begins at 0, or at a date of its own.
        """
        if self.span_s is None or other.span_s is None or other.span_s[0] <= 0:
            return False
        begin, end = self.span_s
        return 0 <= other.span_s[0] - end <= 0.1 * (end - begin)

    def has_requests_of(self, other: Sessions) -> bool:
        """Whether two runs had the same requests."""
        return self.labels == other.labels and bool(np.array_equal(self.prompt_tokens, other.prompt_tokens))


def sessions_of(folder: Path) -> Sessions | None:
    """None where the run left no line a request, too many of them, or lines that do not say what was hit."""
    path = folder / REQUESTS
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        lines = [line for _, line in iter_objects(path, FrameworkError)]
    except (FrameworkError, OSError):
        return None
    if not all(is_number(line.get(key)) for line in lines for key in ("request", *_SUMMED)):
        return None
    lines.sort(key=lambda line: line["request"])
    names = [line.get("session") for line in lines]
    named = all(name not in (None, "") for name in names)
    places: dict[str, int] = {}
    units = np.array([places.setdefault(str(name if named else i), len(places)) for i, name in enumerate(names)], int)
    arrivals = [float(line["arrival_s"]) for line in lines if is_number(line.get("arrival_s"))]
    columns = (np.array([line[key] for line in lines], dtype=np.float64) for key in _SUMMED)
    hits, prompts = (np.bincount(units, weights=column).astype(np.float64) for column in columns)
    if not prompts.any():
        return None
    return Sessions(named, tuple(places), hits, prompts, (min(arrivals), max(arrivals)) if arrivals else None)


Key = tuple[Value, ...]
Differences = dict["Context", dict[Value, float]]
"""Context -> seed -> the challenger's value minus the baseline's."""
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
        too_few: what more evidence it would take for a test; empty where there is one.
        better: whether the difference is to the better; None where neither direction is.
        best_at: of the contexts in `by_setting`, those in which no other online policy is better.
        identical: every result of every pair is equal.
        num_traces: recordings that the pair was compared on.
        p_adjusted: None where there is no test.
        by_trace: name of a trace -> the comparison on it alone, where there are several; adjusted over all of them.
        opposed: "trace" or "setting": what contradicts each other by its sign; empty where nothing does.
    """

    challenger: Key
    difference: Estimate
    by_setting: Mapping[Context, float]
    too_few: str
    better: bool | None
    best_at: int
    identical: bool
    num_traces: int
    p_adjusted: float | None = None
    by_trace: Mapping[str, Comparison] = field(default_factory=dict)
    opposed: str = ""

    @property
    def contradicted(self) -> str:
        """What contradicts each other, so that nothing is said over all: `trace`, `setting`; empty for nothing."""
        shown = {made.difference.value > 0 for made in self.by_trace.values() if made.shown}
        return "trace" if len(shown) > 1 else self.opposed if self._beyond_chance else ""

    @property
    def _beyond_chance(self) -> bool:
        return self.p_adjusted is not None and self.p_adjusted <= 0.05

    @property
    def shown(self) -> bool:
        """Whether the difference is beyond chance at 5 %, adjusted for the number of comparisons."""
        return not self.contradicted and self._beyond_chance

    @property
    def p(self) -> str:
        """Adjusted, in words; a dash where there is no test, or where traces contradict each other."""
        if self.p_adjusted is None or self.contradicted:
            return "-"
        return "<0.001" if self.p_adjusted < 0.001 else f"{self.p_adjusted:.3f}"

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.identical:
            return "equal"
        if self.contradicted:
            return f"differs by {self.contradicted}"
        if not self.shown:
            return "not shown"
        if self.better is None:
            word = "higher" if self.difference.value > 0 else "lower"
        else:
            word = "better" if self.better else "worse"
        if self.difference.unit in _BEYOND_TRACES:
            return word
        return f"{word} on {'this trace' if self.num_traces == 1 else 'these traces'}"

    @property
    def evidence(self) -> str:
        """What the verdict rests on, or why there is none."""
        traces = f"{self.num_traces} {plural('trace', self.num_traces)}"
        if self.identical:
            return f"identical results, {traces}"
        count, unit = self.difference.count, self.difference.unit
        if not unit:
            return f"{traces}, no repetition"
        words = f"{count:,} {plural(unit, count)}"
        words = words if unit == "trace" else f"{words}, {traces}"
        lacking = self.too_few or self._not_enough()
        return f"{words}: {lacking}" if lacking else words

    def _not_enough(self) -> str:
        """How many units would show this difference, where those there are do not: its interval narrows with their
        root. Where settings or traces contradict each other, none would."""
        difference = self.difference
        if self.p_adjusted is None or self._beyond_chance or self.opposed:
            return ""
        if difference.interval is None or not difference.value:
            return ""
        times = ((difference.interval[1] - difference.interval[0]) / 2 / abs(difference.value)) ** 2
        if not 1 < times <= _MOST_TIMES:
            return ""
        return f"about {math.ceil(times * difference.count):,} would show such a difference"


class Evidence:
    """All comparisons of a study with its baseline.

    Args:
        runs: the good ones.
        metric: that is compared.
        higher_is_better: of the metric; None where neither direction is.
        keys: that varied, the seed excepted. compared: of these the component and its own options.
        baseline: the component's value that the others are held against.

    Attributes:
        offline: values of the compared keys that know the future: compared, and never counted as best.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        metric: str,
        higher_is_better: bool | None,
        keys: Sequence[str],
        compared: Sequence[str],
        baseline: Value,
    ) -> None:
        self._metric, self._higher_is_better = metric, higher_is_better
        self._sessions_of = cache(sessions_of)
        rest_keys = [key for key in keys if key not in compared]
        self._settings = [place for place, key in enumerate(rest_keys) if not key.startswith("workload")]
        self._runs: dict[Key, dict[Context, list[Run]]] = {}
        self.offline: set[Key] = set()
        for run in runs:
            value = tuple(run.settings.get(key) for key in compared)
            if run.result.get("eviction_needs_future"):
                self.offline.add(value)
            if run.number(metric) is not None:
                rest = tuple(map(run.settings.get, rest_keys))
                self._runs.setdefault(value, {}).setdefault(Context(rest, run.trace), []).append(run)
        baselines = [value for value in self._runs if value[:1] == (baseline,)]
        self._reference = min(baselines, key=lambda value: tuple(map(str, value)), default=None)

    def comparisons(self) -> list[Comparison]:
        """Every other value against the baseline's, best first; those without a test are among them."""
        if self._reference is None:
            return []
        others = ((value, self._differences(value)) for value in self._runs if value != self._reference)
        pairs = [(value, differences) for value, differences in others if differences]
        parts = [
            (value, {context: seeds for context, seeds in differences.items() if context.trace == trace})
            for value, differences in pairs
            if len(traces := dict.fromkeys(context.trace for context in differences)) > 1
            for trace in traces
        ]
        alone: dict[Key, dict[str, Comparison]] = {}
        for made in self._compared(parts):
            (name,) = {self._trace_names[context.trace] for context in made.by_setting}
            alone.setdefault(made.challenger, {})[name] = made
        comparisons = [replace(made, by_trace=alone.get(made.challenger, {})) for made in self._compared(pairs)]
        return sorted(comparisons, key=lambda made: (-self._sign * made.difference.value, str(made.challenger)))

    @cached_property
    def ties(self) -> dict[Key, Key]:
        """Value -> the first value with exactly the same results in every context; itself where it is the first."""
        if self._reference is None:
            return {}
        if is_wall_time(self._metric):
            return {value: value for value in self._runs}
        firsts: dict[object, Key] = {}
        order = sorted(self._runs, key=lambda value: (value != self._reference, tuple(map(str, value))))
        return {value: firsts.setdefault(self._signature(value), value) for value in order}

    def interval(self, runs: Sequence[Run]) -> tuple[float, float] | None:
        """95 % interval of the ranked metric over sessions of these runs' trace; None where it is not counted so."""
        hits = self._mean_hits(runs) if self._metric == _BY_SESSION else None
        return None if hits is None else rate_interval(hits.hit_tokens, hits.prompt_tokens)

    def pieces(self) -> list[str]:
        """The names of traces that were cut from one recording, a text for each recording."""
        groups: dict[str, list[str]] = {}
        for trace, name in self._trace_names.items():
            groups.setdefault(self._recordings[trace], []).append(name)
        return sorted(", ".join(sorted(names)) for names in groups.values() if len(names) > 1)

    @cached_property
    def _trace_names(self) -> dict[str, str]:
        """Trace -> its name, and where others have it the begin of its checksum."""
        names = {trace: runs[0].trace_name for trace, runs in self._by_trace.items()}
        same = Counter(names.values())
        return {trace: name if same[name] == 1 else f"{name} ({trace[:6]})" for trace, name in names.items()}

    @cached_property
    def _recordings(self) -> dict[str, str]:
        """Trace -> the first of those that were cut from one recording; itself where it is whole."""
        hits = {trace: self._mean_hits(runs[:1]) for trace, runs in self._by_trace.items()}
        first = {trace: trace for trace in hits}
        for one, other in permutations(hits, 2):
            ahead, behind = hits[one], hits[other]
            if ahead is not None and behind is not None and ahead.goes_on_in(behind):
                first = {trace: first[one] if root == first[other] else root for trace, root in first.items()}
        return first

    @property
    def _by_trace(self) -> dict[str, list[Run]]:
        """Trace -> runs of one context over it."""
        return {c.trace: runs for contexts in self._runs.values() for c, runs in contexts.items()}

    @property
    def _sign(self) -> int:
        return -1 if self._higher_is_better is False else 1

    @cached_property
    def _best(self) -> dict[Context, float]:
        """Context -> the best mean of an online policy, times the sign."""
        best: dict[Context, float] = {}
        for value in self._runs.keys() - self.offline:
            for context in self._runs[value]:
                best[context] = max(self._sign * self._mean(value, context), best.get(context, -math.inf))
        return best

    def _by_seed(self, value: Key, context: Context) -> dict[Value, float]:
        numbers: dict[Value, list[float]] = {}
        for run in self._runs[value].get(context, ()):
            numbers.setdefault(run.settings.get("seed"), []).append(run.number(self._metric) or 0.0)
        return {seed: mean_of(same_seed).value for seed, same_seed in numbers.items()}

    def _mean(self, value: Key, context: Context) -> float:
        return fmean(self._by_seed(value, context).values())

    def _differences(self, value: Key) -> Differences:
        """Differences of this value from the baseline, in the contexts and seeds that both have."""
        assert self._reference is not None
        differences: Differences = {}
        for context in self._runs[value]:
            ours, theirs = self._by_seed(value, context), self._by_seed(self._reference, context)
            if both := {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}:
                differences[context] = both
        return differences

    def _compared(self, pairs: Sequence[tuple[Key, Differences]]) -> list[Comparison]:
        """With p adjusted for all that are tested; values that differ nowhere are no comparison."""
        num = sum(not _identical(differences) for _, differences in pairs)
        comparisons = [self._compare(*pair, num) for pair in pairs]
        adjusted = iter(holm([made.difference.p for made in comparisons if made.difference.p is not None]))
        return [made if made.difference.p is None else replace(made, p_adjusted=next(adjusted)) for made in comparisons]

    def _compare(self, value: Key, differences: Differences, num_comparisons: int) -> Comparison:
        by_setting = {context: fmean(seeds.values()) for context, seeds in differences.items()}
        by_trace: dict[str, list[float]] = {}
        for context, number in by_setting.items():
            by_trace.setdefault(context.trace, []).append(number)
        means = {trace: fmean(numbers) for trace, numbers in by_trace.items()}
        identical, mean, too_few = _identical(differences), fmean(means.values()), ""
        difference = Estimate(value=mean)
        if not identical:
            difference, too_few = self._difference(value, differences, means, num_comparisons)
        best = [context for context in by_setting if self._sign * self._mean(value, context) == self._best.get(context)]
        return Comparison(
            challenger=value,
            difference=replace(difference, value=mean),
            by_setting=by_setting,
            too_few=too_few,
            better=None if self._higher_is_better is None or mean == 0 else (mean > 0) == self._higher_is_better,
            best_at=0 if value in self.offline else len(best),
            identical=identical,
            num_traces=len({self._recordings[trace] for trace in means}),
            opposed=self._opposed(by_setting, means, difference.unit),
        )

    def _opposed(self, by_setting: Mapping[Context, float], by_trace: Mapping[str, float], unit: str) -> str:
        """What contradicts each other by its sign: settings, or traces where these are not the unit that is tested."""
        groups: dict[object, dict[str, float]] = {}
        for context, number in by_setting.items():
            setting = tuple(context.values[place] for place in self._settings)
            key, part = (setting, context.trace) if unit == "trace" else (context.trace, str(context.values))
            groups.setdefault(key, {})[part] = number
        if unit == "trace":  # settings that all traces have, each the mean over them
            whole = [fmean(by_part.values()) for by_part in groups.values() if by_part.keys() == by_trace.keys()]
            return "setting" if _both_ways(whole) else ""
        if any(_both_ways([*by_part.values()]) for by_part in groups.values()):
            return "setting"
        return "trace" if _both_ways([*by_trace.values()]) else ""

    def _difference(
        self, value: Key, differences: Differences, by_trace: Mapping[str, float], num_comparisons: int
    ) -> tuple[Estimate, str]:
        """With the interval and the test that the evidence allows, and why there is no test."""
        by_recording: dict[str, list[float]] = {}
        for trace, number in by_trace.items():
            by_recording.setdefault(self._recordings[trace], []).append(number)
        common = set.intersection(*(set(seeds) for seeds in differences.values()))
        by_seed = [fmean(seeds[seed] for seeds in differences.values()) for seed in sorted(common, key=str)]
        unit = self._seed_unit(value, differences)
        by_seeds = paired(by_seed, unit) if len(set(by_seed)) > 1 else None
        estimates = [
            paired([fmean(numbers) for numbers in by_recording.values()], "trace") if len(by_recording) > 1 else None,
            by_seeds if unit != POLICY_SEED else None,
            self._by_session(value, differences),
            by_seeds if unit == POLICY_SEED else None,
        ]
        kinds = [(made, _too_few(made, num_comparisons)) for made in estimates if made is not None]
        # With none that can show something, what says why: most of all sessions, whose number can be raised.
        chosen = next((pair for pair in kinds if not pair[1]), None)
        made, why = chosen or max(kinds, key=lambda pair: pair[0].count, default=(Estimate(value=0.0), ""))
        return (replace(made, p=None) if why else made), why

    def _seed_unit(self, value: Key, contexts: Iterable[Context]) -> str:
        """What a seed repeats: a measurement of time, the drawing of the workload, or a policy's random choices."""
        if is_wall_time(self._metric):
            return "repeat"
        runs = [run for context in contexts for run in self._runs[value][context]]
        recorded = any(run.settings.get("workload.path") or run.origin.inputs for run in runs)
        return POLICY_SEED if recorded else "seed"

    def _by_session(self, value: Key, contexts: Iterable[Context]) -> Estimate | None:
        """Over the sessions of each trace, of which all contexts are averaged; None unless all have them."""
        assert self._reference is not None
        if self._metric != _BY_SESSION:
            return None
        traces: dict[str, list[tuple[Sessions, Sessions]]] = {}
        for context in contexts:
            ours, theirs = (self._mean_hits(self._runs[v][context]) for v in (value, self._reference))
            if ours is None or theirs is None:
                return None
            traces.setdefault(context.trace, []).append((ours, theirs))
        if any(not one.has_requests_of(pairs[0][0]) for pairs in traces.values() for pair in pairs for one in pair):
            return None
        gained = [np.mean([ours.hit_tokens - theirs.hit_tokens for ours, theirs in pairs], axis=0)
                  for pairs in traces.values()]  # fmt: skip
        first = [pairs[0][0] for pairs in traces.values()]
        words = sorted({one.word for one in first}, reverse=True)
        return sessions(
            [(more, one.prompt_tokens) for more, one in zip(gained, first, strict=True)], " or ".join(words)
        )

    def _mean_hits(self, runs: Sequence[Run]) -> Sessions | None:
        """The mean over runs that differ in their seed alone; None unless all have the same sessions."""
        each = [one for run in runs if (one := self._sessions_of(run.path)) is not None]
        if len(each) < len(runs) or any(not one.has_requests_of(each[0]) for one in each):
            return None
        return replace(each[0], hit_tokens=np.mean([one.hit_tokens for one in each], axis=0))

    def _signature(self, value: Key) -> object:
        """Equal for values with the same results in every context; seeds that only repeat each other count once."""
        keys = (self._metric, "hit_tokens", "hit_blocks", "num_evictions")
        return frozenset(
            (context, frozenset(tuple(run.number(key) for key in keys) for run in runs))
            for context, runs in self._runs[value].items()
        )


def plural(word: str, count: int) -> str:
    """`trace` or `traces`; `run of 50 requests` or `runs of 50 requests`."""
    head, space, rest = word.partition(" ")
    return word if count == 1 else f"{head}s{space}{rest}"


def _too_few(estimate: Estimate, num_comparisons: int) -> str:
    """Why these units can show nothing; empty where they can."""
    if estimate.p is None and estimate.missing:
        return f"too few, {estimate.missing:,} more would be enough for a test"
    least, more = num_comparisons * least_p(estimate.count), enough(num_comparisons) - estimate.count
    if estimate.p is None:
        return f"too few, {more} more would be enough for a test"
    if more <= 0:
        return ""
    return f"too few for {num_comparisons} comparisons, p {least:.2g} at least; {more} more would be enough"


def _both_ways(differences: Sequence[float]) -> bool:
    """Whether some are below 0 and some above, and the lesser side is not small beside the greater."""
    least, most = min(differences, default=0.0), max(differences, default=0.0)
    return least < 0 < most and min(-least, most) >= _OPPOSED * max(-least, most)


def _identical(differences: Differences) -> bool:
    return all(number == 0 for seeds in differences.values() for number in seeds.values())
