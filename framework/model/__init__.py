"""Llama and Qwen decoders in plain torch, checkpoint loading, tokenizers, sampling."""
