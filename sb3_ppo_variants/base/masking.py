"""Masks of actions, as far as a model hands them on or refuses them."""

from typing import Any

import numpy as np

from sb3_ppo_variants.guards import masks
from sb3_ppo_variants.policies.choice import kind_of
from sb3_ppo_variants.saving import SavedAlgorithm


class MaskedActions(SavedAlgorithm):
    """An algorithm whose policy may take masks."""

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """The actions of the policy in states; see SB3.

        :param observation: one observation, or one of each environment
        :param state: the last states of an LSTM
        :param episode_start: whether an episode begins with the observation, for an LSTM
        :param deterministic: whether to take the most probable actions
        :param action_masks: which actions are allowed, for a policy that masks the others
        :return: the actions, and the next states of an LSTM
        :raises ArgumentError: if masks are missing or do not fit, or the policy takes none
        """
        policy: Any = self.policy
        takes_masks = kind_of(policy).takes_masks
        given = masks.check_given(action_masks, takes_masks, type(policy).__name__, self.action_space)
        return policy.predict(observation, state, episode_start, deterministic, **given)

    def _check_env_for_masks(self) -> None:
        """Check that the environments have masks if the policy takes them, or else warn of those they have.

        :raises ArgumentError: if masks are missing
        """
        if self.env is not None:
            masks.check_env(self.env, type(self.policy).__name__, kind_of(self.policy).takes_masks)
