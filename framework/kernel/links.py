"""Link models fitted to measured copies, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from framework.kernel.copies import Direction
from framework.kernel.link_fit import TOLERANCE, Fit, fit
from framework.kernel.link_times import Samples, typical
from framework.tiers.link_files import VERSION, MeasuredLink

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LinkReport:
    """A link's model, and what was measured beside what it says.

    Attributes:
        rows: one for each number of blocks and direction; `off` is model / measured - 1.
    """

    name: str
    model: MeasuredLink
    read: Fit
    write: Fit
    rows: tuple[Row, ...]

    @property
    def off(self) -> list[Row]:
        """The rows that model and measurement differ in by more than the tolerance."""
        return [row for row in self.rows if abs(row["off"]) > TOLERANCE]

    def facts(self) -> Row:
        """Of this link, as links.json holds it."""
        fits = {way: asdict(found) for way, found in (("read", self.read), ("write", self.write))}
        return {
            **asdict(self.model),
            "fits": fits,
            "num_points": len(self.rows),
            "off_by_15_percent": self.off,
        }


def judge(samples: Samples, *, copies_at_once: bool) -> LinkReport:
    """Fit both directions, say whether they go on beside each other, and compare.

    Args:
        copies_at_once: the blocks of a measured store were one operation, not one each.
    """
    read = fit(samples.points("read", one_operation=True))
    write = fit(samples.points("write", one_operation=copies_at_once))

    def alone(way: Direction, count: int, size: int) -> float:
        if way == "read":
            return read.seconds(1, count * size)
        return write.seconds(1 if copies_at_once else count, count * size)

    def together(count: int, size: int, *, duplex: bool) -> float:
        both = [alone(way, count, size) for way in ("read", "write")]
        return max(both) if duplex else sum(both)

    times = {cell: typical(seconds) for cell, seconds in samples.taken.items()}
    both = {cell: seconds for cell, seconds in times.items() if len(cell[0]) == 2}
    errors = {
        duplex: sum(abs(np.log(together(n, size, duplex=duplex) / s)) for (_, n, size), s in both.items())
        for duplex in (True, False)
    }
    duplex = bool(errors[True] <= errors[False])
    rows = []
    for (ways, count, size), seconds in times.items():
        model = alone(ways[0], count, size) if len(ways) == 1 else together(count, size, duplex=duplex)
        rows.append(
            {
                "link": samples.name,
                "direction": "both" if len(ways) == 2 else ways[0],
                "blocks": count,
                "block_bytes": size,
                "time_s": seconds,
                "num_samples": len(samples.taken[ways, count, size]),
                "model_s": model,
                "off": model / seconds - 1,
            }
        )
    link = MeasuredLink(
        read_bytes_per_s=read.bytes_per_s,
        write_bytes_per_s=write.bytes_per_s,
        read_operation_s=read.operation_s,
        write_operation_s=write.operation_s,
        duplex=duplex,
    )
    return LinkReport(samples.name, link, read, write, tuple(rows))


def link_file(reports: Sequence[LinkReport], origin: Mapping[str, Any]) -> Row:
    """What links.json holds: a configuration names it as `link` of a tier."""
    return {"version": VERSION, "links": {report.name: report.facts() for report in reports}, **origin}
