"""`python -m framework reuse TRACE --plot FILE`: how long until blocks are used again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.errors import WorkloadError
from framework.files.atomic import require_new
from framework.interfaces.command import Command
from framework_workloads.trace import formats, open_trace

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.figure import Figure


class Reuse(Command):
    """Draw the reuse distances of a trace, and what an LRU cache of each size would hit."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="TRACE", help="plain, .gz or .zst")
        parser.add_argument("--plot", metavar="FILE", required=True, help=".pdf, .svg or .png")
        parser.add_argument("--format", default="auto", metavar="NAME", help=f"auto, {', '.join(formats())}")
        parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens a block")
        parser.add_argument("--on-error", default="raise", choices=["raise", "skip"], help="what a bad line does")
        parser.add_argument("--force", action="store_true", help="replace a file that exists already")

    def run(self, options: argparse.Namespace) -> int:
        from framework_cache_only.description import describe
        from framework_cache_only.stack import distance_histogram
        from framework_report.figures.style import require_format, save_plot, style

        require_format(Path(options.plot))
        require_new(options.plot, inputs=[options.file], force=options.force)
        trace = open_trace(
            options.file, format=options.format, block_tokens=options.block_tokens, on_error=options.on_error
        )
        _, distances = describe(trace)
        if distances is None:
            raise WorkloadError(f"{trace.path} has lengths only: no reuse to plot")
        edges, counts = distance_histogram(distances)
        with style():
            figure = draw(edges, counts, len(distances), title=trace.path.name)
        save_plot(figure, Path(options.plot))
        return 0


def draw(edges: npt.NDArray[Any], counts: npt.NDArray[Any], num_references: int, *, title: str) -> Figure:
    """A histogram of reuse distances, with the LRU hit rate by block at that capacity.

    Args:
        edges: (N + 1,) bounds of the bins, blocks, ascending.
        counts: (N,) references in each.
        num_references: of the whole trace, first uses included.
    """
    import numpy as np

    from framework_report.figures.style import COLOURS, legend, new_axes, new_figure, short

    total = max(1, num_references)
    figure = new_figure(height_in=3.2)
    axes = new_axes(figure)
    axes.bar(edges[:-1], 100 * counts / total, width=np.diff(edges), align="edge", color=COLOURS[5], label="references")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlabel("reuse distance, or capacity (blocks)")
    axes.set_ylabel("block references, %")
    other = axes.twinx()
    other.plot(edges[1:] - 1, 100 * np.cumsum(counts) / total, color=COLOURS[1], linewidth=2, label="LRU hit rate")
    other.set_ylabel("LRU hit rate by block, %")
    other.set_ylim(0, 100)
    axes.set_title(title, fontsize="medium")
    legend(axes, 2)
    return figure
