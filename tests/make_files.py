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
from gymnasium import spaces
from masked_envs import MaskedNoiseEnv
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from helpers import ACTION_SPACES, BOX, MIXED, flat_weights, noise_envs
from sb3_ppo_variants import (
    ExactCheckpointCallback,
    ExactKL,
    Huber,
    KLAdaptive,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    PPOUnclipped,
    SeparateUpdates,
)
from sb3_ppo_variants.objectives import EWMA, SPO
from sb3_ppo_variants.policies.families import kind_of

FILES = Path(__file__).parent / "files"
OBSERVATIONS = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
DISCRETE = ACTION_SPACES["Discrete"]
MASKED = "MaskableMlpLstmPolicy"
# The class, policy, action space and arguments of each model.
MODELS: dict[str, tuple[Any, str, spaces.Space, dict[str, Any]]] = {
    "PPOClip": (PPOClip, "MlpPolicy", BOX, {}),
    "PPOAdaptiveKL": (PPOAdaptiveKL, "MlpPolicy", ACTION_SPACES["MultiDiscrete"], {"desired_kl": 1e-3}),
    "PPOFixedKL": (PPOFixedKL, "MlpPolicy", BOX, {"kl_coef": 2.0}),
    "PPOUnclipped": (PPOUnclipped, "MlpPolicy", DISCRETE, {}),
    "PPOCustom": (PPOCustom, "MlpPolicy", BOX, {"objective": EWMA(SPO(0.2))}),
    "PPOClip-separate": (
        PPOClip, "MlpPolicy", ACTION_SPACES["MultiBinary"], {"updates": SeparateUpdates(value_epochs=3)}
    ),
    "PPOClip-rules": (
        PPOClip, "MlpPolicy", BOX,
        {"learning_rate": KLAdaptive(learning_rate=3e-3), "stop": ExactKL(0.5), "value_loss": Huber(1.0)},
    ),
    "PPOClip-beta": (PPOClip, "MlpPolicy", BOX, {"policy_kwargs": {"distribution": "beta"}}),
    "PPOClip-hybrid": (PPOClip, "MlpPolicy", MIXED, {}),
    "PPOClip-gru": (PPOClip, "MlpLstmPolicy", DISCRETE, {"policy_kwargs": {"memory": "gru", "lstm_hidden_size": 4}}),
    "PPOClip-masked": (PPOClip, MASKED, DISCRETE, {"policy_kwargs": {"lstm_hidden_size": 4}}),
}  # fmt: skip
SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "learning_rate": 3e-3, "device": "cpu"}


def envs_of(name: str) -> VecEnv:
    """Create the environments of a model."""
    _, policy, actions, _ = MODELS[name]
    if policy == MASKED:
        return DummyVecEnv([lambda: MaskedNoiseEnv(actions)] * 2)
    return noise_envs(actions)


def predict(model: Any) -> np.ndarray:
    """Return the most probable actions, with a row of numbers for each observation."""
    masks = {"action_masks": np.ones((len(OBSERVATIONS), 3), bool)} if kind_of(model.policy).takes_masks else {}
    actions = model.predict(OBSERVATIONS, deterministic=True, **masks)[0]
    if isinstance(actions, np.ndarray):
        return actions
    return np.array([np.concatenate([np.ravel(part) for part in each.values()]) for each in actions])


def next_update(file: Path, fast: bool, **how: Any) -> Any:
    """Load the model in a file, and return it after another rollout and update."""
    model = MODELS[file.stem][0].load(file, env=envs_of(file.stem), fast=fast, **how)
    model.set_random_seed(7)
    return model.learn(64, reset_num_timesteps=False)


def evaluation() -> EvalCallback:
    """Create an evaluation callback whose state a checkpoint contains."""
    return EvalCallback(noise_envs(BOX), eval_freq=10, n_eval_episodes=2, verbose=0, warn=False)


def make_models(folder: Path) -> None:
    """Save each model and the results that are expected of it."""
    for name, (cls, policy, _, arguments) in MODELS.items():
        given = SMALL | arguments | {"policy_kwargs": {"net_arch": [4], **arguments.get("policy_kwargs", {})}}
        model = cls(policy, envs_of(name), seed=1, **given).learn(128)
        model.save(folder / f"{name}.zip")
        expected: dict[str, Any] = {"actions": predict(model)}
        for fast in (False, True):
            updated = next_update(folder / f"{name}.zip", fast)
            expected[f"weights_fast_{fast}"] = flat_weights(updated).numpy()
            if isinstance(updated, PPOAdaptiveKL):
                expected[f"kl_coef_fast_{fast}"] = np.array(updated.kl_coef)
        np.savez(folder / f"{name}.npz", **expected)


def make_checkpoint(folder: Path) -> None:
    """Save a checkpoint halfway through a run, and the final state of the run."""
    checkpoints = ExactCheckpointCallback(every=64, path=folder / "checkpoints", keep_last=1)
    env = noise_envs(BOX)
    model = PPOAdaptiveKL("MlpPolicy", env, seed=1, policy_kwargs={"net_arch": [4]}, **SMALL)
    evaluated = evaluation()
    model.learn(128, callback=[checkpoints, evaluated])
    end: dict[str, Any] = {"weights": flat_weights(model).numpy(), "kl_coef": np.array(model.kl_coef)}
    np.savez(folder / "checkpoints.npz", **end, best_mean_reward=np.array(evaluated.best_mean_reward))


if __name__ == "__main__":
    made = FILES / sys.argv[1]
    made.mkdir()  # Raises an error if the folder already exists.
    make_models(made)
    make_checkpoint(made)
