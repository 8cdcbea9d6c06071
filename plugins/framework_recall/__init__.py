"""Tasks of recall whose answers are known, and a small model that was trained on them."""
