"""Block allocators and CPU paged attention in C++, for kvcache-framework."""
