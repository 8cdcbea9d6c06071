"""The model of `model=recall`, trained here."""
