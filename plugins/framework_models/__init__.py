"""Model families beside the plain decoder: routed experts, capped, latent and linear attention."""
