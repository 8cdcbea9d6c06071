"""Decoders of the Llama kind in plain torch, checkpoint loading, tokenizers, sampling."""
