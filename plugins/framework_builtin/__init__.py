"""Every built-in allocator, eviction policy, hash scheme and attention backend, registered as a stranger's would be."""
