"""Complete scripts for users, and the environments that they share."""
