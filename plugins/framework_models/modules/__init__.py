"""The modules of their layers."""
