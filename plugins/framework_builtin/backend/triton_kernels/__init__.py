"""Triton kernels of paged attention: plain functions, so that one process may interpret and compile them."""
