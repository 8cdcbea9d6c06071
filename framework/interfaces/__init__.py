"""The four doors: allocator, eviction, hash, backend. An interface knows no implementation."""
