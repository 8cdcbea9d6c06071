"""One engine for serve and replay: schedule, allocate, execute, commit, sample, free."""
