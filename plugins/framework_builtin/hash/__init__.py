"""Built-in plugins of kind hash."""
