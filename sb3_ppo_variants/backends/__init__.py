"""Where rollouts and updates are computed."""
