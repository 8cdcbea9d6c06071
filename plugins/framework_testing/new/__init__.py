"""`python -m framework new`: a package with one plugin."""
