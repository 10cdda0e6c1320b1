"""Action masks in a model: passing them to the policy, and refusing masks that are missing or do not fit."""

from typing import Any

import numpy as np

from sb3_ppo_variants.guards import masks
from sb3_ppo_variants.policies.choice import kind_of
from sb3_ppo_variants.saving import SavedAlgorithm


class MaskedActions(SavedAlgorithm):
    """An algorithm whose policy may take action masks."""

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Return the policy's actions for observations; see SB3.

        :param observation: one observation, or one per environment
        :param state: the last states of the LSTM, for a policy that has one
        :param episode_start: whether an episode begins with the observation, for a policy with an LSTM
        :param deterministic: whether to take the most probable actions
        :param action_masks: which actions are allowed, for a policy that takes masks
        :return: the actions, and the next states of the LSTM if there is one
        :raises ArgumentError: if masks are missing or do not fit, or the policy takes none
        """
        policy: Any = self.policy
        takes_masks = kind_of(policy).takes_masks
        given = masks.check_given(action_masks, takes_masks, type(policy).__name__, self.action_space)
        if given and not isinstance(observation, tuple):  # The policy itself refuses tuples.
            tensors = policy.obs_to_tensor(observation)[0]
            n_observations = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
            masks.check_number(len(given[masks.METHOD]), n_observations)
        return policy.predict(observation, state, episode_start, deterministic, **given)

    def _check_env_for_masks(self) -> None:
        """Check that the environments have masks if the policy takes them. If it does not, warn if they have any.

        :raises ArgumentError: if masks are missing
        """
        if self.env is not None:
            masks.check_env(self.env, type(self.policy).__name__, kind_of(self.policy).takes_masks)
