"""Slow, obvious truths the kits compare against."""
