"""The pictures of README: the table of a run, and hit rates on a public trace; each for a light and a dark page.

python docs/images/draw.py                                       # the table of `python -m framework.run`
python docs/images/draw.py mooncake_conversation_trace.jsonl.gz  # the plot: Mooncake's conversation trace
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS = 60  # narrow, so that the letters can be read at a phone's width
POLICIES = ("lru", "fifo", "s3fifo", "arc", "hazard", "optimum")
CAPACITIES = (1000, 2000, 5000, 10_000, 20_000, 50_000)
INK = {"light": "#1f2328", "dark": "#e6edf3"}
# Background, ink, and the eight colours of a terminal, normal and bright; each stands out on its background.
THEMES = {
    "light": ((255, 255, 255), (31, 35, 40), (5, 80, 174), (27, 124, 131), (207, 34, 46)),
    "dark": ((13, 17, 23), (230, 237, 243), (121, 192, 255), (86, 212, 221), (255, 123, 114)),
}
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -8 {terminal_width} {terminal_height}" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<rect x="-12" y="-8" width="100%" height="100%" rx="8" fill="BACKGROUND"/>
<g class="{unique_id}-matrix">{matrix}</g>
</svg>
"""


def theme(page: str) -> TerminalTheme:
    """A terminal's colours for a page."""
    background, ink, blue, cyan, red = THEMES[page]
    colours = [ink, red, cyan, ink, blue, blue, cyan, ink]
    return TerminalTheme(background, ink, colours, colours)


def run() -> str:
    """What `python -m framework.run` prints on a colour terminal of `COLUMNS` columns, in an empty folder."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "framework.run", "run.progress=false"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.replace(f"{Path(folder).resolve()}/", "")


def table(printed: str, page: str) -> str:
    """The printed text as SVG."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(f"$ python -m framework.run\n{printed.rstrip()}"), soft_wrap=True)
    svg = console.export_svg(theme=theme(page), code_format=SVG, unique_id="t")
    background = "#" + "".join(f"{part:02x}" for part in THEMES[page][0])
    svg = re.sub(
        r"(-12 -8) ([\d.]+) ([\d.]+)", lambda m: f"{m[1]} {float(m[2]) + 12:.1f} {float(m[3]) + 20:.1f}", svg, count=1
    )
    return re.sub(r' clip-path="[^"]*"', "", svg).replace("BACKGROUND", background)


def plot(trace: Path) -> dict[str, str]:
    """Hit rate over capacity, with the offline optimum and a cache that never evicts."""
    from framework.figures import curve
    from framework.figures.style import as_svg
    from framework.replay.curves import hit_curves
    from framework.replay.path_cache import trace_paths
    from framework.workload.traces import open_trace

    paths = trace_paths(open_trace(str(trace)))
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
    svg = as_svg(figure, "Hit rate over capacity for six eviction policies")
    return {page: svg.replace("currentColor", ink) for page, ink in INK.items()}


def main() -> None:
    """Without a word the table, with a trace's path the plot."""
    if len(sys.argv) == 2:
        for page, svg in plot(Path(sys.argv[1])).items():
            (HERE / f"hit-rate-{page}.svg").write_text(svg, encoding="utf-8")
        return
    printed = run()
    for page in THEMES:
        (HERE / f"run-{page}.svg").write_text(table(printed, page), encoding="utf-8")


if __name__ == "__main__":
    main()
