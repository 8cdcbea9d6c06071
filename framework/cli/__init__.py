"""What every command shares: exit status, how a command ends, progress on standard error."""
