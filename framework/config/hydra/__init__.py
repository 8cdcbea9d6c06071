"""Composition of configurations with Hydra. No other room imports Hydra or OmegaConf."""
