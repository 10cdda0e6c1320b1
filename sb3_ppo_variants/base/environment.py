"""Checks of the environment that a model is given, and that it can learn in it."""

from typing import Any

from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments.nested import check_observations
from sb3_ppo_variants.arguments.rules import LEARN_RULES, check_arguments, check_spaces
from sb3_ppo_variants.arguments.spaces import check_start
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving import SavedAlgorithm


def checked_env(
    policy: str | type[BasePolicy],
    policy_kwargs: dict[str, Any] | None,
    env: GymEnv | str | None,
    verbose: int,
    use_sde: bool,
    needed: bool,
) -> VecEnv | None:
    """Wrap an environment as SB3 does, and check that its spaces fit the policy.

    :param needed: whether ``env=None`` is an error
    :return: the wrapped environment; ``None`` if none was given
    :raises ArgumentError: if an environment is needed and there is none, or its spaces do not fit
    """
    if env is None:
        if needed:
            raise ArgumentError("env=None: pass an environment or the id of a registered one")
        return None
    wrapped = SavedAlgorithm._wrap_env(maybe_make_env(env, verbose), verbose)
    check_spaces(wrapped.action_space, use_sde)
    check_start("action", wrapped.action_space)
    check_observations(policy, wrapped.observation_space, policy_kwargs)
    return wrapped


def check_learn(env: VecEnv | None, **arguments: object) -> None:
    """Check the arguments of ``learn``, and that there is an environment to learn in.

    :raises ArgumentError: if an argument is not allowed, or there is no environment
    """
    check_arguments(arguments, LEARN_RULES)
    if env is None:
        raise ArgumentError("the model has no environment to learn in: pass env to load(), or call set_env()")
