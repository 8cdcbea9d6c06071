"""Causes of misses: why a prompt token was computed though it, or something like it, was asked for before."""
