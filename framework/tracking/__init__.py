"""Where results go: run directory, JSON lines, provenance, and the error boundary around a tracker."""
