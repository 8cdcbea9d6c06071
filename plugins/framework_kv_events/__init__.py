"""KV events: what a cache published, removed and cleared, in vLLM's schema; made, sent, followed and read."""
