"""Compare algorithms over environments and seeds: what to run, running it, and the report."""
