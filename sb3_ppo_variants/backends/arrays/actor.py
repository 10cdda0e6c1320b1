"""Acting over arrays."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppo_variants.backends.arrays.features import Features, as_batch
from sb3_ppo_variants.backends.arrays.gae import compute_returns_and_advantage
from sb3_ppo_variants.backends.arrays.networks import Architecture, MakeNetworks
from sb3_ppo_variants.backends.arrays.threads import blas_threads
from sb3_ppo_variants.guards.masks import Masks
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.rollouts.buffer import WithParameters
from sb3_ppo_variants.rollouts.loop import Observations, bounds_of

CPU = th.device("cpu")


class ArrayActor:
    """Acts as the policy does, but draws all random numbers of a rollout at its start (except for gSDE).

    It reads the policy's parameters without copying them, so that callbacks may change their values. If these move in
    memory, call :meth:`read`.

    :param make_networks: creates the networks
    :param policy: the policy
    :param buffer: the buffer to fill
    :param n_steps: length of the rollout
    :param masks: returns the action masks; ``None`` if the policy does not use masks
    :param model: the model, if it explores with gSDE; callbacks may change its ``sde_sample_freq``
    """

    def __init__(
        self,
        make_networks: MakeNetworks,
        policy: ActorCriticPolicy,
        buffer: RolloutBuffer,
        n_steps: int,
        masks: Masks | None = None,
        model: OnPolicyAlgorithm | None = None,
    ):
        self._policy, self._model = policy, model
        self._parameters = dict(policy.named_parameters())
        self._architecture, self._make_networks = Architecture.of(policy), make_networks
        self.read()
        bias = self._parameters["action_net.bias"]
        self._dtype = bias.dtype
        self._features = Features(policy, bias.detach().numpy().dtype)
        self._threads = blas_threads(max(each.numel() for each in self._parameters.values()), buffer.n_envs)
        self._drawn = self._architecture.noise((n_steps, buffer.n_envs, len(bias)), bias.dtype)
        self._noise = self._architecture.kind.in_steps(self._drawn)
        self._shape = (buffer.n_envs, *(policy.action_space.shape or ()))
        self._bounds = bounds_of(policy)
        self._buffer: Any = buffer
        self._masks = masks
        self._allowed: np.ndarray | None = None
        # Discrete actions and observations have an additional dimension in the buffer.
        self._actions = _like(buffer.actions, buffer.n_envs, policy.action_space)
        steps, space = buffer.observations, policy.observation_space
        self._observations: Any = (
            {key: _like(steps[key], buffer.n_envs, part) for key, part in space.items()}
            if isinstance(space, spaces.Dict)
            else _like(steps, buffer.n_envs, space)
        )
        self._outputs: list[np.ndarray] = []
        self._own_parameters: list[tuple[np.ndarray, ...]] = []
        self._step: tuple[Observations, np.ndarray, np.ndarray, np.ndarray]
        self._clipped: np.ndarray

    def read(self) -> None:
        """Create the networks from where the policy's parameters are in memory."""
        arrays = {name: parameter.detach().numpy() for name, parameter in self._parameters.items()}
        self._networks = self._make_networks(self._architecture, arrays)

    def act(self, step: int, observations: Observations) -> np.ndarray:
        sde_sample_freq = -1 if self._model is None else self._model.sde_sample_freq
        if sde_sample_freq > 0 and step % sde_sample_freq == 0:
            self._policy.reset_noise(self._buffer.n_envs)
        features = self._features(observations)
        if self._masks is not None:
            self._allowed = self._masks.now()
        networks = self._networks
        self._own_parameters.append(networks.own_parameters())
        with self._threads():
            output, actions, log_probs, values = networks.act(features, next(self._noise), self._allowed)
        actions = actions.reshape(self._shape)
        self._outputs.append(output)
        self._step = observations, actions, values, log_probs
        self._clipped = self._bounded(actions)
        return self._clipped

    def _bounded(self, actions: np.ndarray) -> np.ndarray:
        """Return actions in the form that the environments expect."""
        if self._policy.squash_output:
            return self._policy.unscale_action(actions)
        if self._bounds is None:
            return actions
        low, high = self._bounds
        return np.minimum(np.maximum(actions, low), high)

    def seen(self) -> dict[str, Any]:
        observations, actions, values, log_probs = self._step
        is_array = isinstance(observations, np.ndarray)  # For arrays obs_as_tensor does the same, but slower.
        return {
            "obs_tensor": th.from_numpy(observations) if is_array else obs_as_tensor(observations, CPU),
            "actions": actions,
            "values": th.from_numpy(values),
            "log_probs": th.from_numpy(log_probs),
            "clipped_actions": self._clipped,
            **({} if self._allowed is None else {"action_masks": self._allowed}),
        }

    def terminal_value(self, observation: Observations, env_index: int) -> float:
        return self._networks.values(self._features(as_batch(observation)))[0, 0]

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        """Write the step to the buffer as ``RolloutBuffer.add`` does, but without its copies."""
        buffer, row = self._buffer, self._buffer.pos
        _, self._actions[row], values, buffer.log_probs[row] = self._step
        if isinstance(observations, dict):
            for key, array in observations.items():
                self._observations[key][row] = array
        else:
            self._observations[row] = observations
        if self._allowed is not None:
            buffer.action_masks[row] = self._allowed
        buffer.rewards[row] = rewards
        buffer.episode_starts[row] = episode_starts
        buffer.values[row] = values[:, 0]
        buffer.pos = row + 1
        buffer.full = buffer.pos == buffer.buffer_size

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        values = self._networks.values(self._features(observations))
        compute_returns_and_advantage(self._buffer, values[:, 0], dones)
        if isinstance(self._buffer, WithParameters):
            self._store_parameters(self._buffer)
        return th.from_numpy(values)

    def drawn_from(self) -> Sequence[Parameters]:
        """Return the parameters of the distributions of each step that was stored."""
        steps = islice(zip(self._outputs, self._own_parameters, strict=False), self._buffer.pos)
        return [tuple(map(th.from_numpy, self._networks.snapshot(*step).parameters())) for step in steps]

    def _store_parameters(self, buffer: WithParameters) -> None:
        """Store the parameters of the distributions that the actions were drawn from."""
        own = self._own_parameters
        if all((steps == steps[0]).all() for steps in map(np.array, zip(*own, strict=True))):
            outputs = np.stack(self._outputs, axis=1)
            old = self._networks.snapshot(outputs.reshape(-1, outputs.shape[-1]), own[0])
            buffer.old_parameters = tuple(map(th.from_numpy, old.parameters()))
        else:
            buffer.set_parameters(self.drawn_from())


def _like(array: np.ndarray, n_envs: int, space: spaces.Space) -> np.ndarray:
    """Return a view of a buffer's array with the shape of a space for each step and environment."""
    return array.reshape(-1, n_envs, *(space.shape or ()))
