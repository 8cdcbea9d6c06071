"""Claims of the threads, one by one, with what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.scheduling import cells
from experiments.shared import table

Row = Mapping[str, Any]


def claims(rows: Sequence[Row]) -> str:
    """A line a claim; three numbers are of the traces in their order, under lru and the middle capacity."""
    found = _Found(rows)
    lines = [
        ("vLLM RFC 51608, issues 42185, 24484, 30256, 53277",
         "admitting what is cached first raises throughput (10 to 30 % in SGLang)",
         f"`longest_prefix` at a load of 1.1: requests a second {found.rate('longest_prefix', 1.1)}; "
         f"hit rate {found.points('longest_prefix', 1.1)}"),
        ("vLLM PR 54625", "residents first avoids evictions: hits rise",
         f"`windowed_lookahead` at 0.9: hit rate {found.points('windowed_lookahead')}; "
         f"mean TTFT {found.time('windowed_lookahead')}; no bound on the wait, most passed over "
         f"{found.each('windowed_lookahead', 'most_passed_over', '{:,}')}"),
        ("vLLM PR 51384", "a session that ran lately hits more if it goes first",
         f"`session_affinity` at 0.9: hit rate {found.points('session_affinity')}; "
         f"mean TTFT {found.time('session_affinity')}"),
        ("vLLM issue 29406", "shortest prompts first lower the mean TTFT",
         f"`shortest_job` at 0.9: mean TTFT {found.time('shortest_job')}; "
         f"slowest tenth {found.ratio('shortest_job', 'ttft_s_slowest_tenth')}"),
        ("vLLM PR 51375, xLLM PR 2164", "what is left to compute is a better length than the prompt's",
         f"`shortest_rest` beside `shortest_job` at 0.9: hit rate {found.between('shortest_rest', 'shortest_job')}; "
         f"mean TTFT {found.ratio('shortest_rest', 'ttft_s_mean', 'shortest_job')}"),
        ("vLLM PR 33392", "EWSJF: 30 to 54 % more tokens a second, TTFT of short requests up to 4 times lower",
         f"`ewsjf` at 1.1: requests a second {found.rate('ewsjf', 1.1)}; TTFT of the shortest quarter "
         f"{found.ratio('ewsjf', 'ttft_s_short', load=1.1)}"),
    ]  # fmt: skip
    return table(["thread", "claim", "here"], lines)


class _Found:
    """Numbers of orders, of each trace in turn."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {
            (row["trace"], row["order"], row["load"]): row
            for row in rows
            if row["eviction"] == "lru" and row["num_blocks"] == cells.CAPACITIES[row["trace"]][1]
        }

    def _of(self, order: str, load: float | str) -> list[tuple[Row, Row]]:
        """(its row, that of fcfs) of each trace."""
        return [(self._rows[t, order, load], self._rows[t, "fcfs", load]) for t in cells.TRACES]

    def each(self, order: str, key: str, shape: str) -> str:
        return ", ".join(shape.format(row[key]) for row, _ in self._of(order, 0.9))

    def points(self, order: str, load: float | str = 0.9) -> str:
        return self._tested(order, load, "points", "{:+.1f} points")

    def time(self, order: str, load: float | str = 0.9) -> str:
        return self._tested(order, load, "ttft_s", "{:+.0f} s")

    def _tested(self, order: str, load: float | str, name: str, shape: str) -> str:
        parts = []
        for row, _ in self._of(order, load):
            verdict = "shown" if row[f"{name}_p_adjusted"] < 0.05 else "not shown"
            parts.append(f"{shape.format(row[f'{name}_beside_fcfs'])} ({verdict})")
        return ", ".join(parts)

    def rate(self, order: str, load: float | str) -> str:
        return ", ".join(f"{base['duration_s'] / row['duration_s'] - 1:+.1%}" for row, base in self._of(order, load))

    def ratio(self, order: str, key: str, beside: str = "fcfs", load: float | str = 0.9) -> str:
        pairs = zip(self._of(order, load), self._of(beside, load), strict=True)
        return ", ".join(f"{row[key] / other[key] - 1:+.0%}" for (row, _), (other, _) in pairs)

    def between(self, order: str, other: str) -> str:
        pairs = zip(self._of(order, 0.9), self._of(other, 0.9), strict=True)
        return ", ".join(f"{100 * (a['hit_rate'] - b['hit_rate']):+.1f} points" for (a, _), (b, _) in pairs)
