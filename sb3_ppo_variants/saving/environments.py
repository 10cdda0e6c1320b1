"""Environments at a checkpoint: new episodes, and the state of ``VecNormalize``."""

import pickle

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_ppo_variants.errors import ArgumentError

# What a model remembers of the present episodes, as sb3-contrib calls it. As there, it is not saved.
OF_EPISODES = ("_last_lstm_states",)


def begin_episodes(model: OnPolicyAlgorithm, seed: int) -> None:
    """Begin a new episode in every environment, with random numbers that depend on the seed alone.

    Call it between rollouts: the advantages then treat the episode that it cuts as one that a time limit ended.
    """
    env = model.env
    assert env is not None
    seed_episodes(env, seed)
    env.action_space.seed(seed)
    model._last_obs = env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(env.num_envs, dtype=bool)
    for name in OF_EPISODES:
        setattr(model, name, None)
    if model._vec_normalize_env is not None:
        model._last_original_obs = model._vec_normalize_env.get_original_obs()
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)


def seed_episodes(env: VecEnv, seed: int) -> None:
    """Let the next reset begin new episodes, with random numbers that depend on the seed alone."""
    if env.has_attr("was_real_done"):
        # An EpisodicLifeEnv goes on with the next life otherwise.
        env.env_method("set_wrapper_attr", "was_real_done", True)
    env.seed(seed)


def pickle_normalizations(env: VecEnv) -> list[bytes]:
    """The states of all ``VecNormalize`` wrappers, from the outside in, in SB3's format.

    :raises ArgumentError: if a wrapper does not pickle all of its state
    """
    states = []
    for wrapper in _normalizations(env):
        states.append(pickle.dumps(wrapper))
        _state_for(wrapper, states[-1])
    return states


def restore_normalizations(env: VecEnv, states: list[bytes]) -> None:
    """Put the states that :func:`pickle_normalizations` returned into an environment with the same wrappers.

    :raises ArgumentError: if its ``VecNormalize`` wrappers are others
    """
    wrappers = _normalizations(env)
    if len(wrappers) != len(states):
        raise ArgumentError(f"env has {len(wrappers)} VecNormalize wrappers, but the run had {len(states)}")
    for wrapper, state in zip(wrappers, states, strict=True):
        for name, value in _state_for(wrapper, state).items():
            setattr(wrapper, name, value)


def _state_for(wrapper: VecNormalize, pickled: bytes) -> dict[str, object]:
    """What was pickled of a wrapper like this one, except what belongs to the environment that it wraps."""
    saved, cls = pickle.loads(pickled), type(wrapper).__name__
    if not isinstance(wrapper, type(saved)):
        raise ArgumentError(f"env has a {cls}, but the run had a {type(saved).__name__} instead")
    bare = VecNormalize.__new__(VecNormalize)
    VecEnvWrapper.__init__(bare, wrapper.venv)
    # What any wrapper has is the environment's, and a reset begins new returns.
    others = {"returns", *vars(bare)}
    state = {name: value for name, value in vars(saved).items() if name not in others}
    if missing := sorted(vars(wrapper).keys() - state.keys() - others):
        raise ArgumentError(
            f"env has a {cls} with {', '.join(missing)}, which its state in the checkpoint lacks: pass it the "
            "arguments that it had in the run, and let its __getstate__() keep all of its state"
        )
    return state


def _normalizations(env: VecEnv) -> list[VecNormalize]:
    inner = _normalizations(env.venv) if isinstance(env, VecEnvWrapper) else []
    return [env, *inner] if isinstance(env, VecNormalize) else inner
