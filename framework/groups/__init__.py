"""Hybrid caches: several kinds of KV in one request, their hits, the memory they share, and a replay over them."""
