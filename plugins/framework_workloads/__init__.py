"""Workloads, and the readers of traces that they and other packages use."""
