"""Every built-in allocator, eviction policy, hash scheme and attention backend, registered as third-party ones are."""
