"""Lives in ALE's ``AtariVectorEnv``, which can report the end of a game when one is lost.

With ``episodic_life`` a new game begins then. With ``life_loss_info`` the game goes on, and must not be reset.
"""

import warnings
from typing import Any

from gymnasium.vector import VectorEnv

from sb3_ppo_variants.errors import ArgumentError

INSTEAD = "make_ale_vec_env, whose terminal_on_life_loss ends an episode with each life and goes on with the game"
REFUSED = f"env must not be made with life_loss_info=True, which reports the end of games that go on: use {INSTEAD}"


def check_life_loss_info(env: VectorEnv) -> None:
    """:raises ArgumentError: if an environment that knows its arguments was made with ``life_loss_info``"""
    if _is_ale(env) and env.unwrapped.spec is not None and env.unwrapped.spec.kwargs.get("life_loss_info"):
        raise ArgumentError(REFUSED)


def check_new_game(env: VectorEnv, last: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    """Check the infos of a game's last step, and of the resets that began the old game and the new one.

    :raises ArgumentError: if they show that the old game goes on
    """
    if not _is_ale(env):
        return
    if _first_frame(old) == _first_frame(new):
        raise ArgumentError(REFUSED)
    if last.get("lives", 0) > 0 and env.unwrapped.spec is None:
        # The infos are the same with episodic_life and with life_loss_info.
        warnings.warn(f"A new game started when a life was lost. To continue the same game, use {INSTEAD}.")


def _is_ale(env: VectorEnv) -> bool:
    return type(env.unwrapped).__name__ == "AtariVectorEnv"


def _first_frame(info: dict[str, Any]) -> int:
    return info["frame_number"] - info["episode_frame_number"]
