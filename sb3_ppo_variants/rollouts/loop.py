"""The loop that collects rollouts, shared by all backends and policy kinds: one rollout at a time, and whole ones."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.guards.outputs import Watch, check_episode
from sb3_ppo_variants.rollouts.normalized import Steps, fast_steps

# This is not an attribute of the buffers, so that a copy of the model made during a rollout has a free buffer.
_UNDER_WAY: WeakSet[RolloutBuffer] = WeakSet()


@contextmanager
def one_rollout(buffer: RolloutBuffer, n_steps: int) -> Iterator[None]:
    """Reserve the buffer for one rollout while the context is active.

    :param n_steps: length of the rollout
    :raises ArgumentError: if the buffer has a different length
    :raises RuntimeError: if another rollout is under way
    """
    check_is_free(buffer)
    if n_steps != buffer.buffer_size:
        raise ArgumentError(
            f"n_steps={n_steps} was set after the rollout buffer was created with n_steps={buffer.buffer_size}. "
            f"To change it, save the model and pass n_steps={n_steps} to load()"
        )
    _UNDER_WAY.add(buffer)
    try:
        yield
    finally:
        _UNDER_WAY.discard(buffer)


def check_is_free(buffer: RolloutBuffer) -> None:
    """Check that no rollout is being written to the buffer.

    :raises RuntimeError: if one is
    """
    if buffer in _UNDER_WAY:
        raise RuntimeError(
            "a callback called learn() of the model that is being trained, whose rollout is not complete: train a copy "
            "of the model, or call learn() when this training has ended"
        )


def check_is_full(buffer: RolloutBuffer) -> None:
    """Check that the buffer holds a complete rollout.

    :raises RuntimeError: if steps are missing
    """
    if not buffer.full:
        raise RuntimeError(
            f"train() needs a whole rollout, but the buffer has {buffer.pos} of {buffer.buffer_size} steps: "
            "call collect_rollouts() first, or learn(), which calls both"
        )


# Observations as environments return them: an array or a dict of arrays, with one row per environment.
Observations: TypeAlias = Any


class Actor(Protocol):
    """Acts during one rollout, and writes it to the buffer."""

    def act(self, step: int, observations: Observations) -> np.ndarray:
        """Draw an action for each environment.

        :return: the actions as the environments take them
        :raises NonFiniteError: if an action is not finite
        """

    def seen(self) -> dict[str, Any]:
        """Return what callbacks find in their ``locals`` about the last step of :meth:`act`, by SB3's names."""

    def terminal_value(self, observation: Observations, env_index: int) -> Any:
        """Return the value of the state in which the last step ended an episode, as a number or an array of one."""

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        """Write the last step of :meth:`act` to the buffer.

        :param observations: those of the step, or what a callback put in their place
        :param episode_starts: whether an episode began with the observations of the step, shape ``(n_envs,)``
        """

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        """Fill the rest of the buffer: advantages, returns and old parameters.

        :param observations: the observations after the last step
        :param dones: whether the last step ended an episode, shape ``(n_envs,)``
        :return: the values of these states, shape ``(n_envs, 1)``
        """


def collect(
    model: OnPolicyAlgorithm,
    env: VecEnv,
    callback: BaseCallback,
    rollout_buffer: RolloutBuffer,
    n_rollout_steps: int,
    acting: Callable[[], AbstractContextManager[Actor]],
    n_processes: int = 1,
    steps_of: Callable[[VecEnv], Steps] = fast_steps,
) -> bool:
    """Collect a rollout, as SB3's ``collect_rollouts`` does.

    Callbacks find the same names in their ``locals``, and changes that they make there in place take effect.

    :param acting: returns a context with the actor; called after ``on_rollout_start``, which may change the policy
    :param n_processes: number of processes that collect rollouts together; the steps of all of them count
    :param steps_of: returns the object that steps the environments
    :return: False if the callback ended the rollout early
    """
    model.policy.set_training_mode(False)
    rollout_buffer.reset()
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)
    callback.on_rollout_start()
    callback.update_locals(
        dict(self=model, env=env, callback=callback, rollout_buffer=rollout_buffer, n_rollout_steps=n_rollout_steps)
    )
    # An empty list of callbacks reads no locals, so there is no need to build them at each step.
    heard = not isinstance(callback, CallbackList) or len(callback.callbacks) > 0
    with acting() as actor:
        steps = steps_of(env)
        for step in range(n_rollout_steps):
            if not _step(model, steps, callback, heard, actor, step, n_processes, rollout_buffer.gamma):
                return False
        values = actor.finish(model._last_obs, np.asarray(model._last_episode_starts))
    callback.update_locals({"n_steps": n_rollout_steps, "values": values})
    callback.on_rollout_end()
    return True


def _step(
    model: OnPolicyAlgorithm,
    env: Steps,
    callback: BaseCallback,
    heard: bool,
    actor: Actor,
    step: int,
    n_processes: int,
    gamma: float,
) -> bool:
    """Take one step in every environment.

    :param gamma: the discount factor of the buffer, because a callback may set the model's for the next rollout
    :return: False if the callback ends the rollout
    """
    new_obs, rewards, dones, infos = env.step(actor.act(step, _last_observations(model)))
    model.num_timesteps += env.num_envs * n_processes
    if heard:
        callback.update_locals(
            {"n_steps": step, "new_obs": new_obs, "rewards": rewards, "dones": dones, "infos": infos, **actor.seen()}
        )
    if not callback.on_step():
        return False
    ended = np.flatnonzero(dones) if True in dones.tolist() else ()
    for i in ended:
        check_episode(infos[i], int(i), Watch(model))
    model._update_info_buffer(infos, dones)
    for i in ended:
        terminal = infos[i].get("terminal_observation")
        if terminal is not None and infos[i].get("TimeLimit.truncated", False):
            # A time limit does not make a state terminal: bootstrap with the state's value (SB3 issue 633).
            rewards[i] += gamma * actor.terminal_value(terminal, int(i))
    actor.store(_last_observations(model), rewards, model._last_episode_starts)  # type: ignore[arg-type]
    model._last_obs = new_obs  # type: ignore[assignment]
    model._last_episode_starts = dones
    return True


def _last_observations(model: OnPolicyAlgorithm) -> Observations:
    """Return the observations that the model acts on.

    :raises RuntimeError: if there are none
    """
    if model._last_obs is None:
        raise RuntimeError(
            "the model has no observations to act on, because set_env() discards them: if a callback calls it, call it "
            "between two calls of learn() instead, the second with reset_num_timesteps=False"
        )
    return model._last_obs


def bounds_of(policy: ActorCriticPolicy) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the bounds to which actions are clipped for the environments, or ``None`` if they are not clipped.

    :raises ArgumentError: if actions are scaled to bounds that are too far apart
    """
    space = policy.action_space
    if isinstance(space, spaces.Box) and policy.squash_output and _has_no_width(space):
        raise ArgumentError(
            "squash_output=True scales actions to the bounds of env.action_space, which with ActionsAsDrawn, or other "
            f"bounds so far apart, has no meaning: {space}. Leave out the wrapper, or squash_output"
        )
    return (space.low, space.high) if isinstance(space, spaces.Box) and not policy.squash_output else None


def _has_no_width(space: spaces.Box) -> bool:
    """Return whether bounds are so far apart that their distance is not a finite number."""
    with np.errstate(over="ignore"):
        return not np.isfinite(space.high - space.low).all()
