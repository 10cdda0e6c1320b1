"""Policies whose actor and critic see different observations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import rolled_out
from masked_envs import DISCRETE, masked_envs
from recurrence import SMALL, ragged_envs
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

from helpers import BOX, KEYS, PRIVILEGED, flat_weights, noise_envs, small
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.engines.native import networks
from sb3_ppo_variants.policies.kind import kind_of

ENVS: dict[str, Callable[[], VecEnv]] = {
    "MultiInputPolicy": lambda: noise_envs(BOX, PRIVILEGED, n_envs=3),
    "MaskableMultiInputPolicy": lambda: masked_envs(DISCRETE, PRIVILEGED),
    "MultiInputLstmPolicy": lambda: ragged_envs(space=PRIVILEGED),
    "MaskableMultiInputLstmPolicy": lambda: masked_envs(DISCRETE, PRIVILEGED),
}
policies = pytest.mark.parametrize("policy", ENVS)


def made(policy: str = "MultiInputPolicy", cls: Any = PPOClip, keys: Any = KEYS, **arguments: Any) -> Any:
    kwargs = {"net_arch": {"pi": [8], "vf": [16, 8]}, **keys, **arguments.pop("policy_kwargs", {})}
    if "Lstm" in policy:
        kwargs |= SMALL
    return small(cls, ENVS[policy](), policy, policy_kwargs=kwargs, **arguments)


def observed(n: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "sensors": rng.uniform(-1, 1, (n, 2, 3)).astype(np.float32),
        "mass": rng.uniform(-1, 1, (n, 5)).astype(np.float32),
        "gear": rng.integers(4, size=n),
    }


def computed(model: Any, observations: Any) -> tuple[th.Tensor, th.Tensor]:
    """Return the outputs of the actor, before they are masked, and the values."""
    kind, outputs = kind_of(model.policy), []
    hook = model.policy.action_net.register_forward_hook(lambda *args: outputs.append(args[-1]))
    with th.no_grad():
        _, values = kind.of_first_state(model.policy.obs_to_tensor(observations)[0])
    hook.remove()
    return outputs[0], values


def by_hand(weights: dict[str, th.Tensor], names: list[str], features: list[np.ndarray]) -> th.Tensor:
    x = th.as_tensor(np.concatenate(features, axis=1))
    for i, name in enumerate(names):
        x = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        x = x if i + 1 == len(names) else th.tanh(x)
    return x


@pytest.mark.parametrize("policy", ["MultiInputPolicy", "MaskableMultiInputPolicy"])
def test_both_networks_compute_from_their_observations(policy: str) -> None:
    model, seen = made(policy), observed()
    outputs, values = computed(model, seen)
    weights, gear = model.policy.state_dict(), np.eye(4, dtype=np.float32)[seen["gear"]]
    actor = [gear, seen["sensors"].reshape(6, -1)]
    th.testing.assert_close(outputs, by_hand(weights, ["mlp_extractor.policy_net.0", "action_net"], actor))
    names = ["mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"]
    th.testing.assert_close(values, by_hand(weights, names, [gear, seen["mass"]]))


@policies
def test_nobody_sees_the_observations_of_the_other(policy: str) -> None:
    model, seen = made(policy), observed(1)
    outputs, values = computed(model, seen)
    for key, (changes_actor, changes_critic) in {"sensors": (1, 0), "mass": (0, 1), "gear": (1, 1)}.items():
        other = {**seen, key: (seen[key] + 1) % 4 if key == "gear" else seen[key] + 0.1}
        new_outputs, new_values = computed(model, other)
        assert th.equal(new_outputs, outputs) != changes_actor, key
        assert th.equal(new_values, values) != changes_critic, key


@policies
def test_actions_need_no_observations_of_the_critic(policy: str) -> None:
    model, seen = made(policy).learn(48), observed()
    deployed = {key: seen[key] for key in KEYS["actor_keys"]}
    first = {key: array[0] for key, array in deployed.items()}

    def act(observations: Any, n: int) -> np.ndarray:
        masks = {"action_masks": np.ones((n, 3), bool)} if "Maskable" in policy else {}
        return model.predict(observations, deterministic=True, **masks)[0]

    actions = act(seen, 6)
    np.testing.assert_array_equal(act(deployed, 6), actions)
    np.testing.assert_allclose(act(first, 1), actions[0], rtol=1e-5)


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("n_envs", [1, 150])  # Also more rows than a minibatch.
def test_rollouts_are_those_of_the_policy(n_envs: int) -> None:
    env = noise_envs(BOX, PRIVILEGED, n_envs)
    model = rolled_out(env, fast=True, policy_kwargs={**KEYS, "net_arch": [8]})
    for batch in model.rollout_buffer.get():
        with th.no_grad():
            values, log_prob, _ = model.policy.evaluate_actions(batch.observations, batch.actions)
        th.testing.assert_close(batch.old_values, values.flatten(), rtol=1e-5, atol=1e-5)
        th.testing.assert_close(batch.old_log_prob, log_prob, rtol=1e-5, atol=1e-5)


@policies
@pytest.mark.parametrize("name", ["actor_keys", "critic_keys"])
def test_none_stands_for_all_observations(policy: str, name: str) -> None:
    other = {"actor_keys": ["sensors"], "critic_keys": ["mass"]}
    del other[name]
    given, left_out = made(policy, keys={**other, name: None}), made(policy, keys=other)
    assert given.policy._keys == left_out.policy._keys and len(given.policy._keys[name]) == 3
    assert th.equal(flat_weights(made(policy, keys={name: None})), flat_weights(made(policy, keys={})))


def test_without_keys_the_policy_is_sb3s() -> None:
    models = [small(cls, noise_envs(BOX, PRIVILEGED)) for cls in (PPO, PPOClip)]
    assert type(models[0].policy) is type(models[1].policy)
    assert networks.Features(models[1].policy).first_of_critic == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"critic_keys": ["gear", "speed"]}, "no observation 'speed'; the environment has 'gear', 'mass', 'sen"),
    "empty": ({"actor_keys": []}, r"\['actor_keys'\]=\[\] is not allowed; allowed: a list of at least one key"),
    "string": ({"actor_keys": "gear"}, r"\['actor_keys'\]='gear' is not allowed; allowed: a list"),
    "shared": ({**KEYS, "share_features_extractor": True}, "share_features_extractor=True does not go with actor_keys"),
}


@pytest.mark.parametrize("name", REFUSED)
@policies
def test_keys_are_checked(policy: str, name: str) -> None:
    keys, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        made(policy, keys=keys)


def test_a_shared_lstm_has_one_input() -> None:
    kwargs = {**KEYS, "shared_lstm": True, "enable_critic_lstm": False}
    with pytest.raises(AssertionError, match="the LSTM cannot be shared"):
        small(PPOClip, ragged_envs(space=PRIVILEGED), "MultiInputLstmPolicy", policy_kwargs=kwargs)


def test_other_policies_have_no_keys() -> None:
    with pytest.raises(ArgumentError, match=r"\['critic_keys'\] needs Dict observations and one of"):
        small(PPOClip, noise_envs(BOX), policy_kwargs={"critic_keys": ["mass"]})


def test_observations_that_nobody_sees_are_named() -> None:
    with pytest.warns(UserWarning, match="neither actor_keys nor critic_keys has 'mass', so the policy does not use"):
        made(keys={"actor_keys": ["gear"], "critic_keys": ["gear", "sensors"]})
