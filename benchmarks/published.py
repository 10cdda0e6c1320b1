"""Scores that other libraries publish for their PPO, to be read beside those of the gallery."""

from typing import NamedTuple


class Score(NamedTuple):
    """A mean return, its standard deviation, and what it was measured on.

    :param mean: mean return
    :param std: standard deviation over episodes (rl_zoo3) or seeds (CleanRL)
    :param steps: environment steps of a run, in words
    :param env: the version of the environment
    """

    mean: float
    std: float
    steps: str
    env: str

    def __str__(self) -> str:
        return f"{self.mean:.0f} ± {self.std:.0f} ({self.env}, {self.steps})"


# One run each, with the hyperparameters of our recipes, except in Pendulum. The policy is deterministic, except in
# Atari games.
# https://github.com/DLR-RM/rl-baselines3-zoo/blob/22e3ff2450fd92033f7f032915e1f64894a09584/benchmark.md
RL_ZOO3 = {
    "CartPole-v1": Score(500.000, 0.000, "100k", "v1"),
    "Pendulum-v1": Score(-172.225, 104.159, "100k", "v1"),
    "LunarLander-v3": Score(242.119, 31.823, "1M", "v2"),
    "BipedalWalker-v3": Score(287.939, 2.448, "5M", "v3"),
    "HalfCheetah-v5": Score(5819.099, 663.530, "1M", "v3"),
    "Hopper-v5": Score(2410.435, 10.026, "1M", "v3"),
    "Walker2d-v5": Score(3478.798, 821.708, "1M", "v3"),
    "BreakoutNoFrameskip-v4": Score(398.033, 33.328, "10M", "v4"),
    "PongNoFrameskip-v4": Score(20.989, 0.105, "10M", "v4"),
}
# Three runs each, with one set of hyperparameters for MuJoCo and one for Atari games; mean returns during training.
# https://docs.cleanrl.dev/rl-algorithms/ppo
CLEANRL = {
    "CartPole-v1": Score(490.04, 6.12, "500k", "v1"),
    "HalfCheetah-v5": Score(1442.64, 46.03, "1M", "v4"),
    "Hopper-v5": Score(2382.86, 271.74, "1M", "v4"),
    "Walker2d-v5": Score(2287.95, 571.78, "1M", "v4"),
    "Humanoid-v5": Score(716.11, 49.08, "1M", "v4"),
    "BreakoutNoFrameskip-v4": Score(414.66, 28.09, "10M", "v4"),
    "PongNoFrameskip-v4": Score(20.36, 0.20, "10M", "v4"),
}
# Table 6 of the paper, which has no standard deviations: three runs each of 40 million frames.
PAPER = {"BreakoutNoFrameskip-v4": "275 (v4, 10M)", "PongNoFrameskip-v4": "21 (v4, 10M)"}
# Mean returns of the deterministic policy over 20 episodes during the run that rl_zoo3 published, each after the same
# number of steps; those of Walker2d are the last ten.
# https://github.com/DLR-RM/rl-trained-agents/tree/cd35bde610f4045bf2e0731c8f4c88d22df8fc85/ppo
EVALUATIONS = {
    "Hopper-v5": [
        856, 984, 33, 234, 65, 982, 985, 892, 14, 107, 704, 984, 989, 699, 125, 19, 21, 22, 28, 33, 40, 146,
        169, 163, 168, 179, 187, 198, 219, 248, 340, 242, 475, 445, 604, 1177, 565, 847, 2780, 2335,
    ],
    "Walker2d-v5": [2712, 2606, 3611, 3436, 3705, 3831, 3832, 3480, 2542, 2581],
}  # fmt: skip
