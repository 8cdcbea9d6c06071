"""What became of the requests, and how far their tokens agree with a dense model."""

from __future__ import annotations

from framework.results.metric import Metric, dense_checked, lossy, section

requests = section("requests")

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
)  # fmt: skip
