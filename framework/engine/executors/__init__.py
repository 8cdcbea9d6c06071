"""What does a step's work: a transformer over the KV pool, or a replay without one; one interface, `base.Executor`."""
