"""From the same state and minibatches, the native library computes the same update as the reference, for any model."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import CASES, HYBRID, MODELS, OWN, SETTINGS, assert_same_update, collected, model_of

from helpers import ACTION_SPACES, BOX, assert_same_weights, flat_weights, small, update
from sb3_ppo_variants import ApproximateKL, ExactKL, Huber, KLAdaptive, PPOClip, PPOCustom, PPOFixedKL, SeparateUpdates
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.objectives import EWMA, Clipped, DualClip

pytestmark = pytest.mark.usefixtures("natively")
Double = Callable[[Any], None]
SEPARATE = SeparateUpdates(policy_epochs=2, value_epochs=3)
UPDATES: dict[str, dict[str, Any]] = {
    **SETTINGS,
    "separate": {"updates": SEPARATE, "stop": ApproximateKL(0.02), "max_grad_norm": 0.1},
    "stop and value loss": {"stop": ExactKL(1e-3, ends="epoch"), "value_loss": Huber(0.1)},
    "adaptive rate": {"learning_rate": KLAdaptive(desired_kl=1e-3, every="minibatch")},
    "target_kl": {"target_kl": 2e-3, "learning_rate": 3e-3},
}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("settings", UPDATES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", CASES)
def test_any_model(case: str, name: str, settings: str, double_precision: Double) -> None:
    cls, arguments = CASES[case]
    model = model_of(cls, name, **{**UPDATES[settings], **arguments})
    double_precision(model)
    assert choose(model._plan(), "auto").engine.name == "native"
    assert_same_update(model)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("name", MODELS)
def test_objectives_in_python(name: str, own: str, double_precision: Double) -> None:
    model = model_of(PPOCustom, name, objective=OWN[own], ent_coef=0.01)
    double_precision(model)
    assert_same_update(model)


@pytest.mark.parametrize("own", OWN)
def test_objectives_in_python_on_large_minibatches(own: str, double_precision: Double) -> None:
    arguments: dict[str, Any] = {"n_steps": 100, "updates": SEPARATE, "objective": OWN[own]}
    model = collected(PPOCustom, BOX, **arguments, normalize_advantage="rollout")
    model.batch_size = 250  # The library computes 128 states at a time.
    double_precision(model)
    assert_same_update(model)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_moving_averages(name: str, double_precision: Double) -> None:
    model = model_of(PPOCustom, name, objective=EWMA(Clipped(0.2), 0.9), ent_coef=0.02)
    double_precision(model)
    model.proximal_policy.double()
    assert_same_update(model)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("each_instruction_set")
@pytest.mark.parametrize("name", MODELS)
def test_all_instructions_compute_the_same_in_single_precision(name: str) -> None:
    model = model_of(PPOFixedKL, name, kl_coef=3.0, ent_coef=0.02)
    reference, fast = update(model, False), update(model, True)
    for wanted, got in zip(reference.policy.parameters(), fast.policy.parameters(), strict=True):
        assert got.dtype == th.float32
        th.testing.assert_close(got, wanted, rtol=0, atol=2e-4)


def test_a_smaller_last_minibatch(double_precision: Double) -> None:
    model = collected(PPOClip, BOX)
    model.batch_size = 25
    double_precision(model)
    assert_same_update(model)


@pytest.mark.parametrize("first", [False, True])
def test_either_engine_goes_on_from_the_other(first: bool, double_precision: Double) -> None:
    model = collected(PPOFixedKL, BOX, kl_coef=3.0)
    double_precision(model)
    assert_same_update(update(model, first))


@pytest.mark.parametrize("value", [-1, 3])
def test_actions_that_the_policy_does_not_have_are_refused(value: int) -> None:
    for space, column in ((ACTION_SPACES["Discrete"], 0), (HYBRID["conditional"][0], -1)):
        model = collected(PPOClip, space)
        model.rollout_buffer.actions[0, 0, column] = value if column == 0 else 4
        model.fast = True
        with pytest.raises(IndexError, match="actions that the policy does not have"):
            model.train()


def test_the_engine_for_sequences() -> None:
    kick = HYBRID["move or kick"][0]
    model = collected(PPOFixedKL, kick, policy="MlpLstmPolicy", n_epochs=2, ent_coef=0.02)
    assert choose(model._plan(), True).engine.name == "sequences"
    reference, fast = update(model, False), update(model, True)
    for got, wanted in zip(fast.policy.parameters(), reference.policy.parameters(), strict=True):
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


def test_options_may_be_flags_of_numpy() -> None:
    models = [small(use_sde=True, policy_kwargs={"use_expln": true}, fast=True).learn(64) for true in (True, np.True_)]
    assert_same_weights(*models)
