"""Compare algorithms over environments and seeds: plan the runs, execute them, and report the results."""
