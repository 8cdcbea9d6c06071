"""What a study shows of one value against the baseline: differences by setting, pooled, and what they rest on.

NOTE 1: a difference is taken within a context, which is everything that varied but the compared component and the seed.
Contexts of one trace (capacities, say) share its requests, so they are averaged and never counted as independent.
NOTE 2: the unit of evidence is chosen for each compared pair: traces from six on; else seeds that draw the workload;
else the sessions of a recorded trace, resampled; else seeds of a random policy, which speak for that trace alone; else
none, and nothing is shown. Runs that repeat each other exactly are copies of one observation, whatever their seeds are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from framework.report.sessions import Sessions, alike, mean_hits
from framework.report.statistics import FEW, FEW_SESSIONS, Difference, Floats, holm, paired, resampled, resampled_rates
from framework.results.catalogue import is_wall_time
from framework.results.records import Run
from framework.results.settings import Value

if TYPE_CHECKING:
    from framework.report.study import Study

Key = tuple[Value, ...]
POLICY_SEED = "seed of a policy"
_BY_SESSION = "hit_rate"


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
        better: whether the difference is to the better; None where neither direction is.
        best_at: of the contexts in `by_setting`, those in which no other online policy is better.
        identical: every result of every pair is equal.
        num_traces: traces that the pair was compared on.
    """

    challenger: Key
    difference: Difference
    by_setting: Mapping[Context, float]
    p_adjusted: float | None
    better: bool | None
    best_at: int
    identical: bool
    num_traces: int

    @property
    def shown(self) -> bool:
        """Whether the difference is beyond chance at 5 %, adjusted for the number of comparisons."""
        return self.p_adjusted is not None and self.p_adjusted <= 0.05

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.identical:
            return "equal"
        if not self.shown:
            return "not shown"
        if self.better is None:
            word = "higher" if self.difference.mean > 0 else "lower"
        else:
            word = "better" if self.better else "worse"
        if self.difference.unit != POLICY_SEED:
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
        words = f"{count} {plural(unit, count)}"
        words = words if unit == "trace" else f"{words}, {traces}"
        few = self.difference.p is None
        return f"{words}: too few" if few else words


class Evidence:
    """All comparisons of a study with its baseline.

    Args:
        study: with a baseline and a metric.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._metric = study, study.metric
        self._compared = study.compared_keys
        self._known: dict[str, Sessions | None] = {}
        self._rates: dict[str, tuple[dict[tuple[Context, Key], Floats], int, str]] = {}
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
        found = [made for value in self.table if value != reference and (made := self._compare(reference, value))]
        tested = [made for made in found if made.difference.p is not None and not made.identical]
        adjusted = dict(zip(map(id, tested), holm([float(made.difference.p or 0) for made in tested]), strict=True))
        found = [replace(made, p_adjusted=adjusted.get(id(made))) for made in found]
        sign = 1 if self._study.higher_is_better else -1
        return sorted(found, key=lambda made: (-sign * made.difference.mean, str(made.challenger)))

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

    def _compare(self, reference: Key, value: Key) -> Comparison | None:
        differences = self._differences(reference, value)
        if not differences:
            return None
        by_setting = {context: float(np.mean(list(seeds.values()))) for context, seeds in differences.items()}
        mean = float(np.mean(list(by_setting.values())))
        identical = all(number == 0 for seeds in differences.values() for number in seeds.values())
        higher = self._study.direction
        return Comparison(
            challenger=value,
            difference=Difference(mean=0.0) if identical else self._difference(reference, value, differences, mean),
            by_setting=by_setting,
            p_adjusted=None,
            better=None if higher is None or mean == 0 else (mean > 0) == higher,
            best_at=len(self._study.best_at.get(value, frozenset()) & by_setting.keys()),
            identical=identical,
            num_traces=len({context.trace for context in differences}),
        )

    def _differences(self, reference: Key, value: Key) -> dict[Context, dict[Value, float]]:
        """Context -> seed -> difference, of what both have."""
        found: dict[Context, dict[Value, float]] = {}
        for context, seeds in self.table[value].items():
            others = self.table[reference].get(context, {})
            pairs = {s: self._number(runs) - self._number(others[s]) for s, runs in seeds.items() if s in others}
            if pairs:
                found[context] = pairs
        return found

    def _difference(
        self, reference: Key, value: Key, differences: dict[Context, dict[Value, float]], mean: float
    ) -> Difference:
        """With the interval and the test that the evidence allows."""
        traces: dict[str, list[float]] = {}
        for context, seeds in differences.items():
            traces.setdefault(context.trace, []).append(float(np.mean(list(seeds.values()))))
        if len(traces) >= FEW:
            return replace(paired([float(np.mean(found)) for found in traces.values()], "trace"), mean=mean)
        by_seed = _by_seed(differences)
        seeds_matter = len(set(by_seed)) > 1
        unit = self._seed_unit(value, list(differences))
        by_seeds = replace(paired(by_seed, unit), mean=mean) if seeds_matter else None
        if by_seeds is not None and by_seeds.p is not None and unit != POLICY_SEED:
            return by_seeds
        by_sessions = self._by_session(reference, value, list(differences), mean)
        tested = [found for found in (by_sessions, by_seeds) if found is not None and found.p is not None]
        return next(iter(tested), by_sessions or by_seeds or Difference(mean=mean))

    def _seed_unit(self, value: Key, contexts: list[Context]) -> str:
        """What a seed repeats: a measurement of time, the drawing of the workload, or a policy's random choices."""
        if is_wall_time(self._metric):
            return "repeat"
        runs = [run for context in contexts for found in self.table[value][context].values() for run in found]
        recorded = any(run.settings.get("workload.path") or run.origin.inputs for run in runs)
        return POLICY_SEED if recorded else "seed"

    def _by_session(self, reference: Key, value: Key, contexts: list[Context], mean: float) -> Difference | None:
        if self._metric != _BY_SESSION:
            return None
        resamples, counts, units = [], [], set()
        for context in contexts:
            rates, count, unit = self._session_rates(context.trace)
            if (context, reference) not in rates or (context, value) not in rates:
                return None
            resamples.append(rates[context, value] - rates[context, reference])
            counts.append(count)
            units.add(unit)
        by_trace = {context.trace: count for context, count in zip(contexts, counts, strict=True)}
        total = sum(by_trace.values())
        if total < 2 or len(units) != 1:
            return None
        few = min(by_trace.values()) < FEW_SESSIONS
        made = resampled(mean, np.mean(resamples, axis=0), total, units.pop())
        return replace(made, p=None) if few else made

    def _session_rates(self, trace: str) -> tuple[dict[tuple[Context, Key], Floats], int, str]:
        """(context, value) -> resampled hit rates, of all runs on this trace; and how many of which unit."""
        if trace not in self._rates:
            self._rates[trace] = self._resample(trace)
        return self._rates[trace]

    def _resample(self, trace: str) -> tuple[dict[tuple[Context, Key], Floats], int, str]:
        found: dict[tuple[Context, Key], Sessions] = {}
        for value, contexts in self.table.items():
            for context, seeds in contexts.items():
                if context.trace == trace:
                    hits = mean_hits([run for runs in seeds.values() for run in runs], self._known)
                    if hits is not None:
                        found[context, value] = hits
        if not found:
            return {}, 0, ""
        first = next(iter(found.values()))
        kept = {key: hits for key, hits in found.items() if alike(first, hits)}
        rates = resampled_rates(np.stack([hits.hit_tokens for hits in kept.values()]), first.prompt_tokens)
        return {key: rates[:, column] for column, key in enumerate(kept)}, len(first.labels), first.unit

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


def _by_seed(differences: Mapping[Context, Mapping[Value, float]]) -> list[float]:
    """The mean over contexts for each seed that all contexts have."""
    common = set.intersection(*(set(seeds) for seeds in differences.values()))
    return [
        float(np.mean([seeds[seed] for seeds in differences.values()])) for seed in sorted(common, key=lambda s: str(s))
    ]
