"""The rollout of the reference path, which is SB3's, over arrays."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.fast.features import Features, Observations, as_batch
from sb3_ppo_variants.fast.gae import compute_returns_and_advantage
from sb3_ppo_variants.fast.networks import ActorCritic, Architecture, parameter_views
from sb3_ppo_variants.fast.threads import blas_threads


class Actor:
    """Acts as the policy does, with all random numbers of a rollout drawn at its beginning.

    It reads the policy's parameters where they are, so that a callback may change them in place.

    :param policy: the policy
    :param n_steps: length of the rollout
    :param n_envs: number of environments
    """

    def __init__(self, policy: ActorCriticPolicy, n_steps: int, n_envs: int):
        architecture, parameters = Architecture.of(policy), parameter_views(policy)
        bias = parameters["action_net.bias"]
        self._networks = ActorCritic(architecture, parameters)
        self._features = Features(policy, bias.dtype)
        self._threads = blas_threads(policy, n_envs)
        self._noise = iter(architecture.kind.noise((n_steps, n_envs, len(bias)), th.from_numpy(bias).dtype))
        space = policy.action_space
        self._shape = (n_envs, *(space.shape or ()))
        self._bounds = (space.low, space.high) if isinstance(space, spaces.Box) else None

    def act(self, observations: Observations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step of the rollout.

        :return: actions, of the shape that SB3's policy returns; values, shape ``(n_envs, 1)``; log-probabilities,
            shape ``(n_envs,)``
        :raises ValueError: if the policy's output is not finite, as PyTorch's distributions do
        """
        features = self._features(observations)
        with self._threads():
            actions, log_prob = self._networks.distribution(features).sample(next(self._noise))
            values = self._networks.values(features)
        return actions.reshape(self._shape), values, log_prob

    def bounded(self, actions: np.ndarray) -> np.ndarray:
        """The actions as the environments take them."""
        if self._bounds is None:
            return actions
        low, high = self._bounds
        return np.minimum(np.maximum(actions, low), high)

    def values(self, observations: Observations) -> np.ndarray:
        """The values of states, shape ``(n,)``."""
        return self._networks.values(self._features(observations))[:, 0]


def collect_rollouts(
    model: OnPolicyAlgorithm,
    env: VecEnv,
    callback: BaseCallback,
    rollout_buffer: RolloutBuffer,
    n_rollout_steps: int,
) -> bool:
    """What ``model.collect_rollouts`` does.

    Callbacks find the same names in their ``locals``, and what they change in place there takes effect.

    :return: False if the callback ended it early
    """
    model.policy.set_training_mode(False)
    rollout_buffer.reset()
    callback.on_rollout_start()
    actor = Actor(model.policy, n_rollout_steps, env.num_envs)
    rows = _Rows(rollout_buffer, model._last_obs)
    callback.update_locals(
        {
            "self": model,
            "env": env,
            "callback": callback,
            "rollout_buffer": rollout_buffer,
            "n_rollout_steps": n_rollout_steps,
        }
    )
    for n_steps in range(n_rollout_steps):
        observations: Any = model._last_obs
        actions, values, log_probs = actor.act(observations)
        clipped_actions = actor.bounded(actions)
        new_obs: Any
        new_obs, rewards, dones, infos = env.step(clipped_actions)
        model.num_timesteps += env.num_envs

        callback.update_locals(
            {
                "n_steps": n_steps,
                "obs_tensor": _as_tensor(observations),
                "actions": actions,
                "values": th.from_numpy(values),
                "log_probs": th.from_numpy(log_probs),
                "clipped_actions": clipped_actions,
                "new_obs": new_obs,
                "rewards": rewards,
                "dones": dones,
                "infos": infos,
            }
        )
        if not callback.on_step():
            return False
        model._update_info_buffer(infos, dones)
        if True in dones.tolist():
            _bootstrap_truncated(model, actor, rewards, dones, infos)
        rows.write(n_steps, observations, actions, rewards, model._last_episode_starts, values, log_probs)
        model._last_obs = new_obs
        model._last_episode_starts = dones

    rollout_buffer.full = True
    last_values = actor.values(new_obs)
    compute_returns_and_advantage(rollout_buffer, last_values, dones)
    callback.update_locals({"n_steps": n_rollout_steps, "values": th.from_numpy(last_values[:, None])})
    callback.on_rollout_end()
    return True


class _Rows:
    """Writes what ``RolloutBuffer.add`` does, where it does, without copies of its own."""

    def __init__(self, buffer: RolloutBuffer, observations: Observations):
        self._buffer = buffer
        # In the buffer, what is discrete has a dimension more.
        steps: Any = buffer.observations
        if isinstance(observations, dict):
            self._observations = {key: steps[key].reshape(-1, *array.shape) for key, array in observations.items()}
        else:
            self._observations = steps.reshape(-1, *observations.shape)
        self._actions = buffer.actions.reshape(-1, buffer.n_envs, *(buffer.action_space.shape or ()))

    def write(
        self,
        row: int,
        observations: Observations,
        actions: np.ndarray,
        rewards: np.ndarray,
        episode_starts: Any,
        values: np.ndarray,
        log_probs: np.ndarray,
    ) -> None:
        buffer = self._buffer
        if isinstance(observations, dict):
            for key, array in observations.items():
                self._observations[key][row] = array
        else:
            self._observations[row] = observations
        self._actions[row] = actions
        buffer.rewards[row] = rewards
        buffer.episode_starts[row] = episode_starts
        buffer.values[row] = values[:, 0]
        buffer.log_probs[row] = log_probs
        buffer.pos = row + 1


def _as_tensor(observations: Observations) -> Any:
    # For an array the same, called faster.
    return (
        obs_as_tensor(observations, th.device("cpu")) if isinstance(observations, dict) else th.from_numpy(observations)
    )


def _bootstrap_truncated(
    model: OnPolicyAlgorithm, actor: Actor, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]
) -> None:
    """Add the value of the last state of an episode that was cut off by a time limit (SB3 issue 633)."""
    for i in np.flatnonzero(dones):
        terminal = infos[i].get("terminal_observation")
        if terminal is not None and infos[i].get("TimeLimit.truncated", False):
            rewards[i] += model.gamma * actor.values(as_batch(terminal))[0]
