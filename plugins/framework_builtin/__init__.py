"""Every built-in allocator, eviction policy, hash scheme, backend and workload, registered as third-party ones are."""
