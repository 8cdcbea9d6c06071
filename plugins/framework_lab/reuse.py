"""`python -m framework reuse TRACE --plot FILE`: how long until blocks are used again."""

from __future__ import annotations

import argparse
from pathlib import Path

from framework.errors import WorkloadError
from framework.files.atomic import require_new
from framework.interfaces.command import Command
from framework_workloads.trace import formats, open_trace


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
        from framework_report.figures import reuse_distance
        from framework_report.figures.style import require_format, save_plot

        require_format(Path(options.plot))
        require_new(options.plot, inputs=[options.file], force=options.force)
        trace = open_trace(
            options.file, format=options.format, block_tokens=options.block_tokens, on_error=options.on_error
        )
        _, distances = describe(trace)
        if distances is None:
            raise WorkloadError(f"{trace.path} has lengths only: no reuse to plot")
        edges, counts = distance_histogram(distances)
        figure = reuse_distance.draw(edges, counts, len(distances), title=trace.path.name)
        save_plot(figure, Path(options.plot))
        return 0
