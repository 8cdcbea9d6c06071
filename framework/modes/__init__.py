"""What a run does, mode by mode: serve, replay, kernel, and the session that all of them share."""
