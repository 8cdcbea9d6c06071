"""Replay of traces with the model taken out: the reference model of hit rates, the optimum, the paths they walk."""
