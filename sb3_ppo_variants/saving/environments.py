"""Environments at a checkpoint: beginning new episodes, and the statistics of ``VecNormalize``."""

import pickle

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.errors import refuse

# What a VecNormalize has of its own; the rest is its environment's.
NORMALIZATION = (
    "obs_rms",
    "ret_rms",
    "norm_obs",
    "norm_obs_keys",
    "norm_reward",
    "clip_obs",
    "clip_reward",
    "gamma",
    "epsilon",
    "training",
    "old_reward",
)


def begin_episodes(model: OnPolicyAlgorithm, seed: int) -> None:
    """Begin a new episode in every environment, with random numbers that depend on the seed alone.

    It is called between rollouts, when the value of the last observation has stood for the rest of the episode in the
    advantages, as it does for an episode that a time limit ends.

    :param model: a model with an environment
    :param seed: seed of the first environment; the others have those that follow
    """
    env = model.env
    assert env is not None
    if env.has_attr("was_real_done"):
        # An EpisodicLifeEnv goes on with the next life otherwise.
        env.env_method("set_wrapper_attr", "was_real_done", True)
    env.seed(seed)
    env.action_space.seed(seed)
    model._last_obs = env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(env.num_envs, dtype=bool)
    if model._vec_normalize_env is not None:
        model._last_original_obs = model._vec_normalize_env.get_original_obs()
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)


def pickle_normalizations(env: VecEnv) -> list[bytes]:
    """The states of all ``VecNormalize`` wrappers, from the outside in, in SB3's format."""
    return [pickle.dumps(wrapper) for wrapper in _normalizations(env)]


def restore_normalizations(env: VecEnv, states: list[bytes]) -> None:
    """Put the states that :func:`pickle_normalizations` returned into an environment with the same wrappers.

    :raises ArgumentError: if it has more or fewer ``VecNormalize`` wrappers
    """
    wrappers = _normalizations(env)
    if len(wrappers) != len(states):
        refuse("env", env, f"one with {len(states)} VecNormalize wrappers, as the run had; this has {len(wrappers)}")
    for wrapper, state in zip(wrappers, states, strict=True):
        saved = pickle.loads(state)
        vars(wrapper).update({name: vars(saved)[name] for name in NORMALIZATION if name in vars(saved)})


def _normalizations(env: VecEnv) -> list[VecNormalize]:
    found = []
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            found.append(env)
        env = env.venv
    return found
