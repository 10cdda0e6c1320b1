"""Acting with PyTorch, as SB3 does."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppo_variants.guards.actions import check_actions
from sb3_ppo_variants.guards.watch import Watch
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.policies.kind import Acted, PolicyKind
from sb3_ppo_variants.rollouts.buffer import WithParameters
from sb3_ppo_variants.rollouts.loop import Observations, bounds_of


class TorchActor:
    """Acts with a policy of any kind, on any device and with any rollout buffer.

    :param model: the model
    :param kind: evaluates the model's policy
    :param buffer: the buffer to fill
    :param drawn_from: the parameters of the distributions of the steps that the buffer has already
    """

    def __init__(
        self,
        model: OnPolicyAlgorithm,
        kind: PolicyKind,
        buffer: RolloutBuffer,
        drawn_from: Sequence[Parameters | None] = (),
    ):
        self._model = model
        self._policy = kind.policy
        self._acting = kind.acting(model)
        self._buffer = buffer
        self._bounds = bounds_of(kind.policy)
        self._watch = Watch(lambda: model.num_timesteps)
        self._parameters = [*drawn_from]
        self._acted: Acted
        self._seen: dict[str, Any]

    def drawn_from(self) -> Sequence[Parameters | None]:
        """Return the parameters of the distributions of each step that was stored; ``None`` where they are unknown."""
        return self._parameters

    def act(self, step: int, observations: Observations) -> np.ndarray:
        model, policy = self._model, self._policy
        if model.use_sde and model.sde_sample_freq > 0 and step % model.sde_sample_freq == 0:
            policy.reset_noise(self._buffer.n_envs)
        obs_tensor = obs_as_tensor(observations, model.device)
        with th.no_grad():
            acted = self._acting.act(obs_tensor, np.asarray(model._last_episode_starts))
        actions = acted.actions.cpu().numpy()
        clipped_actions = actions
        if policy.squash_output:
            clipped_actions = policy.unscale_action(actions)
        elif self._bounds is not None:
            clipped_actions = np.clip(actions, *self._bounds)
        check_actions(clipped_actions, self._watch)
        self._acted = acted
        self._seen = {
            "obs_tensor": obs_tensor,
            "actions": actions,
            "values": acted.values,
            "log_probs": acted.log_probs,
            "clipped_actions": clipped_actions,
            **acted.seen,
        }
        return clipped_actions

    def seen(self) -> dict[str, Any]:
        return self._seen

    def terminal_value(self, observation: Observations, env_index: int) -> th.Tensor:
        with th.no_grad():
            return self._acting.terminal_value(self._policy.obs_to_tensor(observation)[0], env_index)[0]

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        actions, acted = self._seen["actions"], self._acted
        if isinstance(self._model.action_space, spaces.Discrete):
            actions = actions.reshape(-1, 1)
        self._buffer.add(observations, actions, rewards, episode_starts, acted.values, acted.log_probs, **acted.columns)
        self._parameters.append(acted.parameters)

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        with th.no_grad():
            values = self._acting.last_values(obs_as_tensor(observations, self._model.device), dones)
        self._buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        known = [parameters for parameters in self._parameters if parameters is not None]
        if isinstance(self._buffer, WithParameters) and len(known) == len(self._parameters):
            self._buffer.set_parameters(known)
        return values
