"""Tiers below the pool: blocks that the pool gives up lie in host memory or on disk, and are loaded back."""
