"""`python -m framework record_events SOURCE --out OUT`: a trace of a running engine, without text, tokens or names."""

from __future__ import annotations

import argparse
from pathlib import Path

from framework.cli.options import require_in_bounds
from framework.files.atomic import require_new
from framework.interfaces.command import Command


class RecordEvents(Command):
    """Record the KV events of a running engine as a trace, without text, tokens or names, until Ctrl-C or a limit."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("source", metavar="SOURCE", help="where events are published, as tcp://127.0.0.1:5557")
        parser.add_argument("--out", required=True, metavar="OUT", help="a new file of JSON lines")
        parser.add_argument(
            "--replay", metavar="ADDRESS", help="where it answers who missed something; default: nowhere"
        )
        parser.add_argument("--topic", default="", help="only messages of this topic")
        parser.add_argument(
            "--report-hits", action="store_true", help="it reports what requests found (vLLM: full mode)"
        )
        parser.add_argument(
            "--tokens", action="store_true",
            help="keep tokens and names, for `python -m framework explain EVENTS LOG`: "
            "who has the file can read what was asked",
        )  # fmt: skip
        for name, kind, what in (("seconds", float, "have passed"), ("batches", int, "have come")):
            parser.add_argument(f"--{name}", type=kind, metavar="N", help=f"end when so many {what}; default: Ctrl-C")
        parser.add_argument("--idle", type=float, metavar="S", help="end when nothing has come for S seconds")

    def run(self, options: argparse.Namespace) -> int:
        from framework_kv_events.recording import record
        from framework_kv_events.zeromq import Subscriber

        require_in_bounds(options, "seconds", "batches", "idle")
        require_new(options.out)
        try:
            with Subscriber(options.source, options.replay, topic=options.topic) as subscriber:
                recorded = record(
                    subscriber,
                    Path(options.out),
                    report_hits=options.report_hits,
                    tokens=options.tokens,
                    seconds=options.seconds,
                    batches=options.batches,
                    idle_s=options.idle,
                )
        except OSError as error:
            error.filename = error.filename or options.out
            raise
        print(f"{options.out}: {recorded}")  # noqa: T201
        return 0
