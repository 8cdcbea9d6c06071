"""Executors: a transformer over the KV pool, or a replay without one, behind one interface, `base.Executor`."""
