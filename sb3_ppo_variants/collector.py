"""The loop that collects rollouts, shared by all engines and policy kinds."""

import warnings
from enum import IntEnum
from operator import is_
from typing import Any, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.envs.adapter import take_rows
from sb3_ppo_variants.envs.outputs import Info, innermost
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.layout import Actions, HybridLayout, is_hybrid

# Observations as environments return them: an array or a dict of arrays, with one row per environment.
Observations: TypeAlias = Any
# The lower and the upper bounds of actions.
Bounds: TypeAlias = tuple[np.ndarray, np.ndarray]

# The attribute with the states of LSTMs in the current episodes, which sb3-contrib does not save either.
LSTM_STATES = "_last_lstm_states"


class Reads(IntEnum):
    """What callbacks read of a step, and find in their ``locals``. More takes longer.

    Those that change the policy count as reading all, because collectors look for changes only then.
    """

    NOTHING = 0
    # What the environments took and returned.
    ENVS = 1
    ALL = 2


class Steps(Protocol):
    """Steps environments: a ``VecEnv``, or an object that takes its steps."""

    num_envs: int

    def step(self, actions: Actions) -> VecEnvStepReturn:
        """Step the environments."""


class Collector(Protocol):
    """Acts during one rollout, and writes it to the buffer."""

    def act(self, step: int, observations: Observations) -> np.ndarray:
        """Draw an action for each environment.

        :return: the actions as environments without hybrid actions take them, and the rows of hybrid actions
        :raises NonFiniteError: if an action is not finite
        """

    def seen(self) -> dict[str, object]:
        """Return what callbacks find in their ``locals`` about the last step of :meth:`act`, by SB3's names."""

    def terminal_value(self, observation: Observations, env_index: int) -> float | th.Tensor:
        """Estimate the value of the state in which the last step ended an episode, as a number or an array of one."""

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        """Write the last step of :meth:`act` to the buffer.

        :param observations: those of the step, or what a callback put in their place
        :param episode_starts: whether an episode began with the observations of the step, shape ``(n_envs,)``
        """

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        """Fill the rest of the buffer: advantages and returns.

        :param observations: the observations after the last step
        :param dones: whether the last step ended an episode, shape ``(n_envs,)``
        :return: the values of these states, shape ``(n_envs, 1)``
        """

    def old_parameters(self) -> Parameters | None:
        """Return the parameters of the distributions of the whole rollout, one row per row; ``None`` if unknown."""


class Turn:
    """Notices that somebody else has stepped or reset the environments since the loop did.

    A step replaces the actions of the innermost ``VecEnv``, and a reset the options of its next one. Of a single
    environment that somebody steps directly, the time limit tells, if it has one.

    :param env: environments that the loop has just reset
    """

    def __init__(self, env: VecEnv):
        self._env = innermost(env)
        single: Any = self._env.envs[0] if isinstance(self._env, DummyVecEnv) else None
        while isinstance(single, gym.Wrapper) and not isinstance(single, TimeLimit):
            single = single.env
        self._limit = single if isinstance(single, TimeLimit) else None
        self.take()

    def _now(self) -> tuple[object, object, object]:
        attributes = vars(self._env)
        actions = attributes.get("taken_actions", attributes.get("actions"))
        return actions, attributes.get("_options"), getattr(self._limit, "_elapsed_steps", None)

    def take(self) -> None:
        """Say that the loop has just stepped the environments."""
        self._seen = self._now()

    def is_kept(self) -> bool:
        """Whether nobody has stepped or reset the environments since then."""
        return all(map(is_, self._seen, self._now()))


def begin_new_episodes(model: Any) -> None:
    """Begin a new episode in every environment of a model, with an empty memory."""
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones(model.env.num_envs, dtype=bool)
    if (states := getattr(model, LSTM_STATES, None)) is not None:
        setattr(model, LSTM_STATES, states._make(tuple(map(th.zeros_like, of_lstm)) for of_lstm in states))
    if model._vec_normalize_env is not None:
        model._last_original_obs = model._vec_normalize_env.get_original_obs()
    model.run.turn = Turn(model.env)


def begin_again(model: Any) -> Observations:
    """Begin new episodes after somebody else has stepped or reset the environments, and warn about it.

    :return: the first observations
    """
    warnings.warn(
        "Something other than the model's own loop, such as a callback, evaluate_policy or another model, has stepped "
        "or reset its training environment. The model begins new episodes, but VecNormalize has also counted the other "
        "steps. Use a separate environment for everything but training"
    )
    observations: Observations = model.env.reset()
    model.run.turn.take()
    return observations


def truncate(observations: Observations, dones: np.ndarray, infos: list[Info]) -> None:
    """Mark the episodes that have just reached these observations as cut short, as by a time limit."""
    for i in np.flatnonzero(np.logical_not(dones)).tolist():
        infos[i].update({"terminal_observation": take_rows(observations, i), "TimeLimit.truncated": True})
    dones[:] = True


def begin_rollout(
    model: Any, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
) -> None:
    """Empty the buffer and call ``on_rollout_start``, where callbacks may change the arguments and the policy.

    If somebody else has used the environments, new episodes begin.
    """
    model.policy.set_training_mode(False)
    rollout_buffer.reset()
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)
    callback.on_rollout_start()
    callback.update_locals(
        dict(self=model, env=env, callback=callback, rollout_buffer=rollout_buffer, n_rollout_steps=n_rollout_steps)
    )
    if model.run.turn is None:
        model.run.turn = Turn(env)
    elif not model.run.turn.is_kept():
        model._last_obs, model._last_episode_starts = begin_again(model), np.ones(env.num_envs, dtype=bool)


def collect(
    model: OnPolicyAlgorithm,
    env: Steps,
    callback: BaseCallback,
    rollout_buffer: RolloutBuffer,
    collector: Collector,
    n_processes: int = 1,
) -> bool:
    """Fill the buffer, as SB3's ``collect_rollouts`` does.

    Callbacks find the same names in their ``locals``, except those of its loop over the environments. Changes that they
    make there in place take effect.

    :param env: steps the environments
    :param n_processes: number of processes that collect rollouts together; the steps of all of them count
    :return: False if the callback ended the rollout early
    """
    n_steps = rollout_buffer.buffer_size
    run: Any = model.run  # type: ignore[attr-defined]
    has_callbacks = bool(getattr(callback, "callbacks", True))  # Otherwise nobody else can step the environments.
    layout = getattr(model.policy, "layout", None)  # A hybrid policy knows which parts of its actions to scale.
    if not isinstance(layout, HybridLayout):
        layout = HybridLayout(model.action_space) if is_hybrid(model.action_space) else None
    reads = getattr(callback, "reads", Reads.ALL)
    for step in range(n_steps):
        taken: Actions = collector.act(step, _last_observations(model))
        if layout is not None:
            taken = layout.for_envs(taken)
        new_obs, rewards, dones, infos = env.step(taken)
        if has_callbacks:
            run.turn.take()
        model.num_timesteps += env.num_envs * n_processes
        if reads > Reads.NOTHING:
            of_envs = {"new_obs": new_obs, "rewards": rewards, "dones": dones, "infos": infos}
            of_collector = collector.seen() if reads is Reads.ALL else {}
            callback.update_locals({"n_steps": step, **of_collector, "clipped_actions": taken, **of_envs})
        if not callback.on_step():
            model._last_obs, model._last_episode_starts = new_obs, dones  # type: ignore[assignment]
            return False
        if has_callbacks and not run.turn.is_kept():
            truncate(new_obs, dones, infos)
            new_obs = begin_again(model)
        # SB3 asks every info for both, which takes long with many environments.
        noted = [i for i, info in enumerate(infos) if "episode" in info or "is_success" in info]
        if noted:
            model._update_info_buffer([infos[i] for i in noted], dones[noted])
        if True in dones.tolist():
            bootstrap(rewards, dones, infos, rollout_buffer.gamma, collector)
        collector.store(_last_observations(model), rewards, model._last_episode_starts)  # type: ignore[arg-type]
        model._last_obs = new_obs  # type: ignore[assignment]
        model._last_episode_starts = dones
    run.turn.take()
    values = collector.finish(model._last_obs, np.asarray(model._last_episode_starts))
    callback.update_locals({"n_steps": n_steps, "values": values})
    return True


def bootstrap(rewards: np.ndarray, dones: np.ndarray, infos: list[Info], gamma: float, collector: Collector) -> None:
    """Add the values of the states in which a time limit ended episodes, which it does not make terminal.

    See SB3's issue 633. The discount factor is that of the buffer, because a callback may set the model's for the next
    rollout.
    """
    for i in np.flatnonzero(dones).tolist():
        terminal = infos[i].get("terminal_observation")
        if terminal is not None and infos[i].get("TimeLimit.truncated", False):
            value = collector.terminal_value(terminal, i)
            with np.errstate(all="ignore"):
                rewards[i] += gamma * value


def _last_observations(model: OnPolicyAlgorithm) -> Observations:
    """Read the observations that the model acts on.

    :raises RuntimeError: if there are none
    """
    if model._last_obs is None:
        raise RuntimeError(
            "the model has no observations to act on, because set_env() discards them: if a callback calls it, call it "
            "between two calls of learn() instead, the second with reset_num_timesteps=False"
        )
    return model._last_obs


def resample_noise(model: OnPolicyAlgorithm, policy: ActorCriticPolicy, step: int, n_envs: int) -> None:
    """Draw other matrices for gSDE if ``sde_sample_freq`` asks for it in this step."""
    if model.use_sde and model.sde_sample_freq > 0 and step % model.sde_sample_freq == 0:
        policy.reset_noise(n_envs)


def bounds_of(policy: ActorCriticPolicy) -> Bounds | None:
    """Find the bounds to which actions are clipped for the environments, or ``None`` if they are not clipped.

    :raises ArgumentError: if actions are scaled to bounds that are too far apart
    """
    space = policy.action_space
    if not isinstance(space, spaces.Box):
        return None
    with np.errstate(over="ignore"):
        has_width = np.isfinite(space.high - space.low).all()
    if policy.squash_output and not has_width:
        raise ArgumentError(
            "squash_output=True scales actions to the bounds of env.action_space, which with ActionsAsDrawn, or other "
            f"bounds so far apart for their type, has no meaning: {space}. Leave out the wrapper, or squash_output"
        )
    return None if policy.squash_output else (space.low, space.high)


def bring_into_bounds(policy: ActorCriticPolicy, bounds: Bounds | None, actions: np.ndarray) -> np.ndarray:
    """Scale or clip actions to what the environments expect, in an array of its own, which they may change.

    :param bounds: those that :func:`bounds_of` has found
    """
    if policy.squash_output:
        return policy.unscale_action(actions)
    return actions.copy() if bounds is None else np.clip(actions, *bounds)
