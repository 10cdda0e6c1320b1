"""Invalid values for arguments of the constructor. Run this file to count how many SB3 and this package refuse.

python tests/bad_arguments.py
"""

import warnings
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, ReplayBuffer
from torch import nn

from helpers import BOX, NoiseEnv
from sb3_ppo_variants import PPOClip

NAN, INF = float("nan"), float("inf")

# SB3, gymnasium or Python refuse these with their own messages.
UNNAMED = {
    ("policy", "CnnPolicy"): "You should use NatureCNN only with images",
    ("env", "NoSuchEnv-v0"): "Environment `NoSuchEnv` doesn't exist",
    ("policy_kwargs", "{'features_extractor_class': <class 'torch.nn.modules.linear.Linear'>}"): "missing 1 required",
}
# Pairs (argument, value), for an environment with vector observations and Box actions.
BAD: list[tuple[str, Any]] = [
    *(("policy", value) for value in (None, 3, dict, "NoPolicy", "CnnPolicy", "MultiInputPolicy", nn.Linear)),
    *(("env", value) for value in (None, 3, "NoSuchEnv-v0", NoiseEnv, object())),
    *(("learning_rate", value) for value in (-1e-3, NAN, INF, "1e-3", None, True, lambda _: -1.0)),
    *(("n_steps", value) for value in (0, -1, 1.5, "8", None, True)),
    *(("batch_size", value) for value in (0, -4, 1.5, 1, None, True)),
    *(("n_epochs", value) for value in (0, -1, 1.5, None, True)),
    *(("gamma", value) for value in (-0.1, 1.1, NAN, "0.9", None, True)),
    *(("gae_lambda", value) for value in (-0.1, 1.1, NAN, None)),
    *(("clip_range", value) for value in (0, -0.2, NAN, INF, "0.2", None, True)),
    *(("clip_range_vf", value) for value in (0, -0.2, NAN, INF, "0.2")),
    *(("normalize_advantage", value) for value in ("yes", None, 2)),
    *(("ent_coef", value) for value in (NAN, INF, "auto", None, True)),
    *(("vf_coef", value) for value in (-0.5, NAN, INF, None)),
    *(("max_grad_norm", value) for value in (-0.5, NAN, "0.5")),
    *(("use_sde", value) for value in ("yes", None)),
    *(("sde_sample_freq", value) for value in (0, -2, 1.5, None)),
    *(("rollout_buffer_class", value) for value in ("RolloutBuffer", dict, ReplayBuffer, DictRolloutBuffer)),
    *(("rollout_buffer_kwargs", value) for value in ("gamma", 3, {"no_such": 1}, {"gamma": 0.9}, {"buffer_size": 3})),
    *(("target_kl", value) for value in (0, -0.01, NAN, INF, "0.01", True)),
    *(("stats_window_size", value) for value in (0, -1, 1.5, None, "100")),
    *(("tensorboard_log", value) for value in (3, True)),
    *(
        ("policy_kwargs", value)
        for value in (
            "net_arch",
            [64],
            {"no_such": 1},
            {"net_arch": "64"},
            {"net_arch": [0]},
            {"net_arch": [-64]},
            {"net_arch": [64.5]},
            {"net_arch": {"pi": [64], "qf": [64]}},
            {"activation_fn": "tanh"},
            {"activation_fn": nn.Tanh()},
            {"optimizer_class": "Adam"},
            {"optimizer_kwargs": {"no_such": 1}},
            {"optimizer_kwargs": {"lr": 0.1}},
            {"log_std_init": NAN},
            {"log_std_init": "0"},
            {"ortho_init": "yes"},
            {"features_extractor_class": nn.Linear},
            {"share_features_extractor": "no"},
            {"observation_space": None},
        )
    ),
    *(("verbose", value) for value in ("1", None, 0.5, -1)),
    *(("seed", value) for value in (-1, 1.5, "0", 2**32, True)),
    *(("device", value) for value in ("gpu", 3.5, "cpu:x", dict, None)),
    ("_init_setup_model", "yes"),
]


def refused(cls: Any, name: str, value: Any) -> Exception | None:
    """Return the error that the constructor raises, if any."""
    try:
        cls(**{"policy": "MlpPolicy", "env": NoiseEnv(BOX), name: value})
    except Exception as error:
        return error
    return None


def report(cls: Any) -> str:
    """Report how many of the values a class refuses."""
    errors = [refused(cls, name, value) for name, value in BAD]
    n_refused = sum(error is not None for error in errors)
    return f"{cls.__module__.split('.')[0]}.{cls.__name__}: {n_refused} of {len(BAD)} refused at construction"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(report(PPO), report(PPOClip), sep="\n")
