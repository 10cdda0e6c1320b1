"""Environments at a checkpoint: new episodes, and the state of ``VecNormalize``."""

import pickle

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.guards import capabilities
from sb3_ppo_variants.processes.statistics import normalizations

# Attributes with the states of LSTMs in the current episodes, named as in sb3-contrib, which does not save them either.
OF_EPISODES = ("_last_lstm_states",)


def begin_episodes(model: OnPolicyAlgorithm, seed: int) -> None:
    """Begin a new episode in every environment, with random numbers that depend only on the seed.

    Call this between rollouts: the advantages then treat the episodes that it cuts short as truncated by a time limit.
    """
    env = model.env
    assert env is not None
    seed_episodes(env, seed)
    env.action_space.seed(seed)
    model._last_obs = env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(env.num_envs, dtype=bool)
    for name in OF_EPISODES:
        if hasattr(model, name):
            states = getattr(model, name)
            setattr(model, name, states._make(tuple(map(th.zeros_like, of_lstm)) for of_lstm in states))
    if model._vec_normalize_env is not None:
        model._last_original_obs = model._vec_normalize_env.get_original_obs()
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)


def seed_episodes(env: VecEnv, seed: int) -> None:
    """Make the next reset begin new episodes, with random numbers that depend only on the seed."""
    if capabilities.has_attr(env, "was_real_done"):
        # Otherwise an EpisodicLifeEnv continues with the next life.
        env.env_method("set_wrapper_attr", "was_real_done", True)
    capabilities.seed(env, seed)


def pickle_normalizations(env: VecEnv) -> list[bytes]:
    """Return the states of all ``VecNormalize`` wrappers, outermost first, in SB3's format.

    :raises ArgumentError: if a wrapper does not pickle its complete state
    """
    states = []
    for wrapper in normalizations(env):
        states.append(pickle.dumps(wrapper))
        _state_for(wrapper, states[-1])
    return states


def restore_normalizations(env: VecEnv, states: list[bytes]) -> None:
    """Restore the states from :func:`pickle_normalizations` in an environment with the same wrappers.

    :raises ArgumentError: if the environment has different ``VecNormalize`` wrappers
    """
    wrappers = normalizations(env)
    if len(wrappers) != len(states):
        raise ArgumentError(f"env has {len(wrappers)} VecNormalize wrappers, but the run had {len(states)}")
    for wrapper, state in zip(wrappers, states, strict=True):
        for name, value in _state_for(wrapper, state).items():
            setattr(wrapper, name, value)


def _state_for(wrapper: VecNormalize, pickled: bytes) -> dict[str, object]:
    """Return the pickled state for this wrapper, without attributes that belong to the environment inside it."""
    saved, cls = pickle.loads(pickled), type(wrapper).__name__
    if not isinstance(wrapper, type(saved)):
        raise ArgumentError(f"env has a {cls}, but the run had a {type(saved).__name__} instead")
    bare = VecNormalize.__new__(VecNormalize)
    VecEnvWrapper.__init__(bare, wrapper.venv)
    # Attributes of every wrapper belong to the environment, and a reset starts new returns.
    others = {"returns", *vars(bare)}
    state = {name: value for name, value in vars(saved).items() if name not in others}
    if missing := sorted(vars(wrapper).keys() - state.keys() - others):
        raise ArgumentError(
            f"env has a {cls} with {', '.join(missing)}, which its state in the checkpoint lacks: pass it the "
            "arguments that it had in the run, and let its __getstate__() keep all of its state"
        )
    return state
