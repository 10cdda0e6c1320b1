"""Vectorised environments: gymnasium's, ALE's, MuJoCo's; and supervised worker processes."""

from sb3_ppo_variants.envs.adapter import ActionsAsDrawn, GymnasiumVecEnv, VecClipReward, VecEpisodicLife
from sb3_ppo_variants.envs.making import check_frame_skip, make_ale_vec_env, make_fast_vec_env
from sb3_ppo_variants.envs.mujoco.batch import MujocoVecEnv, make_mujoco_vec_env
from sb3_ppo_variants.envs.subproc import SafeSubprocVecEnv

__all__ = [
    "ActionsAsDrawn",
    "GymnasiumVecEnv",
    "MujocoVecEnv",
    "SafeSubprocVecEnv",
    "VecClipReward",
    "VecEpisodicLife",
    "check_frame_skip",
    "make_ale_vec_env",
    "make_fast_vec_env",
    "make_mujoco_vec_env",
]
