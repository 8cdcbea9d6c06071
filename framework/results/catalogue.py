"""Every key of `result.json`, declared once: unit, better direction, section, title and definition.

To add a result, add one line to `framework.results.metrics`, or to the `metrics` of an observer; the table a run ends
with, reports, W&B and docs/results.md show it, and a test fails on a key that is not declared. A plugin's own facts
need no line: they carry its kind as a prefix, see `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from framework.results.contributed import contributed
from framework.results.metric import Metric
from framework.results.metrics import DECLARED

FAMILIES: Mapping[str, str] = {
    kind: f"what the chosen {kind} reports of itself through `facts()`"
    for kind in ("allocator", "eviction", "hash", "backend", "model", "workload")
}
"""Prefix (before an underscore) -> what keys so begun hold; they stand in the section "plugins"."""

_SECTIONS = (
    "run", "prefix cache", "tiers", "optimum", "requests", "speed", "latency", "memory", "scheduling", "execution",
)  # fmt: skip
_LAST_SECTIONS = ("kernel", "plugins")


class _Catalogue(Mapping[str, Metric]):
    """The core's declarations, and those of the installed plugins, which are loaded when somebody first looks."""

    def __getitem__(self, key: str) -> Metric:
        return _declared()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_declared())

    def __len__(self) -> int:
        return len(_declared())


CATALOGUE: Mapping[str, Metric] = _Catalogue()


@cache
def _declared() -> dict[str, Metric]:
    return {metric.key: metric for metric in (*DECLARED, *contributed("metrics"))}


def sections() -> tuple[str, ...]:
    """In the order of docs/results.md and of the table a run ends with."""
    own = (*_SECTIONS, *_LAST_SECTIONS)
    others = dict.fromkeys(metric.section for metric in contributed("metrics") if metric.section not in own)
    return (*_SECTIONS, *others, *_LAST_SECTIONS)


def find(key: str) -> Metric | None:
    """The declaration of a result key, or of a plugin's own fact; else None."""
    if (metric := CATALOGUE.get(key)) is not None:
        return metric
    kind, _, rest = key.partition("_")
    if kind not in FAMILIES or not rest:
        return None
    title = f"{kind} {rest.replace('_', ' ')}"
    return Metric(key=key, unit="plain", better="", section="plugins", title=title, definition=FAMILIES[kind])


def title(key: str) -> str:
    """How tables and plots name a key; the key itself where nobody declared it."""
    metric = find(key)
    return key if metric is None else metric.title


def higher_is_better(key: str) -> bool | None:
    """The better direction; None where neither is, or nobody declared it."""
    metric = find(key)
    return None if metric is None or not metric.better else metric.better == "higher"


def is_wall_time(key: str) -> bool:
    """Whether two runs of one command differ in it because it measures wall time."""
    metric = find(key)
    return metric is not None and metric.wall


BEGIN, END = "<!-- definitions:begin -->", "<!-- definitions:end -->"


def definitions() -> str:
    """One Markdown table a section, in the order of the catalogue."""
    return "\n\n".join(
        f"### {section[0].upper() + section[1:]}\n\n" + "\n".join(_rows(section)) for section in sections()
    )


def with_definitions(page: str) -> str:
    """The page with the definitions between its two markers renewed."""
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{definitions()}\n\n{END}{rest.split(END, 1)[1]}"


def _rows(section: str) -> Iterator[str]:
    yield "| key | unit | better | definition |"
    yield "|---|---|---|---|"
    for metric in CATALOGUE.values():
        if metric.section == section:
            definition = metric.definition.replace("|", "\\|")  # a pipe would end the cell
            yield f"| `{metric.key}` | {metric.unit} | {metric.better} | {definition} |"
    if section == "plugins":
        for kind, definition in FAMILIES.items():
            yield f"| `{kind}_*` | any | | {definition[0].upper()}{definition[1:]}. |"
