"""Routers, each from its source."""
