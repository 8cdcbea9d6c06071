"""Compression of running requests' KV in the pool, and attention that reads only the blocks that matter."""
