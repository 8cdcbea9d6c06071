"""Built-in tiering rules."""
