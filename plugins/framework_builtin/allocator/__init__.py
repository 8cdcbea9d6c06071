"""Built-in plugins of kind allocator."""
