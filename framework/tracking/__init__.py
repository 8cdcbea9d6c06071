"""Where results go: run directory, JSON lines, Weights & Biases."""
