"""Files: JSON lines and whole files written beside and renamed. Knows nothing of what they hold."""
