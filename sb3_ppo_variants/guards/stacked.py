"""What a vectorised environment may return of a step, for all its environments together."""

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from sb3_ppo_variants.guards.outputs import EnvCheck
from sb3_ppo_variants.guards.watch import HUGE_REWARD, Watch


class StackCheck:
    """Refuses what is not allowed beside the observations.

    :param checks: the check of each environment
    :param watch: raises the errors
    """

    def __init__(self, checks: Sequence[EnvCheck], watch: Watch):
        self._checks = checks
        self._watch = watch

    def check(self, _: object, rewards: object, dones: object, infos: Any) -> None:
        """Check what ``step_wait`` returned.

        :raises EnvOutputError: if something has a wrong type or shape
        :raises NonFiniteError: if a reward or the last observation of an episode is not finite
        """
        self._check_rewards(rewards)
        ended = self._ended(dones)
        self._check_infos(infos, may_be_missing=not ended)
        for i in ended:
            terminal = infos[i].get("terminal_observation")
            if terminal is not None:
                self._checks[i].terminal(terminal)

    def _check_rewards(self, rewards: object) -> None:
        if not self._is_array(rewards, "biuf"):
            self._watch.refuse("reward", repr(rewards), "an array with a real number for each environment", None)
        # Neither is true of NaN.
        if not (rewards.min() > -HUGE_REWARD and rewards.max() < HUGE_REWARD):
            for i, reward in enumerate(rewards.tolist()):
                self._watch.note_reward(reward, i)

    def _ended(self, dones: object) -> list[int]:
        """The environments in which an episode ended."""
        if not self._is_array(dones, "biu") or (dones.dtype.kind != "b" and not np.isin(dones, (0, 1)).all()):
            self._watch.refuse("done", repr(dones), "an array with True or False for each environment", None)
        return [i for i, done in enumerate(dones.tolist()) if done]

    def _check_infos(self, infos: Any, may_be_missing: bool) -> None:
        of_all = len(infos) == len(self._checks) or (len(infos) == 0 and may_be_missing)
        # Types are looked up faster than instances, of which there may be many.
        right = {*map(type, infos)} == {dict} or all(isinstance(info, dict) for info in infos)
        if not (of_all and right):
            self._watch.refuse("info", repr(infos), "a list with a dict for each environment", None)

    def _is_array(self, value: object, kinds: str) -> TypeGuard[np.ndarray]:
        return isinstance(value, np.ndarray) and value.shape == (len(self._checks),) and value.dtype.kind in kinds
