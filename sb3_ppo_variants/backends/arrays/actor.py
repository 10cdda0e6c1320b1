"""Acting over arrays."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppo_variants.backends.arrays.features import Features, Observations, as_batch
from sb3_ppo_variants.backends.arrays.gae import compute_returns_and_advantage
from sb3_ppo_variants.backends.arrays.networks import ActorCritic, Architecture, parameter_views
from sb3_ppo_variants.backends.arrays.threads import blas_threads
from sb3_ppo_variants.rollouts.buffer import WithParameters
from sb3_ppo_variants.rollouts.loop import Action, bounds_of


class ArrayActor:
    """Acts as the policy does, with all random numbers of a rollout drawn at its beginning.

    It reads the policy's parameters where they are, so that a callback may change them in place.

    :param policy: the policy
    :param buffer: where the rollout goes
    :param n_steps: length of the rollout
    """

    def __init__(self, policy: ActorCriticPolicy, buffer: RolloutBuffer, n_steps: int):
        architecture, parameters = Architecture.of(policy), parameter_views(policy)
        bias = parameters["action_net.bias"]
        self._networks = ActorCritic(architecture, parameters)
        self._features = Features(policy, bias.dtype)
        self._threads = blas_threads(policy, buffer.n_envs)
        shape = (n_steps, buffer.n_envs, len(bias))
        self._noise = iter(architecture.kind.noise(shape, th.from_numpy(bias).dtype))
        self._shape = (buffer.n_envs, *(policy.action_space.shape or ()))
        self._bounds = bounds_of(policy)
        self._buffer = buffer
        self._rows = _Rows(buffer)
        self._outputs: list[np.ndarray] = []
        self._step: tuple[Observations, np.ndarray, np.ndarray, np.ndarray]

    def act(self, step: int, observations: Observations) -> Action:
        """Draw an action for each environment.

        :raises ValueError: if the policy's output is not finite, as PyTorch's distributions do
        """
        features = self._features(observations)
        with self._threads():
            output = self._networks.action_output(features)
            distribution = self._networks.distribution(output)
            actions, log_probs = distribution.sample(next(self._noise))
            values = self._networks.values(features)
        actions = actions.reshape(self._shape)
        clipped = actions if self._bounds is None else np.minimum(np.maximum(actions, self._bounds[0]), self._bounds[1])
        self._outputs.append(output)
        self._step = observations, actions, values, log_probs
        return Action(_as_tensor(observations), actions, th.from_numpy(values), th.from_numpy(log_probs), clipped)

    def terminal_value(self, observation: Observations) -> float:
        """The value of the last state of an episode."""
        return self._networks.values(self._features(as_batch(observation)))[0, 0]

    def store(self, rewards: np.ndarray, episode_starts: Any) -> None:
        """Write the step that :meth:`act` made last to the buffer."""
        self._rows.write(*self._step, rewards, episode_starts)

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        """Fill the rest of the buffer."""
        self._buffer.full = True
        values = self._networks.values(self._features(observations))
        compute_returns_and_advantage(self._buffer, values[:, 0], dones)
        if isinstance(self._buffer, WithParameters):
            outputs = np.stack(self._outputs, axis=1)
            old = self._networks.distribution(outputs.reshape(-1, outputs.shape[-1]))
            self._buffer.old_parameters = tuple(map(th.from_numpy, old.parameters()))
        return th.from_numpy(values)


class _Rows:
    """Writes what ``RolloutBuffer.add`` does, where it does, without copies of its own.

    :param buffer: an empty buffer
    """

    def __init__(self, buffer: RolloutBuffer):
        self._buffer = buffer
        # In the buffer, what is discrete has a dimension more.
        shape, space, steps = (-1, buffer.n_envs), buffer.observation_space, buffer.observations
        if isinstance(space, spaces.Dict):
            self._observations: Any = {
                key: steps[key].reshape(*shape, *(part.shape or ())) for key, part in space.items()
            }
        else:
            self._observations = steps.reshape(*shape, *(space.shape or ()))
        self._actions = buffer.actions.reshape(*shape, *(buffer.action_space.shape or ()))

    def write(
        self,
        observations: Observations,
        actions: np.ndarray,
        values: np.ndarray,
        log_probs: np.ndarray,
        rewards: np.ndarray,
        episode_starts: Any,
    ) -> None:
        """Write the next step."""
        buffer = self._buffer
        row = buffer.pos
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
