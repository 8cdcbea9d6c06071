"""The toolkit for paged allocators: block pool, prefix index, the easy rung of the allocator ladder."""
