"""Lives in ALE's ``AtariVectorEnv``, which may tell the end of a game where one is lost.

With ``episodic_life`` a new game begins there. With ``life_loss_info`` the game goes on, but what ends is reset here.
"""

import warnings
from typing import Any

from gymnasium.vector import VectorEnv

from sb3_ppo_variants.errors import refuse

INSTEAD = "make_ale_vec_env, whose terminal_on_life_loss ends an episode with a life, and goes on with the game"


def check_life_loss_info(env: VectorEnv) -> None:
    """Refuse ``life_loss_info`` of an environment that tells how it was made.

    :raises ArgumentError: if it was made with it
    """
    if _is_ale(env) and env.unwrapped.spec is not None and env.unwrapped.spec.kwargs.get("life_loss_info"):
        refuse("env", env, f"one without life_loss_info; take {INSTEAD}")


def check_new_game(env: VectorEnv, last: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    """Check that a game was over when the environment said so, as far as it shows.

    :param env: the vector environment
    :param last: info of the last step of the old game
    :param old: info of the reset that began the old game
    :param new: info of the reset that began the new one
    :raises ArgumentError: if the new one is the old one, which went on
    """
    if not _is_ale(env):
        return
    if _first_frame(old) == _first_frame(new):
        refuse("env", env, f"one without life_loss_info, whose games go on; take {INSTEAD}")
    if last.get("lives", 0) > 0 and env.unwrapped.spec is None:
        # From here this is the same as episodic_life.
        warnings.warn(f"A new game was begun where a life was lost. If the old should go on, take {INSTEAD}.")


def _is_ale(env: VectorEnv) -> bool:
    return type(env.unwrapped).__name__ == "AtariVectorEnv"


def _first_frame(info: dict[str, Any]) -> int:
    return info["frame_number"] - info["episode_frame_number"]
