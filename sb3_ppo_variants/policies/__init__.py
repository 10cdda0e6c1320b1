"""Policies and their kinds: how a step of a rollout and a minibatch are evaluated."""

from sb3_ppo_variants.policies import masked, recurrent  # They register the kinds of their policies.

__all__ = ["masked", "recurrent"]
