"""Reasons why the library cannot compute a policy."""

import torch as th
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from sb3_ppo_variants.backends.arrays.networks import Architecture
from sb3_ppo_variants.backends.arrays.obstacles import obstacle as arrays_obstacle
from sb3_ppo_variants.backends.arrays.state_dependent import Settings
from sb3_ppo_variants.backends.native.library import REBUILD, library
from sb3_ppo_variants.objectives import AdaptiveKL, Clipped, KLPenalized, Unclipped
from sb3_ppo_variants.updates.plan import UpdatePlan

# The objectives that losses.hpp implements. Their subclasses are excluded, because they may have any loss.
OBJECTIVES = (Clipped, KLPenalized, AdaptiveKL, Unclipped)
PLAIN_GSDE = Settings(use_expln=False, learn_features=False, epsilon=1e-6, squash_epsilon=None)
TYPES = (th.float32, th.float64)
REMEDY = f"to build it, install a C++ compiler and then: {REBUILD}"


def obstacle(plan: UpdatePlan) -> str | None:
    """Return the first reason why the library cannot run a plan, as a clause, or ``None`` if it can.

    The library cannot run any plan that cannot be computed over arrays.
    """
    return (
        arrays_obstacle(plan)
        or _library_obstacle()
        or _objective_obstacle(plan)
        or _policy_obstacle(plan)
        or _parameters_obstacle(plan)
    )


def _library_obstacle() -> str | None:
    return f"the native library was not built ({REMEDY})" if library() is None else None


def _objective_obstacle(plan: UpdatePlan) -> str | None:
    if type(plan.objective) not in OBJECTIVES:
        return f"the native library does not support the objective {type(plan.objective).__name__}"
    return None


def _policy_obstacle(plan: UpdatePlan) -> str | None:
    if plan.kind.takes_masks:
        return "the native library does not support action masks"
    policy = plan.kind.policy
    if not isinstance(policy.action_dist, StateDependentNoiseDistribution):
        return None
    if not policy.action_dist.full_std or Settings.of(policy.action_dist) != PLAIN_GSDE:
        return "the native library supports gSDE only with its default options"
    hidden = Architecture.of(policy).actor
    return None if hidden else "the native library supports gSDE only with hidden layers"


def _parameters_obstacle(plan: UpdatePlan) -> str | None:
    # The optimizers hold all parameters of the policy; asking the policy for them is slower.
    for parameter in (each for optimizer in plan.optimizers for each in optimizer.param_groups[0]["params"]):
        if not parameter.is_contiguous():
            return "some parameters are not contiguous in memory"
        if parameter.dtype not in TYPES:
            return f"the native library does not compute in {parameter.dtype}"
        if parameter.data_ptr() % parameter.itemsize:
            return "some parameters are not aligned in memory"
    return None
