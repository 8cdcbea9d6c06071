"""Tiers below the pool in a running engine: what is loaded for which request, and what is stored."""
