"""Parts of every command: exit status, signals, progress on standard error."""

from __future__ import annotations

COMMAND = "KVLAB_COMMAND"
"""The environment variable in which the workers of a sweep's launcher have the command line that the user gave."""
