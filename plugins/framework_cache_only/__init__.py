"""Replays that count hits alone: each request of a trace is one access to a cache of blocks."""
