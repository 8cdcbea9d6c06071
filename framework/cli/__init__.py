"""Parts of every command: exit status, signals, progress on standard error."""
