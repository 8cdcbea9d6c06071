"""Replays of hybrid models: several kinds of KV in one request, the memory they share, and rules for what is kept."""
