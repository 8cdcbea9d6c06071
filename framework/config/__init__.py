"""The configuration: every section's type with its bounds, the check of a plain dict, and Hydra's side."""
