"""The picture of README: hit rates on a public trace, for a light and a dark page.

python docs/images/draw.py mooncake_conversation_trace.jsonl.gz
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
POLICIES = ("lru", "fifo", "s3fifo", "arc", "hazard", "optimum")
CAPACITIES = (1000, 2000, 5000, 10_000, 20_000, 50_000)
INK = {"light": "#1f2328", "dark": "#e6edf3"}


def plot(trace: Path) -> dict[str, str]:
    """Hit rate over capacity, with the offline optimum and a cache that never evicts."""
    from framework_cache_only.curves import hit_curves
    from framework_cache_only.paths import build_paths
    from framework_report.figures import curve
    from framework_report.figures.style import as_svg
    from framework_workloads.trace import open_trace

    paths = build_paths(open_trace(str(trace)))
    points = hit_curves(paths, {name: name for name in POLICIES}, list(CAPACITIES))
    lines = []
    for name in POLICIES:
        mine = sorted((point for point in points if point.policy == name), key=lambda point: point.num_blocks)
        rates = [100 * point.hit_rate for point in mine]
        lines.append(curve.Line(label=name, x=CAPACITIES, y=rates, reference=name == "optimum"))
    ceiling = 100 * float(paths.hit_tokens(paths.infinite_hits).sum() / paths.input_tokens.sum())
    lines.append(curve.Line(label="infinite cache", x=CAPACITIES, y=[ceiling] * len(CAPACITIES), reference=True))
    title = "Mooncake's conversation trace"
    figure = curve.draw(
        lines, x_label=f"capacity (blocks of {paths.block_tokens} tokens)", y_label="hit rate, %", title=title
    )
    figure.axes[0].set_ylim(bottom=0)
    svg = as_svg(figure, "Hit rate over capacity for six eviction policies")
    return {page: svg.replace("currentColor", ink) for page, ink in INK.items()}


def main() -> None:
    """Draw from the trace named on the command line."""
    for page, svg in plot(Path(sys.argv[1])).items():
        (HERE / f"hit-rate-{page}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
