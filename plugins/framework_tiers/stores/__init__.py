"""Built-in stores of tiers below the pool."""
