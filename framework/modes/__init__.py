"""The modes of a run: serve, replay, cache-only, kernel; and the session that all of them share."""
