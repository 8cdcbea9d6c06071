"""Plugins for kvcache-framework."""
