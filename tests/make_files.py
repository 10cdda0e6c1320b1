"""Save files with the current version, which every later version must load and continue to train with the same results.

    PYTHONPATH=tests python tests/make_files.py NAME

creates ``tests/files/NAME``. It contains a small model for each of ``MODELS`` with its predictions and the result of
its next update on either path, and a checkpoint with the final state of its run. Create one folder per release and
never change it: ``tests/test_earlier_files.py`` reads them all.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import EvalCallback

from helpers import ACTION_SPACES, BOX, flat_weights, noise_envs
from sb3_ppo_variants import (
    ExactCheckpointCallback,
    PPOAdaptiveKL,
    PPOClip,
    PPOFixedKL,
    PPOUnclipped,
    SeparateUpdates,
)

FILES = Path(__file__).parent / "files"
OBSERVATIONS = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
# The class, action space and arguments of each model.
MODELS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "PPOClip": (PPOClip, "Box", {}),
    "PPOAdaptiveKL": (PPOAdaptiveKL, "MultiDiscrete", {"desired_kl": 1e-3}),
    "PPOFixedKL": (PPOFixedKL, "Box", {"kl_coef": 2.0}),
    "PPOUnclipped": (PPOUnclipped, "Discrete", {}),
    "PPOClip-separate": (PPOClip, "MultiBinary", {"updates": SeparateUpdates(value_epochs=3)}),
}
SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "learning_rate": 3e-3, "device": "cpu"}


def next_update(file: Path, cls: Any, actions: str, fast: bool, **how: Any) -> Any:
    """Load the model in a file, and return it after another rollout and update."""
    model = cls.load(file, env=noise_envs(ACTION_SPACES[actions]), fast=fast, **how)
    model.set_random_seed(7)
    return model.learn(64, reset_num_timesteps=False)


def evaluation() -> EvalCallback:
    """Create an evaluation callback whose state a checkpoint contains."""
    return EvalCallback(noise_envs(BOX), eval_freq=10, n_eval_episodes=2, verbose=0, warn=False)


def make_models(folder: Path) -> None:
    """Save each model and the results that are expected of it."""
    for name, (cls, actions, arguments) in MODELS.items():
        policy_kwargs = {"net_arch": [4]}
        env = noise_envs(ACTION_SPACES[actions])
        model = cls("MlpPolicy", env, seed=1, policy_kwargs=policy_kwargs, **SMALL, **arguments).learn(128)
        model.save(folder / f"{name}.zip")
        expected: dict[str, Any] = {"actions": model.predict(OBSERVATIONS, deterministic=True)[0]}
        for fast in (False, True):
            updated = next_update(folder / f"{name}.zip", cls, actions, fast)
            expected[f"weights_fast_{fast}"] = flat_weights(updated).numpy()
            if hasattr(updated, "current_kl_coef"):
                expected[f"kl_coef_fast_{fast}"] = np.array(updated.current_kl_coef)
        np.savez(folder / f"{name}.npz", **expected)


def make_checkpoint(folder: Path) -> None:
    """Save a checkpoint halfway through a run, and the final state of the run."""
    checkpoints = ExactCheckpointCallback(every=64, path=folder / "checkpoints", keep_last=1)
    env = noise_envs(BOX)
    model = PPOAdaptiveKL("MlpPolicy", env, seed=1, policy_kwargs={"net_arch": [4]}, **SMALL)
    evaluated = evaluation()
    model.learn(128, callback=[checkpoints, evaluated])
    end: dict[str, Any] = {"weights": flat_weights(model).numpy(), "kl_coef": np.array(model.current_kl_coef)}
    np.savez(folder / "checkpoints.npz", **end, best_mean_reward=np.array(evaluated.best_mean_reward))


if __name__ == "__main__":
    made = FILES / sys.argv[1]
    made.mkdir()  # Raises an error if the folder already exists.
    make_models(made)
    make_checkpoint(made)
