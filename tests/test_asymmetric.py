"""Policies whose actor and critic see different observations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import rolled_out
from gymnasium import spaces
from masked_envs import DISCRETE, masked_envs
from recurrence import SMALL, ragged_envs
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv

from helpers import BOX, collect, noise_envs, small, update
from sb3_ppo_variants import ArgumentError, PPOClip, SeparateUpdates
from sb3_ppo_variants.engines.native import networks
from sb3_ppo_variants.policies.families import kind_of

# An observation of the actor alone, of the critic alone, and of both.
SPACE = spaces.Dict({"sensors": spaces.Box(-1, 1, (2, 3)), "mass": spaces.Box(-1, 1, (5,)), "gear": spaces.Discrete(4)})
KEYS = {"actor_keys": ["sensors", "gear"], "critic_keys": ["mass", "gear"]}
ENVS: dict[str, Callable[[], VecEnv]] = {
    "MultiInputPolicy": lambda: noise_envs(BOX, SPACE, n_envs=3),
    "MaskableMultiInputPolicy": lambda: masked_envs(DISCRETE, SPACE),
    "MultiInputLstmPolicy": lambda: ragged_envs(space=SPACE),
    "MaskableMultiInputLstmPolicy": lambda: masked_envs(DISCRETE, SPACE),
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


class Everything(BaseFeaturesExtractor):
    """Adds up all observations that it is shown, with different weights."""

    def __init__(self, space: spaces.Dict):
        super().__init__(space, 1)

    def forward(self, observations: dict[str, th.Tensor]) -> th.Tensor:
        x = th.cat([part.flatten(1) for _, part in sorted(observations.items())], dim=1)
        return x @ th.arange(1.0, 1.0 + x.shape[1])[:, None]


@pytest.mark.parametrize("extractor", [{}, {"features_extractor_class": Everything}])
@policies
def test_nobody_sees_the_observations_of_the_other(policy: str, extractor: dict[str, Any]) -> None:
    model, seen = made(policy, policy_kwargs=extractor), observed(1)
    outputs, values = computed(model, seen)
    for key, (changes_actor, changes_critic) in {"sensors": (1, 0), "mass": (0, 1), "gear": (1, 1)}.items():
        other = {**seen, key: (seen[key] + 1) % 4 if key == "gear" else seen[key] + 0.1}
        new_outputs, new_values = computed(model, other)
        assert th.equal(new_outputs, outputs) != changes_actor, key
        assert th.equal(new_values, values) != changes_critic, key


@pytest.mark.parametrize(("name", "other"), [("actor_keys", "vf"), ("critic_keys", "pi")])
@policies
def test_without_keys_a_network_sees_everything(policy: str, name: str, other: str) -> None:
    policy_of_model = made(policy, keys={name: ["sensors"]}).policy
    extractors = {of: getattr(policy_of_model, f"{of}_features_extractor") for of in ("pi", "vf")}
    assert extractors.pop(other).features_dim == 6 + 5 + 4
    assert extractors.popitem()[1].features_dim == 6


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


WIDE = spaces.Dict({key: spaces.Box(-1, 1, (size,)) for key, size in {"a": 3, "b": 17, "c": 40}.items()})
# Keys, and the layers: also of more rows than a minibatch, and where the critic's features begin at any column.
DIVISIONS: dict[str, tuple[spaces.Dict, dict[str, list[str]], Any]] = {
    "both": (SPACE, KEYS, [8]),
    "disjoint": (WIDE, {"actor_keys": ["a"], "critic_keys": ["b"]}, [8]),
    "actor": (WIDE, {"actor_keys": ["a", "c"]}, {"pi": [8, 5], "vf": [16]}),
    "critic": (WIDE, {"critic_keys": ["b"]}, {"pi": [], "vf": [8]}),
    "linear critic": (WIDE, {"actor_keys": ["b"]}, {"pi": [8], "vf": []}),
}


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("n_envs", [1, 3, 150])
@pytest.mark.parametrize("name", ["both", "disjoint", "critic"])
@pytest.mark.filterwarnings("ignore:neither actor_keys nor critic_keys")
def test_rollouts_are_those_of_the_policy(name: str, n_envs: int) -> None:
    space, keys, layers = DIVISIONS[name]
    env = noise_envs(BOX, space, n_envs)
    model = rolled_out(env, fast=True, policy_kwargs={**keys, "net_arch": layers})
    for batch in model.rollout_buffer.get():
        with th.no_grad():
            values, log_prob, _ = model.policy.evaluate_actions(batch.observations, batch.actions)
        th.testing.assert_close(batch.old_values, values.flatten(), rtol=1e-5, atol=1e-5)
        th.testing.assert_close(batch.old_log_prob, log_prob, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_separate_updates_train_each_network_on_its_observations(fast: bool) -> None:
    model = collect(made(updates=SeparateUpdates(policy_epochs=2, value_epochs=3), fast=fast))
    (of_policy,), (of_value,) = model.policy.optimizer.param_groups, model.value_optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.policy.named_parameters()}
    assert all("value_net" in names[id(parameter)] for parameter in of_value["params"])
    assert not any("value_net" in names[id(parameter)] for parameter in of_policy["params"])
    other = update(model, not fast)
    for ours, theirs in zip(update(model, fast).policy.parameters(), other.policy.parameters(), strict=True):
        th.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_without_keys_the_policy_is_sb3s() -> None:
    models = [small(cls, noise_envs(BOX, SPACE)) for cls in (PPO, PPOClip)]
    assert type(models[0].policy) is type(models[1].policy)
    assert networks.Features(models[1].policy).first_of_critic == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"critic_keys": ["gear", "speed"]}, "no observation 'speed'; the environment has 'gear', 'mass', 'sen"),
    "empty": ({"actor_keys": []}, r"\['actor_keys'\]=\[\] is not allowed; allowed: a list of at least one key"),
    "string": ({"actor_keys": "gear"}, r"\['actor_keys'\]='gear' is not allowed; allowed: a list"),
    "None": ({"critic_keys": None}, r"\['critic_keys'\]=None is not allowed; allowed: a list"),
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
    with pytest.raises(ArgumentError, match="shared_lstm=True does not go with actor_keys"):
        small(PPOClip, ragged_envs(space=SPACE), "MultiInputLstmPolicy", policy_kwargs=kwargs)


@pytest.mark.parametrize("policy", ["MlpPolicy", "MaskableMlpPolicy"])
def test_other_policies_have_no_keys(policy: str) -> None:
    with pytest.raises(ArgumentError, match=r"\['critic_keys'\] needs Dict observations and one of"):
        small(PPOClip, noise_envs(BOX), policy, policy_kwargs={"critic_keys": ["mass"]})
    with pytest.raises(ArgumentError, match="needs Dict observations"):
        small(PPOClip, noise_envs(BOX), "MultiInputPolicy", policy_kwargs=KEYS)


def test_observations_that_nobody_sees_are_named() -> None:
    with pytest.warns(UserWarning, match="neither actor_keys nor critic_keys has 'mass', so the policy does not use"):
        made(keys={"actor_keys": ["gear"], "critic_keys": ["gear", "sensors"]})
