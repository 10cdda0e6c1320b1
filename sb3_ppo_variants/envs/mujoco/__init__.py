"""MuJoCo's environments in batches, which its own threads simulate."""
