"""Attention backends in PyTorch alone: the default, one that gathers, and one for packed queries."""
