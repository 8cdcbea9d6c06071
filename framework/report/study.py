"""Runs side by side: what varied, what they measure, and who leads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError
from framework.registry.signatures import did_you_mean, listing
from framework.report.evidence import Comparison, Context, Evidence
from framework.report.statistics import Mean, mean_of
from framework.results.catalogue import higher_is_better
from framework.results.metric import is_number
from framework.results.records import Run
from framework.results.settings import Value

if TYPE_CHECKING:
    from framework.report.trials import Trials

SEED = "seed"
_PREFERRED = (
    "hit_rate", "goodput_requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "tflops",
    "bandwidth_bytes_per_s", "time_us", "time_s", "ttft_s_p95", "utilisation", "hit_rate_blocks",
)  # fmt: skip
_COMPANIONS = (
    "hit_rate", "output_tokens_per_s", "ttft_s_p95", "tpot_s_p95", "utilisation", "num_evictions",
    "num_preemptions", "gap_to_optimum",
)  # fmt: skip
_DEFAULTS = {"allocator": "prefix_cow", "eviction": "lru", "hash": "sha256", "backend": "torch"}

Key = tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All runs that differ in their seed alone.

    Attributes:
        values: of the study's `keys`, in their order.
        runs: the good ones, by seed.
        means: metric -> mean over those runs that have it.
    """

    values: Key
    runs: tuple[Run, ...]
    means: Mapping[str, Mean]


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
        keys: settings that varied, the seed excepted.
        constant: settings that did not.
        metric: ranked by.

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
        self.constant = {key: value for key, value in self._first_settings().items() if key not in (*self.keys, SEED)}
        self.metrics = metrics_of(self.good)
        self.metric = self._chosen_metric(metric)
        self.baseline_key, self.baseline = None, None
        if trials is None or baseline is not None:
            self.baseline_key, self.baseline = self._chosen_baseline(baseline)

    @property
    def higher_is_better(self) -> bool:
        """Of the ranked metric; so ranked where neither direction is declared."""
        return self.direction is not False

    @cached_property
    def settings(self) -> list[Setting]:
        """In order of the keys' values; those without a good run are left out."""
        groups: dict[Key, list[Run]] = {}
        for row in self.good:
            groups.setdefault(self.values(row), []).append(row)
        made = []
        for values in sorted(groups, key=sortable):
            runs = tuple(sorted(groups[values], key=lambda row: sortable((row.settings.get(SEED), row.name))))
            means = {
                metric: mean_of(numbers)
                for metric in self.metrics
                if (numbers := [number for run in runs if (number := run.number(metric)) is not None])
            }
            made.append(Setting(values=values, runs=runs, means=means))
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
            rest = self.pick(setting, [key for key in self.keys if key not in self.compared_keys])
            groups.setdefault(rest if self.compared_keys else (), []).append(setting)
        ranked: list[tuple[int, Setting]] = []
        for rest in sorted(groups, key=sortable):
            group = groups[rest]
            group.sort(key=lambda setting: self._order(setting))
            for number, setting in enumerate(group):
                tied = number > 0 and self._order(setting) == self._order(group[number - 1])
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

    @cached_property
    def evidence(self) -> Evidence:
        """Of the ranked metric."""
        return Evidence(self)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Every other value of the compared key against the baseline's, best first."""
        return [] if self.baseline_key is None or not self.metric else self.evidence.comparisons()

    @cached_property
    def best_at(self) -> dict[Key, frozenset[Context]]:
        """Value of the compared keys -> the contexts in which no other online policy is better."""
        return self.evidence.best_at()

    @cached_property
    def ties(self) -> dict[Key, Key]:
        """Value of the compared keys -> the first with the same results in every context."""
        return {} if self.baseline_key is None or not self.metric else self.evidence.ties()

    @cached_property
    def compared_keys(self) -> list[str]:
        """The compared component and those of its options that varied."""
        own = [key for key in self.keys if key.startswith(f"{self.baseline_key}.")]
        return [self.baseline_key, *own] if self.baseline_key in self.keys and self.baseline_key else []

    @property
    def direction(self) -> bool | None:
        """Whether higher is better; None where nobody declared it."""
        if self.trials is not None and self.metric == self.trials.metric:
            return self.trials.maximize
        return higher_is_better(self.metric)

    def compared(self, setting: Setting) -> Key:
        """A setting's values of the compared keys."""
        return tuple(setting.values[self.keys.index(key)] for key in self.compared_keys)

    def is_offline(self, value: Key) -> bool:
        """Whether a policy knows the future: it is compared, and never counted as best."""
        return value in self._offline

    @cached_property
    def _offline(self) -> set[Key]:
        return {
            tuple(run.settings.get(key) for key in self.compared_keys)
            for run in self.good
            if run.result.get("eviction_needs_future")
        }

    def values(self, row: Run) -> Key:
        """A run's values of the varied keys."""
        return tuple(row.settings.get(key) for key in self.keys)

    def label(self, setting: Setting) -> str:
        """A setting's values in words, the keys named where a value alone does not speak."""
        return self.label_of(self.keys, setting.values, setting)

    def label_of(self, keys: Sequence[str], values: Sequence[Value], setting: Setting | None = None) -> str:
        """A choice of values in words; a compared one with those that it ties with."""
        rest = [(key, value) for key, value in zip(keys, values, strict=True) if key not in self.compared_keys]
        words = [] if setting is None or not set(keys) & set(self.compared_keys) else [self.tied_names(setting)]
        if not words:
            rest = list(zip(keys, values, strict=True))
        if rest:
            words.append(label([key for key, _ in rest], [value for _, value in rest]))
        return ", ".join(word for word in words if word != "all") or "all"

    def name_of(self, value: Key) -> str:
        """A value of the compared keys in words."""
        return label(self.compared_keys, value)

    def tied_names(self, setting: Setting) -> str:
        """A setting's compared value, and all that have the same results in every context."""
        value = self.compared(setting)
        tied = [other for other, leader in self.ties.items() if leader == value and other != value]
        return " = ".join([self.name_of(value), *map(self.name_of, tied)])

    def leads_its_tie(self, setting: Setting) -> bool:
        """Whether its compared value is the one that stands for all with the same results."""
        if not self.compared_keys:
            return True
        value = self.compared(setting)
        return self.ties.get(value, value) == value

    def pick(self, setting: Setting, keys: Sequence[str]) -> Key:
        """A setting's values of some of the study's keys."""
        return tuple(setting.values[self.keys.index(key)] for key in keys)

    def _order(self, setting: Setting) -> float:
        mean = setting.means.get(self.metric)
        return math.inf if mean is None else -mean.value if self.higher_is_better else mean.value

    def _first_settings(self) -> Mapping[str, Value]:
        merged: dict[str, Value] = {}
        for row in reversed(self.rows):
            merged.update(row.settings)
        return merged

    def _chosen_metric(self, asked: str | None) -> str:
        if asked is not None:
            if asked not in self.metrics:
                hint = did_you_mean(asked, self.metrics)
                raise ConfigError(f"no run has the metric {asked!r}; there are {listing(self.metrics)}{hint}")
            return asked
        for metric in (*([self.trials.metric] if self.trials is not None else []), *_PREFERRED):
            if metric in self.metrics:
                return metric
        return self.metrics[0] if self.metrics else ""

    def _chosen_baseline(self, asked: str | None) -> tuple[str | None, Value]:
        if asked is not None:
            key, _, text = asked.lstrip("+").partition("=")
            if key not in self.keys:
                raise ConfigError(f"baseline {asked!r}: {key!r} did not vary; there are {listing(self.keys)}")
            values = {str(row.settings.get(key)): row.settings.get(key) for row in self.good}
            if text not in values:
                raise ConfigError(f"baseline {asked!r}: no good run has it; {key} was {listing(values)}")
            return key, values[text]
        for key in (*_DEFAULTS, *(key for key in self.keys if key not in _DEFAULTS)):
            if key in self.keys:
                values = {str(row.settings.get(key)): row.settings.get(key) for row in self.good}
                if values:
                    default = _DEFAULTS.get(key, "")
                    return key, values[default] if default in values else values[min(values, key=_sort_text)]
        return None, None


def varied_keys(rows: Sequence[Run]) -> list[str]:
    """Settings with more than one value; components first. Where only some runs have a key, only those count."""
    values: dict[str, dict[Value, set[Any]]] = {}
    for row in rows:
        for key, value in row.settings.items():
            # Two components may each have an option of one name: it varied only where one component's did.
            owner = row.settings.get(key.partition(".")[0]) if "." in key else None
            values.setdefault(key, {}).setdefault(owner, set()).add((type(value).__name__, value))
    varied = [key for key, found in values.items() if key != SEED and any(len(one) > 1 for one in found.values())]
    first = ("mode", "executor", *_DEFAULTS, "model", "workload")
    return sorted(varied, key=lambda key: (first.index(key) if key in first else len(first), key))


def metrics_of(rows: Sequence[Run]) -> list[str]:
    """Keys of the results that hold numbers, settings excepted, in order of appearance."""
    metrics: dict[str, None] = {}
    for row in rows:
        for key, value in row.result.items():
            if is_number(value) and key not in (SEED, "num_blocks", "block_size"):
                metrics[key] = None
    return list(metrics)


def label(keys: Sequence[str], values: Sequence[Value]) -> str:
    """`lru, 64 blocks`-like words for a choice of values; a path by its last part."""
    words = [_word(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
    return ", ".join(words) or "all"


def _word(key: str, value: Value) -> str:
    if key == "cache.num_blocks" and is_number(value):
        return f"{value:,} blocks"
    if key.endswith(".path"):
        return str(value).rstrip("/").rpartition("/")[2]
    return str(value) if key in _DEFAULTS or isinstance(value, str) else f"{key.rpartition('.')[2]} {value}"


def sortable(values: Sequence[Any]) -> tuple[tuple[int, float, str], ...]:
    """A key that sorts numbers by size, before all else by its text."""
    return tuple((0, float(v), "") if is_number(v) else (1, 0.0, str(v)) for v in values)


def _sort_text(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)
