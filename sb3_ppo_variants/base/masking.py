"""Predictions with action masks and memories, and the masks of environments."""

from typing import Any

import numpy as np

from sb3_ppo_variants.errors import ArgumentError
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
        :raises ArgumentError: if masks are missing or do not fit, or the policy takes none, or if ``state`` or
            ``episode_start`` belong to another number of environments
        """
        policy: Any = self.policy
        takes_masks = kind_of(policy).takes_masks
        given = masks.check_given(action_masks, takes_masks, type(policy).__name__, self.action_space)
        remembers = state is not None and hasattr(policy, "lstm_hidden_state_shape")
        if (given or remembers) and not isinstance(observation, tuple):  # The policy itself refuses tuples.
            tensors = policy.obs_to_tensor(observation)[0]
            n_observations = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
            if given:
                masks.check_number(len(given[masks.METHOD]), n_observations)
            if remembers:
                _check_memory(state, episode_start, n_observations)
        return policy.predict(observation, state, episode_start, deterministic, **given)

    def _check_env_for_masks(self) -> None:
        """Check that the environments have masks if the policy takes them. If it does not, warn if they have any.

        :raises ArgumentError: if masks are missing
        """
        if self.env is not None:
            masks.check_env(self.env, type(self.policy).__name__, kind_of(self.policy).takes_masks)


def _check_memory(state: Any, episode_start: Any, n_observations: int) -> None:
    """Check that the states of an LSTM, and the starts of episodes, are those of as many environments as observed.

    :raises ArgumentError: if they are not
    """
    counts = {"state": {np.shape(part)[1] for part in state if np.ndim(part) == 3}}
    if np.ndim(episode_start) == 1:
        counts["episode_start"] = {len(episode_start)}
    for name, found in counts.items():
        if found - {n_observations}:
            raise ArgumentError(
                f"{name} is for {max(found - {n_observations})} environments, but there are {n_observations} "
                "observations: pass what predict() returned for the same environments, or None when they are others"
            )
