"""Conformance kits and slow oracles, shipped for plugin authors."""
