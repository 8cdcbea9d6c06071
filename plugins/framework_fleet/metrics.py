"""What mode=fleet writes to a result beside what a replay does."""

from framework.results.metric import section, text

run, cache, requests = section("run"), section("prefix cache"), section("requests")
optimum, scheduling, latency = section("optimum"), section("scheduling"), section("latency")

METRICS = (
    run("replicas", "replicas", "", "replicas", "Engines behind the router."),
    text("run", "router", "router", "What chose a replica for each request."),
    cache("missed_elsewhere_tokens", "tokens", "lower", "missed, elsewhere",
          "Prompt tokens computed although another replica had them as the request was routed.", of="prompt_tokens"),
    cache("missed_evicted_tokens", "tokens", "lower", "missed, evicted",
          "Prompt tokens computed that some replica had had, and none any longer as the request was routed.",
          of="prompt_tokens"),
    cache("missed_new_tokens", "tokens", "", "missed, new",
          "Prompt tokens computed that no replica had ever had as the request was routed; the tails of prompts, which "
          "fill no block, are among them.", of="prompt_tokens"),
    cache("expected_hit_tokens", "tokens", "", "expected hits",
          "Prompt tokens that the router's index had at the replica it chose; of one that reads no index, that the "
          "replica had.", of="prompt_tokens"),
    requests("resent_requests", "requests", "lower", "sent again", "Requests whose replica left before they ended.",
             hide_zero=True),
    requests("handoffs", "copies", "", "handed over", "Prompts whose KV a link copied from where it was computed to "
             "where it was decoded.", hide_zero=True),
    cache("handoff_blocks", "blocks", "lower", "handed over", "Blocks that links copied: what decoders did not hold."),
    cache("handoff_bytes", "bytes", "lower", "handed over", "Bytes that links copied."),
    latency("handoff_s_mean", "s", "lower", "handed over, mean", "From a computed prompt to its KV where it is "
            "decoded: waits for a row and for blocks, and the copy."),
    requests("expired_handoffs", "prompts", "lower", "leases ended", "Prompts whose blocks were kept until their lease "
             "ended and were not read; they were computed again.", hide_zero=True),
    requests("lost_handoffs", "prompts", "lower", "handed over, lost", "Prompts whose replica left before their KV was "
             "read; they were computed again.", hide_zero=True),
    scheduling("imbalance", "times", "lower", "imbalance",
               "Prompt tokens computed by the replica that computed most, over the mean of all."),
    optimum("shared_lru_hit_tokens", "tokens", "", "one shared cache, LRU",
            "Prompt tokens that one cache of all replicas' blocks hits under LRU, admitted requests one at a time, in "
            "their order.", of="prompt_tokens"),
    optimum("shared_optimum_hit_tokens", "tokens", "", "one shared cache, optimum",
            "The same under the offline optimum that pins the request at hand.", of="prompt_tokens"),
    optimum("static_hit_tokens", "tokens", "", "sessions fixed",
            "Prompt tokens that replicas hit under LRU when each session has a fixed one: the best assignment found, "
            "by size first and then by single moves.", of="prompt_tokens"),
    optimum("regret_tokens", "tokens", "lower", "regret in tokens",
            "Tokens that one shared cache hits under its optimum and the fleet did not.", of="prompt_tokens"),
    optimum("ttft_floor_s_mean", "s", "", "least first token, mean",
            "Mean time to the first token of prompts that hit all that a cache without bound would, each alone on the "
            "device."),
    optimum("ttft_regret_s", "s", "lower", "regret in time",
            "Mean time to the first token less the least, over finished requests."),
    latency("ttft_s_mean", "s", "lower", "first token, mean", "From arrival to the first generated token, mean over "
            "finished requests."),
)  # fmt: skip
