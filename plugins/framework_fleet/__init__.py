"""Several replicas behind a router, and clients that wait for their answers."""
