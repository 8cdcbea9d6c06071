"""Eviction policies of research: learnt ones, and those that open threads propose."""
