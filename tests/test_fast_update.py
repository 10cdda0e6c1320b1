"""From the same state and minibatches, the fast path computes the same update as the reference path."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers import ACTION_SPACES, BOX, collect, flat_weights, noise_envs, small, update
from sb3_ppo_variants import NonFiniteError, PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.objectives import Clipped, DualClip

pytestmark = pytest.mark.usefixtures("natively")
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
    logged, fast_logged = reference.logger.name_to_value, fast.logger.name_to_value
    assert fast_logged.keys() == logged.keys()
    for key, value in logged.items():
        assert fast_logged[key] == pytest.approx(value, rel=1e-5, abs=1e-7), key


@pytest.mark.sampled(12)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("space", ACTION_SPACES)
@pytest.mark.parametrize("name", CASES)
def test_objectives(name: str, space: str, settings: str, double_precision: Callable[[Any], None]) -> None:
    cls, arguments = CASES[name]
    model = collected(cls, ACTION_SPACES[space], **arguments, **SETTINGS[settings])
    double_precision(model)
    assert_same_update(model)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("learn_features", [False, True])
@pytest.mark.parametrize("sde", SDE)
@pytest.mark.parametrize("name", CASES)
def test_gsde(name: str, sde: str, learn_features: bool, double_precision: Callable[[Any], None]) -> None:
    cls, arguments = CASES[name]
    arguments = {**arguments, "use_sde": True, "ent_coef": 0.02, "policy_kwargs": SDE[sde]}
    model = collected(cls, BOX, **arguments)
    model.policy.action_dist.learn_features = learn_features
    double_precision(model)
    with th.no_grad():  # Noise that requires gradients cannot be deep-copied.
        model.policy.reset_noise()
    assert_same_update(model)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str, double_precision: Callable[[Any], None]) -> None:
    # 100 minibatches.
    model = collected(PPOFixedKL, BOX, policy_kwargs=ARCHITECTURES[name], n_epochs=20)
    double_precision(model)
    assert_same_update(model)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations(name: str, double_precision: Callable[[Any], None]) -> None:
    policy = "MultiInputPolicy" if name == "dict" else "MlpPolicy"
    model = collected(PPOClip, BOX, OBSERVATIONS[name], policy)
    double_precision(model)
    assert_same_update(model)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("space", ACTION_SPACES)
@pytest.mark.parametrize("name", CASES)
def test_target_kl_stops_at_the_same_minibatch(
    name: str, space: str, double_precision: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    cls, arguments = CASES[name]
    model = collected(cls, ACTION_SPACES[space], target_kl=2e-3, **arguments | {"learning_rate": 3e-3})
    double_precision(model)
    model.verbose = 1
    assert_same_update(model)
    reference, fast = capsys.readouterr().out.strip().splitlines()[-2:]
    assert reference.startswith("Early stopping at step") and fast == reference


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_a_smaller_last_minibatch(double_precision: Callable[[Any], None]) -> None:
    model = collected(PPOClip, BOX)
    model.batch_size = 59  # Minibatches of 59 samples and 1 sample.
    double_precision(model)
    assert_same_update(model)


@pytest.mark.parametrize("first", [False, True])
def test_either_path_goes_on_from_the_other(first: bool, double_precision: Callable[[Any], None]) -> None:
    """Adam's moments and step count are passed from one path to the other."""
    model = collected(PPOClip, BOX)
    double_precision(model)
    assert_same_update(update(model, first))


@pytest.mark.parametrize("number", [float, np.float64])
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_single_precision_stays_close(space: str, number: Any) -> None:
    arguments = {"ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "gamma": 0.99, "clip_range": 0.2}
    numbers = {name: number(value) for name, value in arguments.items()}
    model = collected(PPOClip, ACTION_SPACES[space], policy_kwargs=ARCHITECTURES["NumPy's numbers"], **numbers)
    reference, fast = update(model, False), update(model, True)
    for wanted, got in zip(reference.policy.parameters(), fast.policy.parameters(), strict=True):
        assert got.dtype == th.float32
        # Over 100 steps of 1e-3, rounding errors, which Adam divides by small moments, stay below 0.1% of the distance.
        th.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_an_update_that_is_not_finite_is_refused_before_the_policy_changes() -> None:
    model = collected(PPOClip, BOX)
    model.rollout_buffer.returns[3] = 1e25
    before = deepcopy(model.policy.state_dict())
    model.fast = True
    with pytest.raises(ValueError, match=r"the value loss of minibatch \d is not finite: inf"):
        model.train()
    for key, weight in model.policy.state_dict().items():
        assert th.equal(weight, before[key])
    assert not model.policy.optimizer.state


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("objective", [Clipped(0.2), DualClip(0.2, 3.0)], ids=repr)
def test_a_clipped_ratio_that_overflows(objective: Any) -> None:
    """Its slope is 0 on the fast path. On the reference path, it is infinity times 0, as in SB3."""
    model = collected(PPOCustom, BOX, objective=objective)
    # log r is about 200, and exp(200) is infinite in single precision.
    model.rollout_buffer.log_probs[0] = -200.0
    model.rollout_buffer.advantages[0] = 9.0 if isinstance(objective, Clipped) else -9.0
    assert flat_weights(update(model, True)).isfinite().all()
    with pytest.raises(NonFiniteError, match="gradient"):
        update(model, False)


def test_an_update_without_a_step_leaves_adam_without_a_state(double_precision: Callable[[Any], None]) -> None:
    model = collected(PPOClip, BOX, target_kl=1e-3)
    double_precision(model)
    with th.no_grad():
        model.policy.action_net.bias += 1.0  # Exceeds target_kl from the start.
    for fast in (False, True):
        after = update(model, fast)
        assert not after.policy.optimizer.state
        assert all(parameter.grad is None for parameter in after.policy.parameters())


@pytest.mark.parametrize("fast", [False, True])
def test_gradients_that_a_callback_has_kept_stay(fast: bool) -> None:
    model = small(fast=fast).learn(32)
    kept = [parameter.grad for parameter in model.policy.parameters()]
    before = [gradient.clone() for gradient in kept]
    model.learn(32, reset_num_timesteps=False)
    assert all(map(th.equal, kept, before))
    assert not all(map(th.equal, kept, [parameter.grad for parameter in model.policy.parameters()]))
