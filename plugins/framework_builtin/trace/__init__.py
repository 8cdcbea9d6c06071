"""Built-in plugins of kind trace."""
