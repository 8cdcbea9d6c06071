"""What became of the requests, how far their tokens agree with a dense model, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator

from framework.results.metric import Metric, dense_checked, lossy, section, text

requests, speed = section("requests"), section("speed", wall=True)


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
    requests("num_finished", "requests", "higher", "finished",
             "Requests that ended with all their tokens.", of="num_requests"),
    requests("num_requests", "requests", "", "requests", "Requests submitted."),
    requests("num_rejected", "requests", "lower", "rejected", "Requests that could never be served.", hide_zero=True),
    Metric(key="max_model_len", unit="tokens", better="", section="requests", title="longest sequence",
           definition="Longest sequence that the engine takes, tokens of prompt and answer: the least of "
           "engine.max_model_len, the model's positions and the pool; longer requests are rejected.",
           of="max_model_len_asked", when=lambda result: "max_model_len_asked" in result),
    Metric(key="max_model_len_asked", unit="tokens", better="", section="requests", title="longest sequence asked",
           definition="What engine.max_model_len asked for, where that is more than the model or the pool can hold."),
    requests("num_cancelled", "requests", "lower", "cancelled", "Requests cancelled by their owner.", hide_zero=True),
    requests("num_failed", "requests", "lower", "failed",
             "Requests that ended with an error; any makes the run a failure.",
             hide_zero=True),
    requests("num_skipped_lines", "requests", "lower", "lines skipped",
             "Lines of the trace left out by `on_error=skip`.",
             hide_zero=True),
    requests("dense_mismatches", "requests", "lower", "differ from dense",
             "Checked requests whose tokens differ from the plain "
             "dense model's; any makes the run a failure. Null where tokens may differ: for a backend that declares a "
             "loss, and where K and V are of another dtype than the model's.", of="dense_checked",
             when=lambda result: dense_checked(result) and result.get("dense_mismatches") is not None),
    requests("loss_exceeded", "requests", "lower", "lost more than declared",
             "Checked requests whose attention lost more than the backend declares, or is not finite; any makes the "
             "run a failure. Null where no loss was declared and all is finite.", of="dense_checked",
             when=lambda result: result.get("loss_exceeded") is not None),
    requests("dense_checked", "requests", "", "checked", "Greedy requests decoded again without a cache."),
    Metric(key="dense_mismatched_requests", unit="list", better="", section="requests", title="which differ",
           definition="Numbers of the checked requests that differ, or lost more than declared; `requests.jsonl` "
           "says from which token on.",
           when=lambda result: bool(result.get("dense_mismatched_requests"))),
    Metric(key="dense_agreement", unit="share", better="higher", section="requests", title="agrees with dense",
           definition="Served tokens that are the plain dense model's likeliest, over all tokens of the checked "
           "requests; for a backend that declares a loss, or K and V of another dtype than the model's.", when=lossy),
    Metric(key="dense_logit_error", unit="logits", better="lower", section="requests", title="largest logit error",
           definition="Largest difference of a logit from the dense model's, the same tokens given.", when=lossy),
    Metric(key="dense_kl_divergence", unit="nats", better="lower", section="requests", title="KL divergence",
           definition="KL(dense || served) of the next token's distribution, mean over tokens.", when=lossy),
    Metric(key="attention_error", unit="share", better="lower", section="requests", title="attention error",
           definition="Largest difference of an attention output from the exact one over the same K and V, before a "
           "narrower pool rounds them, as a share of the largest |V|. More than the backend declares makes the run a "
           "failure.", when=lossy),
    Metric(key="attention_error_declared", unit="share", better="", section="requests", title="declared",
           definition="What the backend declares to lose: `Capabilities.lossy.max_error`.",
           when=lambda result: result.get("attention_error_declared") is not None),
    Metric(key="dense_ties", unit="tokens", better="", section="requests", title="dense ties", hide_zero=True,
           definition="Tokens whose two likeliest logits are too close for a verdict."),
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
