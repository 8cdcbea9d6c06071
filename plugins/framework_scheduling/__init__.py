"""Orders of the waiting queue, each from its source."""
