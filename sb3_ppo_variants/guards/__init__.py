"""Guards that stop training before a bad value from an environment or a worker process spoils it."""
