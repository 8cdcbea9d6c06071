"""Conformance kits of tiering rules and stores, in the modules `tiering` and `store`."""
