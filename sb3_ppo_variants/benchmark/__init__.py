"""Measurements: ``python -m sb3_ppo_variants.benchmark``."""
