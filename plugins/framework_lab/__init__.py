"""Searches, curves over capacity, reuse distances, fitted clocks and W&B sweeps: commands around many runs."""
