"""Hyperparameters for common PPO environments in the format of the RL Zoo, with the source of each.

Keys are environment ids, ``"atari"`` for all other Atari games, ``"mujoco"`` for the paper's MuJoCo settings,
``"spinning-up"`` for those of Spinning Up, and ``"default"`` for all other environments. Besides arguments of the
algorithm, an entry may contain ``n_timesteps``, ``n_envs``, ``env_wrapper``, ``frame_stack`` and ``normalize``.
``"lin_x"`` is x times the remaining progress, which goes from 1 to 0.

A2C and TRPO, with which PPO is compared, have entries with the same keys, but without ``n_timesteps``.
"""

import sys
from copy import deepcopy
from types import ModuleType
from typing import Any

from torch import nn

Hyperparameters = dict[str, Any]

# Entries are easier to read as paragraphs.
# fmt: off

# Table 3 of https://arxiv.org/abs/1707.06347, with observations normalised as in the code released with the paper, and
# rewards scaled as in later versions of OpenAI Baselines (details 6 and 8 for continuous actions in
# https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details).
MUJOCO: Hyperparameters = {
    "policy": "MlpPolicy", "n_timesteps": 1_000_000, "n_envs": 1, "normalize": True,
    "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4,
    "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0,
}

# The defaults of Spinning Up's PPO (https://github.com/openai/spinningup, spinup/algos/pytorch/ppo/ppo.py): policy and
# value networks are updated separately, on the full batch.
SPINNING_UP: Hyperparameters = {
    "policy": "MlpPolicy", "n_timesteps": 3_000_000, "n_envs": 1,
    "n_steps": 4000, "batch_size": 4000, "learning_rate": 3e-4, "target_kl": 0.01,
    "gamma": 0.99, "gae_lambda": 0.97, "clip_range": 0.2, "ent_coef": 0.0,
    "vf_coef": 1.0, "max_grad_norm": float("inf"),
    "policy_kwargs": {"log_std_init": -0.5, "ortho_init": False, "optimizer_kwargs": {"eps": 1e-8}},
    "updates": {"policy_epochs": 80, "value_epochs": 80, "value_learning_rate": 1e-3},
}

# Table 5 of the paper, with 4 epochs, a value coefficient of 0.5 and 10 million steps (40 million frames) as in
# OpenAI Baselines, details 1 to 9 for Atari in the same post, and rl_zoo3's ppo.yml.
ATARI: Hyperparameters = {
    "policy": "CnnPolicy", "n_timesteps": 10_000_000, "n_envs": 8,
    "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"], "frame_stack": 4,
    "n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": "lin_2.5e-4",
    "clip_range": "lin_0.1", "vf_coef": 0.5, "ent_coef": 0.01,
}

# rl_zoo3 2.9.2, hyperparams/ppo.yml.
LUNAR_LANDER: Hyperparameters = {
    "policy": "MlpPolicy", "n_timesteps": 1_000_000, "n_envs": 16,
    "n_steps": 1024, "batch_size": 64, "n_epochs": 4,
    "gamma": 0.999, "gae_lambda": 0.98, "clip_range": 0.2, "ent_coef": 0.01,
}

# Shared by rl_zoo3's tuned settings for MuJoCo.
TUNED: Hyperparameters = {
    "policy": "MlpPolicy", "n_timesteps": 1_000_000, "n_envs": 1, "normalize": True, "n_steps": 512,
}
TUNED_POLICY: Hyperparameters = {
    "log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU, "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}

# Shared by rl_zoo3's settings for tasks without velocities (rl_zoo3 2.9.2, hyperparams/ppo_lstm.yml).
LSTM: Hyperparameters = {
    "policy": "MlpLstmPolicy", "normalize": True,
    "policy_kwargs": {
        "ortho_init": False, "activation_fn": nn.ReLU, "lstm_hidden_size": 64, "enable_critic_lstm": True,
        "net_arch": {"pi": [64], "vf": [64]},
    },
}

ENVIRONMENTS: dict[str, Hyperparameters] = {
    # The defaults of SB3, as in rl_zoo3.
    "default": {"policy": "MlpPolicy", "n_timesteps": 1_000_000, "clip_range": 0.2},
    **dict.fromkeys(["atari", "BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"], ATARI),
    # rl_zoo3 2.9.2, hyperparams/ppo.yml.
    "CartPole-v1": {
        "policy": "MlpPolicy", "n_timesteps": 100_000, "n_envs": 8,
        "n_steps": 32, "batch_size": 256, "n_epochs": 20, "learning_rate": "lin_0.001",
        "gamma": 0.98, "gae_lambda": 0.8, "clip_range": "lin_0.2", "ent_coef": 0.0,
    },
    # rl_zoo3 2.9.2, hyperparams/ppo.yml, with an annealed learning rate and twice the timesteps instead of gSDE.
    "Pendulum-v1": {
        "policy": "MlpPolicy", "n_timesteps": 200_000, "n_envs": 4,
        "n_steps": 1024, "batch_size": 64, "n_epochs": 10, "learning_rate": "lin_0.001",
        "gamma": 0.9, "gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0,
    },
    "LunarLander-v3": LUNAR_LANDER,
    "LunarLanderContinuous-v3": LUNAR_LANDER,
    # rl_zoo3 2.9.2, hyperparams/ppo.yml.
    "BipedalWalker-v3": {
        "policy": "MlpPolicy", "n_timesteps": 5_000_000, "n_envs": 32, "normalize": True,
        "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4,
        "gamma": 0.999, "gae_lambda": 0.95, "clip_range": 0.18, "ent_coef": 0.0,
    },
    # rl_zoo3 2.9.2, hyperparams/ppo.yml, tuned there for the environments' previous version, -v4.
    "HalfCheetah-v5": {
        **TUNED, "batch_size": 64, "n_epochs": 20, "learning_rate": 2.0633e-05,
        "gamma": 0.98, "gae_lambda": 0.92, "clip_range": 0.1, "ent_coef": 0.000401762,
        "vf_coef": 0.58096, "max_grad_norm": 0.8, "policy_kwargs": TUNED_POLICY,
    },
    "Hopper-v5": {
        **TUNED, "batch_size": 32, "n_epochs": 5, "learning_rate": 9.80828e-05,
        "gamma": 0.999, "gae_lambda": 0.99, "clip_range": 0.2, "ent_coef": 0.00229519,
        "vf_coef": 0.835671, "max_grad_norm": 0.7, "policy_kwargs": TUNED_POLICY,
    },
    "Walker2d-v5": {
        **TUNED, "batch_size": 32, "n_epochs": 20, "learning_rate": 5.05041e-05,
        "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.1, "ent_coef": 0.000585045,
        "vf_coef": 0.871923, "max_grad_norm": 1,
    },
    "Humanoid-v5": {
        **TUNED, "n_timesteps": 10_000_000, "batch_size": 256, "n_epochs": 5, "learning_rate": 3.56987e-05,
        "gamma": 0.95, "gae_lambda": 0.9, "clip_range": 0.3, "ent_coef": 0.00238306,
        "vf_coef": 0.431892, "max_grad_norm": 2, "policy_kwargs": TUNED_POLICY,
    },
    # This package's own task, in sb3_ppo_variants.tasks. Episodes are short and of equal length, so rewards are not
    # discounted. In short trials, networks wider than SB3's learned more; normalisation, an entropy bonus or larger
    # steps did not help.
    "Scheduling-v0": {
        "policy": "MaskableMlpPolicy", "n_timesteps": 300_000, "n_envs": 8,
        "n_steps": 128, "batch_size": 256, "n_epochs": 10, "learning_rate": "lin_0.001",
        "gamma": 1.0, "gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0,
        "policy_kwargs": {"net_arch": [128, 128]},
    },
    # Another of this package's own tasks, learned within 15,000 steps.
    "LowOrHigh-v0": {
        "policy": "MaskableMlpLstmPolicy", "n_timesteps": 30_000, "n_envs": 8,
        "n_steps": 64, "batch_size": 256, "n_epochs": 5, "learning_rate": 3e-3,
        "gamma": 0.9, "gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0,
        "policy_kwargs": {"lstm_hidden_size": 32},
    },
    # Its hybrid actions, with the best of the settings that `python -m benchmarks tuning` tries. Only the choice has an
    # entropy bonus. With env_kwargs={"n_bins": ...}, actions are discrete and need policy_kwargs={}.
    "MoveOrKick-v0": {
        "policy": "MlpPolicy", "n_timesteps": 40_000, "n_envs": 8,
        "n_steps": 128, "batch_size": 256, "n_epochs": 10, "learning_rate": 3e-3,
        "gamma": 0.9, "gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.01,
        "policy_kwargs": {
            "only_if": {"move": ("choice", 0), "kick": ("choice", 1)},
            "entropy_weights": {"kick": 0.0, "move": 0.0}, "log_std_init": -1.0,
        },
    },
    "CartPoleNoVel-v1": {
        **LSTM, "n_timesteps": 100_000, "n_envs": 8,
        "n_steps": 32, "batch_size": 256, "n_epochs": 20, "learning_rate": "lin_0.001",
        "gamma": 0.98, "gae_lambda": 0.8, "clip_range": "lin_0.2", "ent_coef": 0.0,
    },
    # As in rl_zoo3, where the minibatches have RecurrentPPO's default size, but without gSDE.
    "PendulumNoVel-v1": {
        **LSTM, "n_timesteps": 100_000, "n_envs": 4,
        "n_steps": 1024, "batch_size": 128, "n_epochs": 10, "learning_rate": 1e-3,
        "gamma": 0.9, "gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0,
    },
    # rl_zoo3's settings for the previous version, -v2.
    "LunarLanderNoVel-v3": {
        **LSTM, "n_timesteps": 5_000_000, "n_envs": 32,
        "n_steps": 512, "batch_size": 128, "n_epochs": 4,
        "gamma": 0.999, "gae_lambda": 0.98, "clip_range": 0.2, "ent_coef": 0.01,
    },
    "mujoco": MUJOCO,
    "spinning-up": SPINNING_UP,
    **dict.fromkeys([
        "Ant-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5",
        "Swimmer-v5",
    ], MUJOCO),
}

# rl_zoo3 2.9.2, hyperparams/a2c.yml and trpo.yml, those for MuJoCo tuned for the environments' previous version, -v4.
# What is not here has SB3's and sb3-contrib's defaults.
A2C_TUNED: Hyperparameters = {
    "policy": "MlpPolicy", "normalize": True, "n_steps": 8, "learning_rate": "lin_7e-4",
    "gamma": 0.99, "gae_lambda": 0.9, "ent_coef": 0.0, "vf_coef": 0.4,
    "use_sde": True, "policy_kwargs": {"log_std_init": -2, "ortho_init": False},
}
A2C_MUJOCO: Hyperparameters = {"policy": "MlpPolicy", "normalize": True}
TRPO_MUJOCO: Hyperparameters = {
    "policy": "MlpPolicy", "n_envs": 2, "normalize": True,
    "n_steps": 1024, "batch_size": 128, "learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95,
    "sub_sampling_factor": 1, "cg_max_steps": 25, "cg_damping": 0.1, "n_critic_updates": 20,
}
ALL_MUJOCO = [
    "mujoco", "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5",
]
BASELINES: dict[str, dict[str, Hyperparameters]] = {
    "stable_baselines3:A2C": {
        "default": {"policy": "MlpPolicy"},
        "atari": {
            "policy": "CnnPolicy", "n_envs": 16, "env_wrapper": ATARI["env_wrapper"], "frame_stack": 4,
            "ent_coef": 0.01, "vf_coef": 0.25,
            "policy_kwargs": {
                "optimizer_class": "stable_baselines3.common.sb2_compat.rmsprop_tf_like.RMSpropTFLike",
                "optimizer_kwargs": {"eps": 1e-5},
            },
        },
        "CartPole-v1": {"policy": "MlpPolicy", "n_envs": 8, "ent_coef": 0.0},
        "LunarLander-v3": {
            "policy": "MlpPolicy", "n_envs": 8,
            "n_steps": 5, "learning_rate": "lin_0.00083", "gamma": 0.995, "ent_coef": 1e-5,
        },
        "Pendulum-v1": {**A2C_TUNED, "n_envs": 8, "gamma": 0.9},
        "LunarLanderContinuous-v3": {**A2C_TUNED, "n_envs": 4},
        "BipedalWalker-v3": {**A2C_TUNED, "n_envs": 16, "learning_rate": "lin_0.00096"},
        **dict.fromkeys(ALL_MUJOCO, A2C_MUJOCO),
        "Swimmer-v5": {**A2C_MUJOCO, "gamma": 0.9999},
    },
    "sb3_contrib:TRPO": {
        "default": {"policy": "MlpPolicy"},
        # OpenAI Baselines, baselines/trpo_mpi/defaults.py, in as many environments as PPO.
        "atari": {
            "policy": "CnnPolicy", "n_envs": 8, "env_wrapper": ATARI["env_wrapper"], "frame_stack": 4,
            "n_steps": 64, "batch_size": 512, "learning_rate": 1e-4, "gamma": 0.98, "gae_lambda": 1.0,
            "target_kl": 0.001, "cg_max_steps": 10, "cg_damping": 1e-3, "n_critic_updates": 3,
        },
        "CartPole-v1": {
            "policy": "MlpPolicy", "n_envs": 2, "n_steps": 512, "batch_size": 512, "learning_rate": 1e-3,
            "gamma": 0.99, "gae_lambda": 0.98, "cg_damping": 1e-3, "n_critic_updates": 20,
        },
        "Pendulum-v1": {
            "policy": "MlpPolicy", "n_envs": 2, "n_steps": 1024, "gamma": 0.9, "n_critic_updates": 15,
            "use_sde": True, "sde_sample_freq": 4,
        },
        "LunarLander-v3": {
            "policy": "MlpPolicy", "n_envs": 2, "n_steps": 512, "learning_rate": 1e-3,
            "gamma": 0.99, "gae_lambda": 0.98, "cg_damping": 0.01, "n_critic_updates": 15,
        },
        "LunarLanderContinuous-v3": {
            "policy": "MlpPolicy", "n_envs": 2, "normalize": True, "n_steps": 1024, "n_critic_updates": 20,
        },
        **dict.fromkeys([*ALL_MUJOCO, "BipedalWalker-v3"], TRPO_MUJOCO),
        "HalfCheetah-v5": {**TRPO_MUJOCO, "target_kl": 0.04},
        "Swimmer-v5": {**TRPO_MUJOCO, "gamma": 0.9999},
    },
}
# fmt: on
# The arguments that the objectives have instead of clip_range, with the best values of the paper's Table 1. Users add
# the objective of ``PPOCustom``.
OWN_ARGUMENTS: dict[str, Hyperparameters] = {
    "ppo_adaptive_kl": {"desired_kl": 0.01},
    "ppo_fixed_kl": {"kl_coef": 3.0},
    "ppo_unclipped": {},
    "ppo_custom": {},
}


def entries_of(algorithm: str) -> dict[str, Hyperparameters]:
    """List the hyperparameters of every environment for an algorithm.

    :param algorithm: such as ``"ppo_clip"``, or a key of ``BASELINES``
    """
    if algorithm in BASELINES:
        return deepcopy(BASELINES[algorithm])
    entries = {name: deepcopy(entry) for name, entry in ENVIRONMENTS.items()}
    if algorithm in OWN_ARGUMENTS:
        for entry in entries.values():
            entry.pop("clip_range")
            entry |= OWN_ARGUMENTS[algorithm]
    return entries


class HyperparametersModule(ModuleType):
    """A module of hyperparameters, as the RL Zoo reads them: ``-conf sb3_ppo_variants.recipes.ppo_clip``."""

    @property
    def hyperparams(self) -> dict[str, Hyperparameters]:
        """The hyperparameters of every environment. They are new ones each time, because the RL Zoo changes them."""
        return entries_of(self.__name__.rpartition(".")[2])


for algorithm in ("ppo_clip", *OWN_ARGUMENTS):
    path = f"{__package__}.{algorithm}"
    sys.modules[path] = HyperparametersModule(path)
