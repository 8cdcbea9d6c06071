"""One model over several devices: tensor parallelism over torch.distributed, on one machine.

Rank 0 is the caller's process: it alone schedules, keeps block metadata and draws tokens. The others are processes
of its own that hold their part of the weights and of the KV pool, do what rank 0 tells them, and end with it.
"""
