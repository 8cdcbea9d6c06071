"""Composition of configurations with Hydra. Beside it only `framework.run` knows Hydra."""
