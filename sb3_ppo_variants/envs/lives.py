"""Checks of how ALE's ``AtariVectorEnv`` treats lost lives, which it can report as the end of a game.

With ``episodic_life``, a new game then begins. With ``life_loss_info``, the game continues and must not be reset.
"""

import warnings
from typing import Any

from gymnasium.vector import VectorEnv

from sb3_ppo_variants.errors import ArgumentError

INSTEAD = "make_ale_vec_env, whose terminal_on_life_loss ends an episode with each life and continues the game"
REFUSED = f"env must not be made with life_loss_info=True, which reports the end of games that continue: use {INSTEAD}"


def check_life_loss_info(env: VectorEnv) -> None:
    """Check that an environment was not created with ``life_loss_info``, if its spec contains its arguments.

    :raises ArgumentError: if it was
    """
    if _is_ale(env) and env.unwrapped.spec is not None and env.unwrapped.spec.kwargs.get("life_loss_info"):
        raise ArgumentError(REFUSED)


def check_new_game(env: VectorEnv, last: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    """Check that a new game has begun.

    :param env: the vector environment
    :param last: info of the old game's last step
    :param old: info of the reset that began the old game
    :param new: info of the reset that should have begun a new game
    :raises ArgumentError: if the infos show that the old game continues
    """
    if not _is_ale(env):
        return
    if _first_frame(old) == _first_frame(new):
        raise ArgumentError(REFUSED)
    if last.get("lives", 0) > 0 and env.unwrapped.spec is None:
        # The infos cannot tell episodic_life from life_loss_info.
        warnings.warn(f"A new game started when a life was lost. To continue the same game, use {INSTEAD}.")


def _is_ale(env: VectorEnv) -> bool:
    return type(env.unwrapped).__name__ == "AtariVectorEnv"


def _first_frame(info: dict[str, Any]) -> int:
    return info["frame_number"] - info["episode_frame_number"]
