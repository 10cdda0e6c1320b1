"""Guards that stop training before a bad value from an environment, callback or worker process spoils it."""
