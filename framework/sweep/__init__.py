"""Named, resumable sweeps: one folder an override set, and what is in it. Knows no Hydra."""
