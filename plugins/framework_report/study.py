"""Runs side by side: what varied, what they measure, and who leads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from framework.errors import ConfigError, did_you_mean, listing
from framework.results.catalogue import find, higher_is_better
from framework.results.metric import is_number
from framework_report.evidence import Evidence, Key
from framework_report.records import Run, Trials, Value
from framework_report.statistics import Estimate, mean_of

SEED = "seed"
_PREFERRED = (
    "hit_rate", "goodput_requests_per_s", "output_tokens_per_s", "tflops", "bandwidth_bytes_per_s", "time_us", "time_s",
    "ttft_s_p95", "utilisation", "hit_rate_blocks",
)  # fmt: skip
_COMPANIONS = (
    "hit_rate", "output_tokens_per_s", "ttft_s_p95", "tpot_s_p95", "utilisation", "num_evictions",
    "num_preemptions", "gap_to_optimum",
)  # fmt: skip
_DEFAULTS = {
    "allocator": "prefix_cow", "eviction": "lru", "hash": "sha256", "backend": "torch", "scheduling": "fcfs",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All runs that differ in their seed alone.

    Attributes:
        values: varied key -> value.
        compared: of these the values of the compared keys, in their order.
        runs: the good ones, by seed.
        means: metric -> mean over those runs that have it.
    """

    values: Mapping[str, Value]
    compared: Key
    runs: tuple[Run, ...]
    means: Mapping[str, Estimate]


class Study:
    """Runs side by side.

    Args:
        rows: of `collect`.
        metric: to rank by; None takes the first that the runs have of hit rate, goodput, throughput, time.
        baseline: KEY=VALUE to compare the others with, such as `eviction=lru`; None takes the first component that
            varied, and its project default where that is among the values.
        trials: of the search that made these runs: one ranking by what it searched for, and no comparison, since a
            sampler's runs come in no pairs.

    Attributes:
        good: the rows that ended well.
        keys: settings that varied, the seed excepted. constant: settings that did not.
        metrics: that the good runs have. metric: ranked by.
        higher_is_better: of the metric; None where nobody declared a direction, and then higher ranks first.
        baseline_key, baseline: what is compared, and with which of its values; None where nothing is.
        compared_keys: the compared component and those of its options that varied.
        evidence: of the ranked metric.

    Raises:
        ConfigError: a metric or baseline that no run has.
    """

    def __init__(
        self,
        rows: Sequence[Run],
        *,
        metric: str | None = None,
        baseline: str | None = None,
        trials: Trials | None = None,
    ) -> None:
        self.rows, self.trials = list(rows), trials
        self.good = [row for row in rows if row.ok]
        self.keys = varied_keys(self.rows)
        settings = {key: value for row in reversed(self.rows) for key, value in row.settings.items()}
        self.constant = {key: value for key, value in settings.items() if key not in (*self.keys, SEED)}
        numbers = (key for row in self.good for key, value in row.result.items() if is_number(value))
        self.metrics = [key for key in dict.fromkeys(numbers) if key not in (SEED, "num_blocks", "block_size")]
        self.metric = _chosen_metric(self.metrics, metric, () if trials is None else (trials.metric,))
        self.higher_is_better = higher_is_better(self.metric)
        if trials is not None and self.metric == trials.metric:
            self.higher_is_better = trials.maximize
        self.baseline_key: str | None = None
        self.baseline: Value = None
        if trials is None or baseline is not None:
            self.baseline_key, self.baseline = _chosen_baseline(self.good, self.keys, baseline)
        prefix = f"{self.baseline_key}."
        self.compared_keys = [key for key in self.keys if key == self.baseline_key or key.startswith(prefix)]
        self.evidence = Evidence(
            self.good, metric=self.metric, higher_is_better=self.higher_is_better, keys=self.keys,
            compared=self.compared_keys, baseline=self.baseline,
        )  # fmt: skip
        self.comparisons = self.evidence.comparisons()

    @cached_property
    def settings(self) -> list[Setting]:
        """In order of the keys' values; those without a good run are left out."""
        groups: dict[Key, list[Run]] = {}
        for row in self.good:
            groups.setdefault(tuple(row.settings.get(key) for key in self.keys), []).append(row)
        made = []
        for values in sorted(groups, key=sortable):
            runs = tuple(sorted(groups[values], key=lambda row: sortable((row.settings.get(SEED), row.name))))
            numbers = {metric: [n for run in runs if (n := run.number(metric)) is not None] for metric in self.metrics}
            means = {metric: mean_of(each, share=_is_share(metric)) for metric, each in numbers.items() if each}
            named = dict(zip(self.keys, values, strict=True))
            compared = tuple(named[key] for key in self.compared_keys)
            made.append(Setting(values=named, compared=compared, runs=runs, means=means))
        return made

    @cached_property
    def ranked(self) -> list[tuple[int, Setting]]:
        """(rank from 1, setting): grouped by all keys but the compared ones, best first; equal means share a rank.

        Values of the compared keys with the same results in every context share the row of the first.
        """
        return [(rank, setting) for rank, setting in self.ranked_with_ties if self.leads_its_tie(setting)]

    @cached_property
    def ranked_with_ties(self) -> list[tuple[int, Setting]]:
        """As `ranked`, with a row for every value."""
        groups: dict[Key, list[Setting]] = {}
        for setting in self.settings:
            rest = tuple(setting.values[key] for key in self.other_keys) if self.compared_keys else ()
            groups.setdefault(rest, []).append(setting)
        ranked: list[tuple[int, Setting]] = []
        for rest in sorted(groups, key=sortable):
            group = sorted(groups[rest], key=self.order)
            for number, setting in enumerate(group):
                tied = number > 0 and self.order(setting) == self.order(group[number - 1])
                ranked.append((ranked[-1][0] if tied else number + 1, setting))
        return ranked

    @cached_property
    def shown_metrics(self) -> list[str]:
        """The ranked metric and up to four companions that differ between settings."""
        chosen = [self.metric] if self.metric else []
        for metric in _COMPANIONS:
            values = {setting.means[metric].value for setting in self.settings if metric in setting.means}
            if metric not in chosen and len(values) > 1:
                chosen.append(metric)
        return chosen[:5]

    @property
    def other_keys(self) -> list[str]:
        """Those that varied and are not compared."""
        return [key for key in self.keys if key not in self.compared_keys]

    def order(self, setting: Setting) -> float:
        """The mean of the ranked metric, so that the best is lowest; infinite where there is none."""
        mean = setting.means.get(self.metric)
        return math.inf if mean is None else mean.value if self.higher_is_better is False else -mean.value

    def leads_its_tie(self, setting: Setting) -> bool:
        """Whether its compared value is the one that stands for all with the same results."""
        return self.evidence.ties.get(setting.compared, setting.compared) == setting.compared

    def name_of(self, value: Key) -> str:
        """A value of the compared keys in words."""
        return label(dict(zip(self.compared_keys, value, strict=True)))

    def tied_names(self, setting: Setting) -> str:
        """A setting's compared value, and all that have the same results in every context."""
        value = setting.compared
        tied = [other for other, leader in self.evidence.ties.items() if leader == value and other != value]
        return " = ".join(map(self.name_of, [value, *tied]))

    def label(self, setting: Setting, keys: Sequence[str] | None = None) -> str:
        """A setting's values of these keys, of all by default; the compared value with those that it ties with."""
        keys = self.keys if keys is None else keys
        rest = {key: setting.values[key] for key in keys if key not in self.compared_keys}
        words = [self.tied_names(setting)] if len(rest) < len(keys) else []
        return ", ".join([*words, label(rest)] if rest else words) or "all"


def varied_keys(rows: Sequence[Run]) -> list[str]:
    """Settings with more than one value; components first. Where only some runs have a key, only those count."""
    values: dict[str, dict[Value, set[Any]]] = {}
    for row in rows:
        for key, value in row.settings.items():
            # Two components may each have an option of one name: it varied only where one component's did.
            owner = row.settings.get(key.partition(".")[0]) if "." in key else None
            values.setdefault(key, {}).setdefault(owner, set()).add((type(value).__name__, value))
    varied = [key for key, by_owner in values.items() if key != SEED and any(len(one) > 1 for one in by_owner.values())]
    first = ("mode", "executor", *_DEFAULTS, "model", "workload")
    return sorted(varied, key=lambda key: (first.index(key) if key in first else len(first), key))


def label(values: Mapping[str, Value]) -> str:
    """`lru, 64 blocks`-like words for a choice of values; a path by its last part."""
    return ", ".join(_word(key, value) for key, value in values.items() if value is not None) or "all"


def _word(key: str, value: Value) -> str:
    if key == "cache.num_blocks" and is_number(value):
        return f"{value:,} blocks"
    if key.endswith(".path"):
        return str(value).rstrip("/").rpartition("/")[2]
    return str(value) if key in _DEFAULTS or isinstance(value, str) else f"{key.rpartition('.')[2]} {value}"


def _is_share(metric: str) -> bool:
    declared = find(metric)
    return declared is not None and declared.unit == "share"


def sortable(values: Sequence[Any]) -> tuple[tuple[int, float, str], ...]:
    """A key that sorts numbers by size, before all else by its text."""
    return tuple((0, float(v), "") if is_number(v) else (1, 0.0, str(v)) for v in values)


def _chosen_metric(metrics: Sequence[str], asked: str | None, first: Sequence[str]) -> str:
    if asked is not None and asked not in metrics:
        raise ConfigError(
            f"no run has the metric {asked!r}; there are {listing(metrics)}{did_you_mean(asked, metrics)}"
        )
    return asked or next((metric for metric in (*first, *_PREFERRED, *metrics) if metric in metrics), "")


def _chosen_baseline(good: Sequence[Run], keys: Sequence[str], asked: str | None) -> tuple[str | None, Value]:
    if asked is None:
        key = min(keys, key=lambda key: key not in _DEFAULTS, default="")
        text = _DEFAULTS.get(key, "")
        if not key or not good:
            return None, None
    else:
        key, _, text = asked.lstrip("+").partition("=")
        if key not in keys:
            raise ConfigError(f"baseline {asked!r}: {key!r} did not vary; there are {listing(keys)}")
    values = {str(row.settings.get(key)): row.settings.get(key) for row in good}
    if asked is not None and text not in values:
        raise ConfigError(f"baseline {asked!r}: no good run has it; {key} was {listing(values)}")
    return key, values[text] if text in values else min(values.values(), key=lambda value: sortable((value,)))
