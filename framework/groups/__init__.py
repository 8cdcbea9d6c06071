"""Several kinds of KV in one request: their hits, and the allocator that serves them."""
