"""Bounds of orders, and waiting times by cause, in a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.results.console import Table
from framework_scheduling.observer import CAUSES

if TYPE_CHECKING:
    from framework_report.study import Study

_MOST_RUNS = 40


def waits(study: Study) -> Table:
    """The bound of each setting with an order of its own, the best first, how often the engine had to keep it, and
    where observers=[queue] listened, how long requests waited on average and for what."""
    from framework_report.study import label

    rows = []
    for _, setting in study.ranked_with_ties:
        run = setting.runs[0]
        if "scheduling_bound" not in run.result and "wait_rows_s" not in run.result:
            continue
        sums, count = [run.number(f"wait_{cause}_s") for cause in CAUSES], run.number("num_requests") or 1
        known = [part for part in sums if part is not None]
        most, overdue = run.number("most_passed"), run.number("scheduling_overdue")
        rows.append([
            label(setting.values) if study.keys else run.name,
            str(run.result.get("scheduling_bound", "first come, first served")),
            "" if overdue is None else f"{overdue:,.0f}",
            *([f"{sum(known) / count:,.3g}"] if known else [""]),
            *(f"{100 * part / max(sum(known), 1e-12):.0f}" for part in known),
            *([""] * (len(CAUSES) - len(known))),
            "" if most is None else f"{most:,.0f}",
        ])  # fmt: skip
    header = ["", "bound on the wait", "enforced", "waited, s", *(f"% {cause}" for cause in CAUSES), "most passed over"]
    note = (
        "The wait is the mean over requests, from the first step after arrival to admission; shares of it by what the "
        "step lacked, or passed over, where a later request was admitted or next. Empty without observers=[queue]."
    )
    return Table("The waiting queue", header, rows[:_MOST_RUNS], note if rows else "")
