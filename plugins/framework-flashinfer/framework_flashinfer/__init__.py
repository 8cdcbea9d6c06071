"""FlashInfer as an attention backend of kvcache-framework."""
