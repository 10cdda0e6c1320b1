"""Gymnasium's vector environments, which SB3's algorithms cannot step."""

from gymnasium.vector import VectorEnv

from sb3_ppo_variants.errors import ArgumentError


def check_no_vector_env(env: object) -> None:
    """:raises ArgumentError: if ``env`` is a vector environment of gymnasium, naming the class that converts it"""
    if isinstance(env, VectorEnv):
        raise ArgumentError(
            f"env={env} is one of gymnasium's vector environments: pass sb3_ppo_variants.envs.GymnasiumVecEnv(env), "
            "with SB3's VecMonitor around it for episode statistics"
        )
