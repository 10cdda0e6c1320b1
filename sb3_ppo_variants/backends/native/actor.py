"""Acting with the native library."""

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.backends.arrays.actor import ArrayActor
from sb3_ppo_variants.backends.native.networks import NativeActorCritic, Steps
from sb3_ppo_variants.rollouts.loop import Observations


class NativeActor(ArrayActor):
    """Acts as :class:`ArrayActor` does, with one call of the library per step.

    :param policy: the policy
    :param buffer: the buffer to fill
    :param n_steps: length of the rollout
    """

    def __init__(self, policy: ActorCriticPolicy, buffer: RolloutBuffer, n_steps: int):
        self._steps: Steps | None = None
        super().__init__(NativeActorCritic, policy, buffer, n_steps)
        assert isinstance(self._networks, NativeActorCritic) and isinstance(self._drawn, np.ndarray)
        self._steps = self._networks.steps(self._drawn, self._bounds if self._takes_bounds() else None)
        self._outputs = [*self._steps.outputs]
        shape = (n_steps, *self._shape)
        self._all_actions = self._steps.actions.reshape(shape)
        self._all_clipped = None if self._steps.clipped is None else self._steps.clipped.reshape(shape)
        self._takes_integers = isinstance(policy.action_space, spaces.Discrete | spaces.MultiDiscrete)
        # In single precision, observations of the right shape are used as features without conversion.
        self._are_features = self._drawn.dtype == np.float32 and isinstance(policy.observation_space, spaces.Box)

    def _takes_bounds(self) -> bool:
        """Whether the library takes the bounds of actions. Those of another type change that of the clipped actions."""
        assert isinstance(self._drawn, np.ndarray)
        _, _, outputs = self._drawn.shape
        return self._bounds is not None and all(
            each.dtype == self._drawn.dtype and each.size == outputs for each in self._bounds
        )

    def read(self) -> None:
        super().read()
        if self._steps is not None:
            assert isinstance(self._networks, NativeActorCritic)
            self._steps.use(self._networks)

    def act(self, step: int, observations: Observations) -> np.ndarray:
        self._own_parameters.append(self._networks.own_parameters())
        steps = self._steps
        assert steps is not None
        are_features = self._are_features and observations.shape == steps.features.shape
        steps.take(step, observations if are_features else self._features(observations))
        actions = self._all_actions[step]
        if self._takes_integers:
            actions = actions.astype(np.int64)
        self._step = observations, actions, steps.values[step], steps.log_probs[step]
        self._clipped = self._bounded(actions) if self._all_clipped is None else self._all_clipped[step]
        return self._clipped
