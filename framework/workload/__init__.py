"""What is served: prompts, traces, arrival processes."""
