"""Built-in plugins of kind workload."""
