"""Built-in plugins of kind eviction."""
