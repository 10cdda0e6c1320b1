"""The state of a run outside of its model: random generators, environments and SB3's callbacks."""

import pickle
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common import callbacks
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.envs.adapter import has_attr, seed_env
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.processes import find_normalizations
from sb3_ppo_variants.saving.files import is_plain

# The attribute with the states of LSTMs in the current episodes, which sb3-contrib does not save either.
LSTM_STATES = "_last_lstm_states"
# The attributes of each class of callbacks that hold its state. They apply to subclasses too.
REMEMBERED: Mapping[type, Sequence[str]] = {
    BaseCallback: ("n_calls",),
    EvalCallback: (
        *("best_mean_reward", "last_mean_reward"),
        *("evaluations_timesteps", "evaluations_results", "evaluations_length", "evaluations_successes"),
    ),
    callbacks.EveryNTimesteps: ("last_time_trigger",),
    callbacks.StopTrainingOnMaxEpisodes: ("n_episodes",),
    callbacks.StopTrainingOnNoModelImprovement: ("last_best_mean_reward", "no_improvement_evals"),
}
# The attribute in which a callback of your own names those that hold its state.
NAMED_IN = "remembered"
# What a VecNormalize wrapper has from the environment inside it.
OF_ENV = ("venv", "observation_space", "action_space")
WALKER = "gymnasium.envs.box2d.bipedal_walker:BipedalWalker"
# Maps the name of each class to the states of its callbacks, in their order.
Memories: TypeAlias = dict[str, list[Values]]


def get_random_state() -> Values:
    """Get the states of the generators of Python, NumPy and PyTorch on the CPU and each GPU, as plain values."""
    has_begun: Callable[[], bool] = th.cuda.is_initialized  # PyTorch does not annotate it.
    cuda = th.cuda.get_rng_state_all() if has_begun() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": th.get_rng_state().numpy(),
        "cuda": [of_gpu.numpy() for of_gpu in cuda],
    }


def set_random_state(state: Values) -> None:
    """Set the generators to what :func:`get_random_state` returned, and warn if there are fewer GPUs now."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    th.set_rng_state(th.from_numpy(state["torch"]))
    for index, of_gpu in enumerate(state["cuda"]):
        if index >= th.cuda.device_count():
            warnings.warn(f"There is no cuda:{index}, so its random state is not restored and the run will differ.")
            break
        th.cuda.set_rng_state(th.from_numpy(of_gpu), index)


def begin_episodes(model: OnPolicyAlgorithm, seed: int, rank: int) -> None:
    """Begin a new episode in every environment, with random numbers that depend only on the seed, step and rank.

    Call this between rollouts: the advantages then treat the episodes that it cuts short as truncated by a time limit.
    """
    env = model.env
    assert env is not None
    (seed,) = _derive_seeds([seed, model.num_timesteps, *([rank] if rank else [])], 1)
    seed_episodes(env, seed)
    env.action_space.seed(seed)
    model._last_obs = env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(env.num_envs, dtype=bool)
    if (states := getattr(model, LSTM_STATES, None)) is not None:
        setattr(model, LSTM_STATES, states._make(tuple(map(th.zeros_like, of_lstm)) for of_lstm in states))
    if model._vec_normalize_env is not None:
        model._last_original_obs = model._vec_normalize_env.get_original_obs()
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)


def _derive_seeds(numbers: list[int], n: int) -> list[int]:
    # Some environments only accept 31 bits.
    return [int(seed) >> 1 for seed in np.random.SeedSequence(numbers).generate_state(n)]


def seed_episodes(env: VecEnv, seed: int) -> None:
    """Make the next reset begin new episodes, with random numbers that depend only on the seed."""
    if has_attr(env, "was_real_done"):
        # Otherwise an EpisodicLifeEnv continues with the next life.
        env.env_method("set_wrapper_attr", "was_real_done", True)
    if has_attr(env, "hardcore"):
        # Give each BipedalWalker a new world: what episodes leave in its own changes later ones, whatever the seed.
        for index, spec in enumerate(env.get_attr("spec")):
            if spec is not None and spec.entry_point == WALKER:
                made_with = {name: env.get_attr(name, index)[0] for name in ("_ezpickle_args", "_ezpickle_kwargs")}
                env.env_method("__setstate__", made_with, indices=index)
    seed_env(env, seed)


def restore_normalizations(env: VecEnv, states: list[bytes]) -> None:
    """Restore pickled ``VecNormalize`` wrappers, outermost first; an error if there are fewer or more now."""
    wrappers = find_normalizations(env)
    if len(wrappers) != len(states):
        raise ArgumentError(f"env has {len(wrappers)} VecNormalize wrappers, but the run had {len(states)}")
    for wrapper, state in zip(wrappers, states, strict=True):
        saved = vars(pickle.loads(state))
        vars(wrapper).update({name: value for name, value in saved.items() if name not in OF_ENV})


def get_memories(callback: BaseCallback) -> Memories:
    """Get the state of a callback and of the callbacks inside it.

    :raises ArgumentError: if a callback remembers a value that has no plain form
    """
    memories: Memories = defaultdict(list)
    for one in walk(callback):
        names = [name for cls, names in REMEMBERED.items() if isinstance(one, cls) for name in names]
        values = {name: getattr(one, name) for name in [*names, *getattr(one, NAMED_IN, ())]}
        for name, value in values.items():
            if not is_plain(value):
                raise ArgumentError(
                    f"{type(one).__name__}.{name} is a {type(value).__name__}, which a checkpoint cannot hold: keep "
                    "it in numbers, strings, NumPy arrays, or lists, tuples and dictionaries of them"
                )
        memories[type(one).__qualname__].append(values)
    return dict(memories)


def restore_memories(callback: BaseCallback, memories: Memories) -> None:
    """Restore the state of a callback and of the callbacks inside it. A callback without saved state starts afresh."""
    left = {name: iter(of_class) for name, of_class in memories.items()}
    for one in walk(callback):
        vars(one).update(next(left.get(type(one).__qualname__, iter(())), {}))


def seed_evaluations(callback: BaseCallback, seed: int, num_timesteps: int) -> None:
    """Seed the next evaluation of each ``EvalCallback`` with a number that depends only on the seed and the step."""
    evaluations = [one for one in walk(callback) if isinstance(one, EvalCallback)]
    seeds = _derive_seeds([seed, num_timesteps, len(evaluations)], len(evaluations))
    for evaluation, own_seed in zip(evaluations, seeds, strict=True):
        seed_episodes(evaluation.eval_env, own_seed)


def walk(callback: BaseCallback) -> Iterator[BaseCallback]:
    """Yield a callback and the callbacks inside it."""
    yield callback
    for child in inside(callback):
        yield from walk(child)


def inside(callback: BaseCallback) -> list[BaseCallback]:
    """List the callbacks that a callback of one of SB3's classes, or of a subclass, calls."""
    found: list[BaseCallback | None] = [*callback.callbacks] if isinstance(callback, callbacks.CallbackList) else []
    if isinstance(callback, callbacks.EventCallback):
        found += [callback.callback, getattr(callback, "callback_on_new_best", None)]
    return [child for child in found if child is not None]
