"""Trace formats beside the most common ones."""
