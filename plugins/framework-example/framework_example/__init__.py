"""Three small plugins for kvcache-framework, to be copied."""
