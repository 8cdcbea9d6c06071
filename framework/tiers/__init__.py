"""Tiers below the pool: what lies in them, and how blocks move between them."""
