"""Ways in which groups of KV share memory."""
