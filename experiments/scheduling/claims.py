"""Claims of the threads, one by one, with what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.scheduling import cells
from experiments.shared import table

Row = Mapping[str, Any]


def verdict(row: Row, name: str) -> str:
    """What is known of a difference from `fcfs`."""
    if not row[f"{name}_tested"]:
        return "too few sessions"
    return "shown" if row[f"{name}_p_adjusted"] < 0.05 else "not shown"


def claims(rows: Sequence[Row]) -> str:
    """A line a thread; three numbers are of the traces in their order, under lru and the middle capacity."""
    found = _Found(rows)
    lines = [
        ("vLLM RFC 51608", "a framework for orders, not an order: no number is claimed",
         "what it must hold: between the most and the least of ten orders at 0.9 lie "
         f"{found.spread('hit_rate', 100.0, '{:.1f} points')} of the hit rate and "
         f"{found.spread('ttft_s_mean', 1.0, '{:.0f} s')} of the mean TTFT"),
        ("vLLM issue 42185", "ordering by cached prefix raises throughput (cites SGLang: 10 to 30 %)",
         f"`longest_prefix` at 1.1: requests a second {found.rate('longest_prefix', 1.1)}; hit rate "
         f"{found.points('longest_prefix', 1.1)}"),
        ("vLLM PR 54625", "a window of 16 raises throughput by 4.5 %, hits by 0.8 points",
         f"`windowed_lookahead` at 1.1: requests a second {found.rate('windowed_lookahead', 1.1)}; hit rate "
         f"{found.points('windowed_lookahead', 1.1)}; at 0.9 hit rate {found.points('windowed_lookahead')}, mean TTFT "
         f"{found.time('windowed_lookahead')}"),
        ("vLLM PR 51384", "a session that ran lately hits more if it goes first; other requests wait little longer",
         f"`session_affinity` at 0.9: hit rate {found.points('session_affinity')}; mean TTFT "
         f"{found.time('session_affinity')}; of continued sessions "
         f"{found.ratio('session_affinity', 'ttft_s_continued')}"),
        ("vLLM issue 53277", "what is cached goes first, so that continued sessions get their first token sooner; "
         "later, preempting a cold prefill for them",
         f"mean TTFT of continued sessions at 0.9: `longest_prefix` {found.ratio('longest_prefix', 'ttft_s_continued')}"
         f", `shortest_rest` {found.ratio('shortest_rest', 'ttft_s_continued')}. The second part is not answered: an "
         "order here is not asked whom to pause where there is room"),
        ("vLLM issue 29406", "shortest jobs first: 6.2 % more throughput within a bound on the TTFT",
         f"`shortest_job` at 0.9: first tokens within their deadlines {found.met('shortest_job')}; mean TTFT "
         f"{found.time('shortest_job')}; slowest tenth {found.ratio('shortest_job', 'ttft_s_slowest_tenth')}"),
        ("vLLM PR 51375", "what is left to compute is a better length than the prompt's",
         f"`shortest_rest` beside `shortest_job` at 0.9: hit rate {found.between('shortest_rest', 'shortest_job')}; "
         f"mean TTFT {found.ratio('shortest_rest', 'ttft_s_mean', 'shortest_job')}"),
        ("xLLM PR 2164", "the same where prefill has engines of its own, over `fcfs`",
         f"`shortest_rest` beside `fcfs` at 0.9: mean TTFT {found.time('shortest_rest')}, p99 "
         f"{found.tail('shortest_rest')}. Prefill and decoding share an engine here: the claim for engines apart is "
         "not answered"),
        ("vLLM PR 33392", "EWSJF: 30 to 54 % more tokens a second, TTFT of short requests up to 4 times lower",
         f"`ewsjf` at 1.1: requests a second {found.rate('ewsjf', 1.1)}; TTFT of the shortest quarter "
         f"{found.ratio('ewsjf', 'ttft_s_short', load=1.1)}"),
        ("vLLM issue 24484", "an order that adapts to the workload (the proposal behind EWSJF)",
         "not answered: what adapts there, the partition of lengths and the weights, is not in the published scorer; "
         f"the scorer as it is, `ewsjf` at 0.9: mean TTFT {found.time('ewsjf')}"),
        ("vLLM issue 30256", "tiers of service levels",
         f"two tiers of deadlines, `edf` at 0.9: first tokens within their deadlines {found.met('edf')}; mean TTFT "
         f"{found.time('edf')}"),
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

    def spread(self, key: str, scale: float, shape: str) -> str:
        """Most less least over the orders, at 0.9."""
        values = [[self._rows[t, order, 0.9][key] for order in cells.ORDERS] for t in cells.TRACES]
        return ", ".join(shape.format(scale * (max(of) - min(of))) for of in values)

    def points(self, order: str, load: float | str = 0.9) -> str:
        return self._tested(order, load, "points", "{:+.1f} points")

    def time(self, order: str, load: float | str = 0.9) -> str:
        return self._tested(order, load, "ttft_s", "{:+.0f} s")

    def tail(self, order: str) -> str:
        return self._tested(order, 0.9, "ttft_s_p99", "{:+.0f} s")

    def _tested(self, order: str, load: float | str, name: str, shape: str) -> str:
        return ", ".join(
            f"{shape.format(row[f'{name}_beside_fcfs'])} ({verdict(row, name)})" for row, _ in self._of(order, load)
        )

    def rate(self, order: str, load: float | str) -> str:
        return ", ".join(f"{base['duration_s'] / row['duration_s'] - 1:+.1%}" for row, base in self._of(order, load))

    def met(self, order: str) -> str:
        pairs = self._of(order, 0.9)
        return ", ".join(
            f"{100 * row['deadlines_met']:.0f} % ({100 * base['deadlines_met']:.0f})" for row, base in pairs
        )

    def ratio(self, order: str, key: str, beside: str = "fcfs", load: float | str = 0.9) -> str:
        pairs = zip(self._of(order, load), self._of(beside, load), strict=True)
        return ", ".join(f"{row[key] / other[key] - 1:+.0%}" for (row, _), (other, _) in pairs)

    def between(self, order: str, other: str) -> str:
        pairs = zip(self._of(order, 0.9), self._of(other, 0.9), strict=True)
        return ", ".join(f"{100 * (a['hit_rate'] - b['hit_rate']):+.1f} points" for (a, _), (b, _) in pairs)
