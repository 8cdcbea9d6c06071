"""mode=kernel: one attention backend, judged against fp64 and then measured over a grid of shapes."""
