"""Runs on Weights & Biases."""
