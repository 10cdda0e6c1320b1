"""Models of all kinds, and what is compared of them between the engines."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, masked_envs
from stable_baselines3.common.vec_env import VecEnv

from helpers import ACTION_SPACES, BOX, MIXED, NESTED, collect, noise_envs, policy_for, update, with_old_parameters
from sb3_ppo_variants import Batch, Objective, PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.kl import divergences_of

N_STEPS, N_ENVS, BATCH_SIZE, N_EPOCHS = 20, 3, 12, 8  # 40 minibatches.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "clip": (PPOClip, {}),
    "adaptive": (PPOAdaptiveKL, {"kl_coef": 3.0}),
    "fixed": (PPOFixedKL, {"kl_coef": 3.0}),
    "fixed and clip": (PPOFixedKL, {"kl_coef": 3.0, "clip_range": 0.1}),
    "unclipped": (PPOUnclipped, {}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"max_grad_norm": np.inf},
    "all terms": {"clip_range_vf": 0.1, "ent_coef": 0.02, "max_grad_norm": 0.05, "vf_coef": 0.7},
    "raw advantages": {"normalize_advantage": False, "max_grad_norm": None},
    "advantages over the rollout": {"normalize_advantage": "rollout", "max_grad_norm": 0.5},
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "relu": {"activation_fn": th.nn.ReLU, "net_arch": [16]},
    "different shapes": {"net_arch": {"pi": [8, 8], "vf": [16]}},
    "no hidden layers": {"net_arch": [], "activation_fn": th.nn.ELU},
    "no hidden layers in one": {"net_arch": {"pi": [], "vf": [8]}},
    "separate features": {"share_features_extractor": False},
    "NumPy's numbers": {"optimizer_kwargs": {"betas": (np.float64(0.9), np.float64(0.99)), "eps": np.float64(1e-5)}},
    "Adam's options": {"optimizer_kwargs": {"betas": (0.5, 0.9), "eps": 1e-3}},
}
SDE: dict[str, dict[str, Any]] = {
    "plain": {},
    "squashed": {"squash_output": True},
    "one deviation": {"full_std": False},
    "expln": {"use_expln": True, "log_std_init": 0.001},
    "squashed expln": {"use_expln": True, "squash_output": True, "full_std": False, "log_std_init": -1.0},
    "without hidden layers": {"net_arch": []},
    "different shapes": {"net_arch": {"pi": [8, 5], "vf": [16]}, "full_std": False},
}
OBSERVATIONS = {
    "Discrete": spaces.Discrete(5),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(4),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float64),
    "dict": spaces.Dict({"b": spaces.Box(-1, 1, (2, 2)), "a": spaces.Discrete(3)}),
    "bytes": spaces.Box(0, 255, (6,), np.uint8),
}
DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "gaussian of state": {"distribution": "gaussian", "std": "state"},
    "squashed": {"distribution": "squashed_gaussian", "log_std_init": -0.5},
    "squashed of state": {"distribution": "squashed_gaussian", "std": "state", "log_std_init": 0.5},
    "beta": {"distribution": "beta"},
}
FORCE = spaces.Box(-1, 1, (2,), np.float32)
MOVE_OR_KICK = spaces.Dict({"choice": spaces.Discrete(2), "kick": FORCE, "move": FORCE})
FOUR = spaces.Tuple([FORCE, spaces.Discrete(3), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 4])])
CONDITIONAL = spaces.Dict(
    {"arm": FORCE, "buttons": spaces.MultiBinary(2), "dials": spaces.MultiDiscrete([2, 4]), "tool": spaces.Discrete(4)}
)
HYBRID: dict[str, tuple[spaces.Space, dict[str, Any]]] = {
    "move or kick": (MOVE_OR_KICK, {"only_if": {"move": ("choice", 0), "kick": ("choice", 1)}}),
    "four parts": (FOUR, {}),
    "nested": (NESTED, {"entropy_weights": {"0": 0.0, "1.exact": 2.0, "3": -0.5}}),
    "conditional": (
        CONDITIONAL,
        {
            "only_if": {"arm": ("tool", [0, 2]), "buttons": ("tool", 3), "dials": ("tool", [1, 2, 3])},
            "entropy_weights": {"arm": 0.5, "tool": 3.0},
        },
    ),
    "one choice": (spaces.Tuple([spaces.Discrete(3)]), {"entropy_weights": {"0": 2.0}}),
}


@dataclass(frozen=True)
class OfStates(Objective):
    """Depends on both KLs and on the entropy, each with a weight of its own in each state."""

    needs_kl = True

    def loss(self, batch: Batch) -> th.Tensor:
        weights = 1 + batch.returns.abs()
        penalty = 0.7 * weights * batch.kl + batch.reverse_kl**2 - 0.03 * weights * batch.entropy
        return (penalty - batch.advantages * batch.ratio).mean()


@dataclass(frozen=True)
class OfParameters(Objective):
    """Pulls the parameters of the distributions back to the old ones, more in earlier episodes."""

    needs_kl = True

    def loss(self, batch: Batch) -> th.Tensor:
        weights = 1 / (1 + batch.episodes)
        pairs = zip(batch.parameters, batch.old_parameters, strict=True)
        # The log-probabilities of masked actions are so low that their last digits are arbitrary.
        distance = sum(((new.clamp(min=-99) - old.clamp(min=-99)) ** 2).sum(dim=1) for new, old in pairs)
        return (weights * distance + 0.1 * (batch.log_prob - batch.old_log_prob) ** 2).mean() - batch.entropy.mean()


OWN = {"of states": OfStates(), "of parameters": OfParameters()}


def collected(
    cls: Any,
    action_space: spaces.Space,
    observation_space: spaces.Space | None = None,
    policy: str = "MlpPolicy",
    n_envs: int = N_ENVS,
    **arguments: Any,
) -> Any:
    """Return a model on the reference path with a full rollout buffer."""
    observed = {} if observation_space is None else {"observation_space": observation_space}
    env = noise_envs(action_space, n_envs=n_envs, **observed)
    arguments = {"learning_rate": 1e-3, "n_epochs": N_EPOCHS, "n_steps": N_STEPS, **arguments}
    model = cls(policy, env, batch_size=BATCH_SIZE, seed=1, fast=False, **arguments)
    return collect(model)


def assert_same_update(model: Any) -> None:
    reference, fast = update(model, False), update(model, True)
    assert fast._n_updates == reference._n_updates
    pairs = zip(model.policy.parameters(), reference.policy.parameters(), fast.policy.parameters(), strict=True)
    for before, wanted, got in pairs:
        assert not th.equal(before, wanted)
        th.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-9)
        th.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-9)
    theirs, ours = (m.policy.optimizer.state_dict() for m in (reference, fast))
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for index, wanted in theirs["state"].items():
        th.testing.assert_close(ours["state"][index], wanted, rtol=1e-5, atol=1e-9)
    if model.proximal_policy is not None:
        both = (m.proximal_policy.state_dict() for m in (fast, reference))
        th.testing.assert_close(*both, rtol=1e-5, atol=1e-9)
    logged, fast_logged = reference.logger.name_to_value, fast.logger.name_to_value
    assert fast_logged.keys() == logged.keys()
    for key, value in logged.items():
        assert fast_logged[key] == pytest.approx(value, rel=1e-5, abs=1e-7), key


def rolled_out(env: VecEnv, callback: Any = None, n_rollouts: int = 1, policy: Any = None, **arguments: Any) -> Any:
    """Return a model after rollouts with a policy whose actions depend on the state, unlike those of a new one."""
    settings = {"n_steps": 40, "batch_size": 20, "seed": 2, "device": "cpu", **arguments}
    model = PPOClip(policy_for(env) if policy is None else policy, env, **settings)
    for parameter in model.policy.parameters():
        parameter.data += 0.3 * th.randn(parameter.shape, generator=th.Generator().manual_seed(0))
    _, callback = model._setup_learn(10**6, callback)
    callback.on_training_start({}, {})
    for _ in range(n_rollouts):
        assert model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
    return model


def assert_records_the_policy(model: Any, atol: float = 1e-5) -> None:
    """Check what a rollout recorded against the policy that made it."""
    size = model.n_steps * model.n_envs
    for batch, _, old_parameters in with_old_parameters(model, size):
        masks = [batch.action_masks] if hasattr(batch, "action_masks") else []
        with th.no_grad():
            discrete = isinstance(model.action_space, spaces.Discrete)
            actions = batch.actions.long().flatten() if discrete else batch.actions
            values, log_prob, _ = model.policy.evaluate_actions(batch.observations, actions, *masks)
            found = model.policy.get_distribution(batch.observations, *masks)
        th.testing.assert_close(batch.old_values, values.flatten(), rtol=1e-5, atol=1e-6)
        th.testing.assert_close(batch.old_log_prob, log_prob, rtol=atol, atol=atol)
        for ours, theirs in zip(old_parameters, divergences_of(found).parameters(found), strict=True):
            th.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def masked_model(cls: Any, space: spaces.Space, policy: Any = "MaskableMlpPolicy", **arguments: Any) -> Any:
    """Return a model with action masks on the reference path."""
    observed: Any = {"observation_space": MIXED} if "MultiInput" in str(policy) else {}
    env = masked_envs(space, n_envs=N_ENVS, **observed)
    arguments = {"learning_rate": 1e-3, "n_epochs": 6, "n_steps": N_STEPS, "fast": False, **arguments}
    return cls(policy, env, batch_size=BATCH_SIZE, seed=1, **arguments)


# For each kind of model, the spaces and the arguments of `collected`.
MODELS: dict[str, dict[str, Any]] = {
    **{name: {"action_space": space} for name, space in ACTION_SPACES.items()},
    **{f"gSDE, {name}": {"action_space": BOX, "use_sde": True, "policy_kwargs": SDE[name]} for name in SDE},
    **{name: {"action_space": BOX, "policy_kwargs": DISTRIBUTIONS[name]} for name in DISTRIBUTIONS},
    **{name: {"action_space": space, "policy_kwargs": kwargs} for name, (space, kwargs) in HYBRID.items()},
    **{f"masked {name}": {"action_space": space, "masked": True} for name, space in MASKED_SPACES.items()},
    **{name: {"action_space": BOX, "policy_kwargs": ARCHITECTURES[name]} for name in ARCHITECTURES},
    **{
        f"{name} observed": {
            "action_space": ACTION_SPACES["Discrete"],
            "observation_space": space,
            "policy": "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy",
        }
        for name, space in OBSERVATIONS.items()
    },
}


def model_of(cls: Any, name: str, **more: Any) -> Any:
    """Return a model of a kind with a full rollout buffer, on the reference path."""
    arguments = {**MODELS[name], **more}
    if arguments.pop("masked", False):
        model = collect(masked_model(cls, arguments.pop("action_space"), **arguments))
    else:
        model = collected(cls, **arguments)
    if model.use_sde:
        with th.no_grad():  # Noise that requires gradients cannot be deep-copied.
            model.policy.reset_noise()
    return model
