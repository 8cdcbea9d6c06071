"""`python -m framework_kv_events SOURCE --out OUT`: a trace of a running engine, without text, tokens or names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from framework.cli.exit import command, exit_with
from framework.errors import ConfigError
from framework.files.atomic import require_new


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Record until Ctrl-C or a limit; 0 on success, 2 with one sentence on stderr when it cannot be done."""
    from framework_kv_events.recording import record
    from framework_kv_events.zeromq import Subscriber

    options = _parser().parse_args(arguments)
    for name in ("seconds", "batches", "idle"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} must be above 0, found {value}")
    require_new(options.out)
    with Subscriber(options.source, options.replay, topic=options.topic) as subscriber:
        found = record(
            subscriber,
            Path(options.out),
            report_hits=options.report_hits,
            seconds=options.seconds,
            batches=options.batches,
            idle_s=options.idle,
        )
    print(f"{options.out}: {found}")  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m framework_kv_events", description=__doc__)
    parser.add_argument("source", metavar="SOURCE", help="where KV events are published, such as tcp://127.0.0.1:5557")
    parser.add_argument("--out", required=True, metavar="OUT", help="a new file of JSON lines")
    parser.add_argument("--replay", metavar="ADDRESS", help="where it answers who missed something; default: nowhere")
    parser.add_argument("--topic", default="", help="only messages of this topic")
    parser.add_argument("--report-hits", action="store_true", help="it reports what requests found (vLLM: full mode)")
    for name, kind, what in (("seconds", float, "have passed"), ("batches", int, "have come")):
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=f"end when so many {what}; default: Ctrl-C")
    parser.add_argument("--idle", type=float, metavar="S", help="end when nothing has come for S seconds")
    return parser


if __name__ == "__main__":
    exit_with(main)
