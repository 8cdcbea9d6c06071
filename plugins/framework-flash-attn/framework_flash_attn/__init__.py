"""flash-attn 2, 3 and 4 as an attention backend of kvcache-framework."""
