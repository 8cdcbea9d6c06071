"""Speed and latency."""

from __future__ import annotations

from collections.abc import Iterator

from framework.results.metric import Metric, section, text

speed = section("speed", wall=True)


def percentiles(name: str, title: str, definition: str, note: str) -> Iterator[Metric]:
    """The 50th, 95th and 99th percentile of one latency in seconds, as `<name>_s_p50` and so on."""
    for percent in (50, 95, 99):
        yield Metric(
            key=f"{name}_s_p{percent}",
            unit="s",
            better="lower",
            section="latency",
            title=title if percent == 50 else f"{title}, p{percent}",
            definition=f"{definition}, {percent}th percentile over finished requests.",
            note=note,
            row="" if percent == 50 else f"{name}_s_p50",
            wall=True,
        )


def in_steps(*names: tuple[str, str, str]) -> Iterator[Metric]:
    """Times of a replayed recording, whose clock counts steps."""
    for name, title, definition in names:
        for percent in (50, 95, 99):
            yield Metric(
                key=f"{name}_steps_p{percent}",
                unit="steps",
                better="lower",
                section="latency",
                title=f"{title}, steps" if percent == 50 else f"{title}, steps, p{percent}",
                definition=f"{definition}, in steps, {percent}th percentile over finished requests.",
                row="" if percent == 50 else f"{name}_steps_p50",
            )


METRICS: tuple[Metric, ...] = (
    speed("wall_s", "s", "lower", "time", "From the first arrival to the last end, on the run's clock.",
          note="{clock}, arrival to end"),
    Metric(key="wall_steps", unit="steps", better="", section="speed", title="time, in steps", note="arrival to end",
           definition="From the first arrival to the last end of a replayed recording, whose clock counts steps."),
    speed("output_tokens_per_s", "tokens/s", "higher", "output tokens/s", "Generated tokens over `wall_s`."),
    speed("total_tokens_per_s", "tokens/s", "higher", "all tokens/s", "Computed and generated tokens over `wall_s`."),
    speed("requests_per_s", "requests/s", "higher", "requests/s", "Finished requests over `wall_s`."),
    speed("goodput_requests_per_s", "requests/s", "higher", "goodput, requests/s",
          "Finished requests that met both objectives (replay.slo_ttft_s, replay.slo_tpot_s) over `wall_s`."),
    speed("engine_overhead", "share", "lower", "engine overhead", "Step time outside the model over step time.",
          note="of step time"),
    speed("schedule_s", "s", "lower", "scheduling", "Time in the scheduler, summed over steps."),
    speed("forward_s", "s", "lower", "model", "Time in the model, summed over steps."),
    speed("sample_s", "s", "lower", "sampling", "Time in sampling and bookkeeping, summed over steps."),
    Metric(key="num_steps", unit="steps", better="", section="speed", title="steps", definition="Engine steps."),
    speed("replay_s", "s", "lower", "replayed in", "Wall time of the whole replay, reading the trace included."),
    speed("count_s", "s", "lower", "counted in", "Wall time of counting hits, reading the trace excepted."),
    text("speed", "replay_core", "replay core", "Which core counted: see docs/traces.md."),
    *percentiles("ttft", "first token", "From arrival to the first generated token", "{clock}, from arrival"),
    *percentiles("tpot", "each next token", "Time between the first and last token over the tokens after the first",
                 "{clock}"),
    *percentiles("latency", "whole request", "From arrival to the last token", "{clock}"),
    *in_steps(
        ("ttft", "first token", "From arrival to the first generated token"),
        ("tpot", "each next token", "Steps between the first and last token over the tokens after the first"),
        ("latency", "whole request", "From arrival to the last token"),
    ),
)  # fmt: skip
