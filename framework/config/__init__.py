"""Hydra's side of the command line. Imported by `framework.run` alone; everything else takes plain dicts."""
