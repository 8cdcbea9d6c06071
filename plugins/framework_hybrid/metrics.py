"""What mode=hybrid writes to a result beside what each group found and lost."""

from framework.results.metric import section

cache = section("prefix cache")

METRICS = (
    cache("unseen_tokens", "tokens", "", "new content", "Prompt tokens, in whole units of a hit, that no earlier "
          "request had: nothing could hit them.", of="prompt_tokens"),
    cache("junction_tokens", "tokens", "lower", "shared, not resumable",
          "Prompt tokens beyond the hit that full attention still had: computed again for want of a window or state.",
          of="prompt_tokens"),
    cache("resident_bytes", "bytes", "", "resident", "Contents that can be found, mean over places of the trace."),
    cache("stranded_bytes", "bytes", "lower", "stranded", "Of these, what no hit could use: another group lacks what "
          "goes with it.", of="resident_bytes"),
    cache("checkpoint_bytes", "bytes", "", "states", "Of these, recurrent states.", of="resident_bytes"),
    cache("bound_hit_tokens", "tokens", "", "bound of hits",
          "Prompt tokens that no sharing, rule or order could exceed with as many bytes; see framework_hybrid.optimum.",
          of="prompt_tokens"),
    cache("refused_requests", "requests", "lower", "refused", "Requests that needed more blocks than the memory has."),
)  # fmt: skip
