"""Masks of the discrete parts of Dict and Tuple actions: their forms, their distributions, and training with them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, MaskedHybridEnv, MaskedNoiseEnv, masked_hybrid_envs
from parity import train
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch.distributions import Categorical, Normal, kl_divergence

from helpers import DICT, KICK, NESTED, VECTOR, NoiseEnv, assert_same_weights, collect, small
from sb3_ppo_variants import ArgumentError, EnvOutputError, PPOClip, PPOFixedKL
from sb3_ppo_variants.envs import SafeSubprocVecEnv
from sb3_ppo_variants.envs.masks import MaskCheck, check_given

ALL = [1] * 3
# The masks of NESTED's parts: MultiBinary(2), MultiDiscrete([2, 4]), Discrete(3), a MultiDiscrete of shape (2, 2), and
# a MultiBinary of shape (2, 2).
COINS, DIALS, LEVEL = [1, 0, 1, 1], [0, 1, 1, 1, 0, 0], [0, 0, 1]
GRID, SQUARE = [1, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 1, 0, 1]


def nested(**changes: Any) -> Any:
    """Return a mask with the structure of ``NESTED``."""
    parts = {"coins": COINS, "dials": DIALS, "exact": None, "level": LEVEL, "box": None, "grid": GRID, **changes}
    of_dict = {"dials": parts["dials"], "exact": parts["exact"]}
    return (parts["coins"], of_dict, parts["level"], parts["box"], (None, parts["grid"]), SQUARE)


FLAT = [*COINS, *DIALS, *LEVEL, *GRID, *SQUARE]
ACCEPTED: list[tuple[spaces.Space, Any, list[int]]] = [
    (KICK, {"choice": [1, 0, 1]}, [1, 0, 1]),
    (KICK, {}, ALL),
    (KICK, [True, False, True], [1, 0, 1]),
    (NESTED, nested(), FLAT),
    (NESTED, FLAT, FLAT),
    (NESTED, nested(coins=[[1, 0], [1, 1]], level=None), [*COINS, *DIALS, *ALL, *GRID, *SQUARE]),
    (NESTED, (COINS, None, LEVEL, None, None, None), [*COINS, *[1] * 6, *LEVEL, *[1] * 22]),
]


@pytest.mark.parametrize(("space", "mask", "flat"), ACCEPTED)
def test_forms_of_masks(space: Any, mask: Any, flat: list[int]) -> None:
    masks = MaskCheck(space).stack([mask, np.ones(len(flat), bool)])
    assert masks.dtype == bool and masks.tolist() == [[bool(each) for each in flat], [True] * len(flat)]
    (rows,) = check_given(mask, True, "Policy", space).values()
    assert rows.tolist() == [masks[0].tolist()]


PROBLEMS: list[tuple[spaces.Space, Any, str]] = [
    (KICK, {"choice": [1, 1]}, r"mask of the part 'choice' .*is an array of shape \(2,\), but must be of shape \(3,\)"),
    (KICK, {"choise": ALL}, "mask .*is {'choise'.*, but must be a dict with masks of 'choice', 'force'"),
    (KICK, {"force": [1, 1]}, "mask of the part 'force' .*must be None or left out, because the part is a Box"),
    (KICK, None, "must be an array of booleans, or have the structure of the action space"),
    (KICK, {"choice": [0, 0, 0]}, "False for every action of the part 'choice', but must be True for at least one"),
    (NESTED, (None, None), r"mask .*is \(None, None\), but must be a tuple with masks of 0, 1, .*, 5, or None for any"),
    (NESTED, nested(grid=[1] * 4), r"mask of the part '4\.1' .*is an array of shape \(4,\), but must be .* \(14,"),
    (NESTED, nested(dials=[1, 1, 0, 0, 0, 0]), r"every action in dimension 1 of the part '1\.dials', but must be True"),
]


@pytest.mark.parametrize(("space", "mask", "problem"), PROBLEMS)
def test_what_is_wrong_is_named(space: Any, mask: Any, problem: str) -> None:
    with pytest.raises(EnvOutputError, match=problem) as raised:
        MaskCheck(space).stack([np.ones(MaskCheck(space).size, bool), mask])
    assert "of environment 1 is" in str(raised.value)


# [training]


class Partly(gym.Wrapper):
    """Takes the actions of an environment with masks as the only part of a dictionary."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.action_space = spaces.Dict({"only": env.action_space})

    def step(self, action: Any) -> Any:
        return self.env.step(action["only"])

    def action_masks(self) -> Any:
        return {"only": cast(Any, self.env).action_masks()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("observations", [VECTOR, DICT], ids=["vector", "dict"])
@pytest.mark.parametrize("name", MASKED_SPACES)
def test_a_single_part_is_maskable_ppo_bit_for_bit(name: str, observations: Any) -> None:
    def make(wrap: Callable[[gym.Env], gym.Env]) -> Callable[[], VecEnv]:
        env = lambda: wrap(MaskedNoiseEnv(MASKED_SPACES[name], deepcopy(observations)))  # noqa: E731
        return lambda: DummyVecEnv([env, env])

    policy = "MlpPolicy" if observations is VECTOR else "MultiInputPolicy"
    shared: dict[str, Any] = {"ent_coef": 0.02, "vf_coef": 0.7}
    theirs, their_log = train(MaskablePPO, make(lambda env: env), policy, **shared)
    ours, our_log = train(PPOClip, make(Partly), f"Maskable{policy}", **shared)
    assert_same_weights(ours, theirs)
    for name in ("train/loss", "train/entropy_loss", "train/approx_kl"):
        assert [each[name] for each in our_log] == [each[name] for each in their_log]


SPACES: dict[str, Any] = {"Dict": KICK, "Tuple": NESTED}


def small_masked(cls: Any = PPOClip, env: VecEnv | None = None, policy: str = "MaskableMlpPolicy", **more: Any) -> Any:
    return small(cls, masked_hybrid_envs(KICK) if env is None else env, policy, **more)


@pytest.mark.parametrize("options", [{}, {"only_if": {"force": ("choice", [1, 2])}}], ids=["all parts", "only if"])
def test_the_update_is_the_equations(options: dict[str, Any]) -> None:
    kwargs = {**options, "log_std_init": -0.3}
    model = collect(small_masked(PPOFixedKL, kl_coef=3.0, ent_coef=0.05, learning_rate=3e-3, policy_kwargs=kwargs))
    policy, old, buffer = deepcopy(model.policy), deepcopy(model.policy), deepcopy(model.rollout_buffer)
    assert model.policy.log_std.tolist() == pytest.approx([-0.3, -0.3])

    def parts(of: Any, batch: Any) -> tuple[Categorical, Normal]:
        outputs = of.action_net(of.mlp_extractor(of.extract_features(batch.observations))[0])
        allowed = batch.action_masks.bool()
        # Logits so low that the probabilities are 0, without sb3-contrib.
        choice = Categorical(logits=outputs[:, :3].where(allowed, -1e9))
        return choice, Normal(outputs[:, 3:5], of.log_std.exp())

    state = np.random.get_state()
    for _ in range(model.n_epochs):
        for batch in buffer.get(model.batch_size):
            choice, force = parts(policy, batch)
            with th.no_grad():
                old_choice, old_force = parts(old, batch)
            counts: Any = 1.0
            share, old_share = counts, counts
            if options:
                counts = (batch.actions[:, 0] > 0).float()
                share, old_share = (each.probs[:, 1:].sum(dim=1) for each in (choice, old_choice))
            log_prob = choice.log_prob(batch.actions[:, 0]) + counts * force.log_prob(batch.actions[:, 1:]).sum(dim=1)
            entropy = choice.entropy() + share * force.entropy().sum(dim=1)
            of_force = kl_divergence(old_force, force).sum(dim=1)
            kl = (old_choice.probs * (old_choice.logits - choice.logits)).sum(dim=1) + old_share * of_force
            advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
            gained = (th.exp(log_prob - batch.old_log_prob) * advantages - 3 * kl).mean()
            error = (policy.predict_values(batch.observations).flatten() - batch.returns).square().mean()
            policy.optimizer.zero_grad()
            (-gained - model.ent_coef * entropy.mean() + model.vf_coef * error).backward()
            th.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
    np.random.set_state(state)
    before = deepcopy(model.policy)
    model.train()
    for new, wanted, was in zip(model.policy.parameters(), policy.parameters(), before.parameters(), strict=True):
        th.testing.assert_close(new, wanted, rtol=1e-4, atol=1e-6)
        assert (new - was).abs().max() > 1e-4


# [use]


def test_predictions_keep_to_masks() -> None:
    model, seen = small_masked(), np.zeros((2, 3), np.float32)
    for form in (lambda row: row, lambda row: {"choice": row}):
        for _ in range(10):
            action, _ = model.predict(seen[0], action_masks=form([0, 1, 0]))
            assert KICK.contains(action) and action["choice"] == 1
            actions, _ = model.predict(seen, action_masks=[form([0, 1, 0]), form([0, 0, 1])])
            assert [each["choice"] for each in actions] == [1, 2]
    several = np.empty(2, object)  # As get_action_masks of sb3-contrib stacks dicts.
    several[:] = {"choice": [1, 0, 0]}, {}
    assert model.predict(seen, action_masks=several)[0][0]["choice"] == 0
    model = small_masked(env=masked_hybrid_envs(NESTED))
    only = (None, None, [0, 1, 0], None, None, None)
    assert model.predict(seen[0], action_masks=only)[0][2] == 0
    assert [each[2] for each in model.predict(seen, action_masks=[only, only])[0]] == [0, 0]


WRONG: list[tuple[Any, str]] = [
    (None, "needs the masks of the states"),
    ({"choice": [1, 0]}, r"action_masks: the action mask of the part 'choice' of observation 0 is .* shape \(2,\)"),
    ([{}, {"force": [1]}], "the action mask of the part 'force' of observation 1 is .*, because .* is a Box"),
    ({"choice": [0, 0, 0]}, "observation 0 is False for every action of the part 'choice', but must be"),
    ([{}, {}, {}], "is for 3 environments, but there are 2 observations"),
    ([1, 1], "allowed: 3 booleans for each observation"),
]


@pytest.mark.parametrize(("masks", "problem"), WRONG)
def test_masks_that_predict_does_not_take(masks: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        small_masked().predict(np.zeros((2, 3), np.float32), action_masks=masks)


class Wrong(MaskedHybridEnv):
    def _draw(self) -> None:
        self._drawn = [np.ones(3, bool)]  # Each action that the policy draws from these masks is allowed.

    def action_masks(self) -> Any:
        return {"choice": [False] * 3} if self._steps == 5 else {}


@pytest.mark.parametrize("make", [DummyVecEnv, SafeSubprocVecEnv])
def test_wrong_masks_end_training(make: Any) -> None:
    env = make([lambda: Wrong(KICK)])
    with pytest.raises(EnvOutputError, match="environment 0 at step 5 is False for every action of the part 'choice'"):
        small_masked(env=env).learn(32)
    env.close()


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (spaces.Dict({"force": spaces.Box(-1, 1, (2,))}), {}, r"cannot be masked; .*Dict and Tuple spaces with such parts"),
    (KICK, {"fast": True}, "fast=True is not possible, because MaskableHybridPolicy is not a subclass of"),
    (KICK, {"policy_kwargs": {"log_std_init": "0"}}, r"policy_kwargs\['log_std_init'\]='0' is not allowed"),
]


@pytest.mark.parametrize(("space", "arguments", "message"), REFUSED)
def test_what_does_not_fit_is_refused(space: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small_masked(env=DummyVecEnv([lambda: NoiseEnv(space)]), **arguments)


def test_environments_without_masks_are_refused_before_the_first_step() -> None:
    with pytest.raises(ArgumentError, match=r"the environments have no action_masks\(\)"):
        small_masked(env=DummyVecEnv([lambda: NoiseEnv(KICK)])).learn(16)
    with pytest.warns(UserWarning, match=r"have action_masks\(\), which HybridPolicy ignores"):
        small_masked(env=DummyVecEnv([lambda: Wrong(KICK)]), policy="MlpPolicy")._setup_learn(16)
