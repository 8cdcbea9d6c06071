"""The attention backend in Triton: plain functions, so that one process may interpret and compile them."""
