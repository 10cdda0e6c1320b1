"""Checks of what a model is given: its class, its environment and what it returns, the arguments of ``learn``."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_ppo_variants.arguments.nested import check_observations
from sb3_ppo_variants.arguments.rules import LEARN_RULES, check_arguments, check_spaces
from sb3_ppo_variants.arguments.spaces import check_start
from sb3_ppo_variants.backends.native.normalizing import native_test
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.guards.guarded import check_seen, guarded
from sb3_ppo_variants.guards.interrupts import interrupts_can_be_held
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.updates.finite import check_parameters

OBJECTIVE = "define _objective, or use PPOCustom"
# What to do instead of overriding a method. Earlier versions called the first two, and SB3 calls the last.
INSTEAD: Mapping[str, str] = {
    "_policy_loss": OBJECTIVE,
    "_coefficients": OBJECTIVE,
    "_update_learning_rate": "pass a schedule as learning_rate",
}


def check_hooks(cls: type[OnPolicyAlgorithm]) -> None:
    """Check that a class overrides no method that is not called.

    :raises TypeError: if it does, naming the method and what to do instead
    """
    for name, instead in INSTEAD.items():
        if getattr(cls, name, None) is not getattr(OnPolicyAlgorithm, name, None):
            raise TypeError(f"{cls.__name__}.{name} is not called: {instead}")


def checked_env(
    policy: str | type[BasePolicy],
    policy_kwargs: dict[str, Any] | None,
    env: GymEnv | VectorEnv | str | None,
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
    made = env if isinstance(env, VectorEnv) else maybe_make_env(env, verbose)
    wrapped = SavedAlgorithm._wrap_env(made, verbose)
    check_spaces(wrapped.action_space, use_sde)
    check_start("action", wrapped.action_space)
    check_observations(policy, wrapped.observation_space, policy_kwargs)
    return wrapped


def check_learn(env: VecEnv | None, **arguments: object) -> None:
    """Check the arguments of ``learn``, and that there is an environment to learn in.

    It warns if the rollout buffer cannot hold the observations of the environment.

    :raises ArgumentError: if an argument is not allowed, or there is no environment
    """
    check_arguments(arguments, LEARN_RULES)
    if env is None:
        raise ArgumentError("the model has no environment to learn in: pass env to load(), or call set_env()")
    _warn_of_lost_fractions(env)


def _warn_of_lost_fractions(env: VecEnv) -> None:
    """Warn if ``VecNormalize`` returns fractions for observations that the rollout buffer stores as integers."""
    normalize = unwrap_vec_normalize(env)
    if normalize is None or not normalize.norm_obs:
        return
    space = env.observation_space
    keys = normalize.norm_obs_keys or []
    parts = [part for key, part in space.items() if key in keys] if isinstance(space, spaces.Dict) else [space]
    for part in parts:
        if np.issubdtype(part.dtype, np.integer):
            warnings.warn(
                f"VecNormalize turns observations in {part} into fractions, which the rollout buffer, like SB3's, "
                "stores as integers: the model learns from other observations than it acts on. Wrap each environment "
                "in gymnasium.wrappers.DtypeObservation(env, np.float32), or do not normalize these observations"
            )


@contextmanager
def settings_kept() -> Iterator[None]:
    """Enable gradients while the context is active, let interrupts be held, and restore all settings afterwards.

    Gradients may be disabled when the context begins, if an interrupt has hit the exit of a ``no_grad``. The settings
    are PyTorch's gradient mode, NumPy's error handling and the handler of Ctrl-C.
    """
    gradients, errors = th.is_grad_enabled(), np.geterr()
    try:
        th.set_grad_enabled(True)
        with interrupts_can_be_held():
            yield
    finally:
        th.set_grad_enabled(gradients)
        np.seterr(**errors)


@contextmanager
def checked(model: OnPolicyAlgorithm) -> Iterator[None]:
    """Check the environments while the context is active, and name the cause of errors that follow from bad numbers.

    After a ``ValueError`` or ``RuntimeError``, the parameters and the last observations are checked. If one of them is
    not finite, that is reported instead of the original error.
    """
    try:
        with guarded(model, native_test):
            yield
    except (ValueError, RuntimeError):
        check_parameters(model.policy)
        check_seen(model)
        raise
