"""`python -m framework.explain`: where prompt tokens came from, and why those that were missed were missed."""
