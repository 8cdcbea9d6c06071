"""What evictions cost: tokens computed again, by how many requests had come since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework_explain.account import AGES, REGRET, Evictions, age_of
from framework_report.figures.style import COLOURS, HATCHES, legend, new_axes, new_figure, short, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = REGRET
TITLE = "What evictions cost, by age"
NOTE = (
    "Prompt tokens that were evicted and asked for again, by requests since the eviction; the optimum of the same "
    "capacity in the request model (one atomic access a request) would have hit the lower part."
)


@style()
def draw(records: Sequence[Mapping[str, Any]]) -> Figure | None:
    """A bar an age; None where nothing that was evicted was asked for again."""
    if not records:
        return None
    sums = Evictions.of_rows(records).sums()["age"]
    labels = [age_of(low) for low in (0, *AGES)]
    whole = [sums.get(label, {}).get("tokens", 0) for label in labels]
    kept = [sums.get(label, {}).get("optimum_kept_tokens") for label in labels]
    known = any(number is not None for number in kept)
    lower = [number or 0 for number in kept]
    figure = new_figure(height_in=2.7)
    axes = new_axes(figure)
    places = range(len(labels))
    if known:
        axes.bar(places, lower, color=COLOURS[0], label="the optimum would have kept it")
    axes.bar(
        places, [all_ - low for all_, low in zip(whole, lower, strict=True)], bottom=lower, color=COLOURS[1],
        hatch=HATCHES[1], edgecolor="white", label="nor would the optimum" if known else "evicted and asked for again",
    )  # fmt: skip
    axes.set_xticks(list(places), [*(f"< {short(age)}" for age in AGES), "more"])
    axes.set_xlabel("requests between eviction and miss")
    axes.set_ylabel("tokens computed again")
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    legend(axes, 2 if known else 1, columns=2)
    return figure
