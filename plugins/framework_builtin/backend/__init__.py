"""Built-in plugins of kind backend."""
