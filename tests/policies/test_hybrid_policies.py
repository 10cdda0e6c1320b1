"""Policies with Dict and Tuple actions: what environments get, updates, files, resumed runs, and what is refused."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecNormalize
from test_hybrid import same

from helpers import BOX, FORCE, KICK, NESTED, VECTOR, NoiseEnv, assert_same_policy, collect, noise_envs, small
from sb3_ppo_variants import ArgumentError, PPOAdaptiveKL, PPOClip, PPOFixedKL
from sb3_ppo_variants.envs import GymnasiumVecEnv, SafeSubprocVecEnv
from sb3_ppo_variants.policies.head import HybridActions

SPACES = {"Dict": KICK, "Tuple": NESTED}
ONLY_IF: Any = {"policy_kwargs": {"only_if": {"force": ["choice", [1, 2]]}, "entropy_weights": {"choice": 2.0}}}


class Picky(NoiseEnv):
    """Refuses actions that are not elements of its space, and rewards by the number of the choice."""

    taken: Any = None

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.taken = action
        return super().step(action["choice"] if isinstance(action, dict) else action[0])


def envs(space: spaces.Space, observations: spaces.Space = VECTOR, make: Callable[..., VecEnv] = DummyVecEnv) -> VecEnv:
    return make([lambda: Monitor(Picky(deepcopy(space), deepcopy(observations))) for _ in range(2)])


def test_predictions_are_modes() -> None:
    model = small(env=envs(KICK), policy_kwargs={"log_std_init": 1.0})
    with th.no_grad():
        model.policy.action_net.bias[:] = th.tensor([0.0, 0.5, 0.2, 0.25, 7.0])
    seen = np.zeros(3, np.float32)
    distribution = model.policy.get_distribution(th.zeros(1, 3))
    choice, force = (each.mode().detach().numpy()[0] for each in distribution.parts)
    wanted = {"choice": choice, "force": np.clip(force, FORCE.low, FORCE.high)}
    assert choice == 1 and force[1] > 3
    for predict in (model.predict, model.policy.predict):
        assert same(predict(seen, deterministic=True)[0], wanted)
        drawn = [predict(seen)[0] for _ in range(50)]
        assert all(map(KICK.contains, drawn)) and len({int(each["choice"]) for each in drawn}) == 3


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("distribution", ["gaussian", "beta"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_an_export_takes_any_number_of_observations(space: spaces.Space, distribution: str) -> None:
    model = small(env=envs(space), policy_kwargs={"distribution": distribution})
    model.policy.requires_grad_(False).set_training_mode(False)
    exported = th.jit.trace(lambda rows: model.policy._predict(rows, deterministic=True), th.zeros(1, 3))
    observations = th.from_numpy(np.random.default_rng(1).uniform(-1, 1, (5, 3)).astype(np.float32))
    wanted = th.cat([model.policy._predict(each[None], deterministic=True) for each in observations])
    th.testing.assert_close(exported(observations), wanted)


def test_a_normalized_environment() -> None:
    env = VecNormalize(VecFrameStack(envs(NESTED), 2))
    model = small(env=env).learn(64)
    assert np.isfinite(evaluate_policy(model, env, n_eval_episodes=2)[0]) and len(model.ep_info_buffer) > 0


@pytest.mark.parametrize("name", SPACES)
def test_environments_get_what_the_buffer_stores(name: str) -> None:
    env: Any = envs(SPACES[name])
    model = collect(small(env=env, policy_kwargs={"log_std_init": 2.0}))
    stored = model.rollout_buffer.actions[-1]
    taken = [each.unwrapped.taken for each in env.envs]
    assert all(map(same, model.policy.layout.for_envs(stored), taken))
    if name == "Dict":
        assert (np.abs(model.rollout_buffer.actions[..., 1:]) > 3).any()


PROCESSES: dict[str, Callable[..., VecEnv]] = {
    "SubprocVecEnv": partial(SubprocVecEnv, start_method="fork"),
    "SafeSubprocVecEnv": partial(SafeSubprocVecEnv, start_method="fork"),
    "GymnasiumVecEnv": lambda makers: GymnasiumVecEnv(VectorWrapper(SyncVectorEnv(makers))),
}


@pytest.mark.parametrize("kind", PROCESSES)
def test_vectorised_environments_give_the_same(kind: str) -> None:
    # Rewards in double precision, as SubprocVecEnv returns them, are rounded elsewhere on the native path.
    wanted = small(env=envs(KICK), fast=False).learn(64)
    env = envs(KICK, make=PROCESSES[kind])
    got = small(env=env, fast=False).learn(64)
    env.close()
    assert_same_policy(got, wanted)


EQUATIONS: dict[str, tuple[Any, dict[str, Any], Callable[..., th.Tensor]]] = {
    "fixed KL": (PPOFixedKL, {"kl_coef": 3.0}, lambda r, a, kl: r * a - 3 * kl),
    "clip": (PPOClip, {"clip_range": 0.1}, lambda r, a, kl: th.minimum(r * a, r.clip(0.9, 1.1) * a)),
}


def by_hand(policy: Any, observations: th.Tensor) -> tuple[Any, Any]:
    """Return PyTorch's distributions of the choice and the force."""
    latent, _ = policy.mlp_extractor(policy.extract_features(observations))
    outputs = policy.action_net(latent)
    return th.distributions.Categorical(logits=outputs[:, :3]), th.distributions.Normal(
        outputs[:, 3:], policy.log_std.exp()
    )


@pytest.mark.parametrize("options", [{}, ONLY_IF], ids=["all parts", "only if"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_the_update_is_the_equations(name: str, options: dict[str, Any]) -> None:
    cls, arguments, surrogate = EQUATIONS[name]
    model = collect(small(cls, envs(KICK), ent_coef=0.05, learning_rate=3e-3, **arguments, **options))
    policy, old, buffer = deepcopy(model.policy), deepcopy(model.policy), deepcopy(model.rollout_buffer)
    before, state = deepcopy(model.policy), np.random.get_state()
    for _ in range(model.n_epochs):
        for batch in buffer.get(model.batch_size):
            choice, force = by_hand(policy, batch.observations)
            with th.no_grad():
                old_choice, old_force = by_hand(old, batch.observations)
            taken = batch.actions[:, 0]
            # Without the option, the force always counts, and so do both entropies.
            counts, share, old_share, weight = 1.0, 1.0, 1.0, 1.0
            if options:
                counts, weight = (taken > 0).float(), 2.0
                share, old_share = (each.probs[:, 1:].sum(dim=1) for each in (choice, old_choice))
            log_prob = choice.log_prob(taken) + counts * force.log_prob(batch.actions[:, 1:]).sum(dim=1)
            entropy = weight * choice.entropy() + share * force.entropy().sum(dim=1)
            divergence = th.distributions.kl_divergence
            kl = divergence(old_choice, choice) + old_share * divergence(old_force, force).sum(dim=1)
            advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
            error = (policy.predict_values(batch.observations).flatten() - batch.returns).square().mean()
            gained = surrogate(th.exp(log_prob - batch.old_log_prob), advantages, kl).mean()
            loss = -gained - model.ent_coef * entropy.mean() + model.vf_coef * error
            policy.optimizer.zero_grad()
            loss.backward()
            th.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
    np.random.set_state(state)
    model.train()
    for new, wanted, was in zip(model.policy.parameters(), policy.parameters(), before.parameters(), strict=True):
        th.testing.assert_close(new, wanted, rtol=1e-4, atol=1e-6)
        assert (new - was).abs().max() > 1e-4


class Plain(ActorCriticPolicy):
    """A policy of a user."""


class Own(HybridActions, Plain):
    """The same, for actions that have several parts."""


def test_policies_of_the_user() -> None:
    with pytest.raises(ArgumentError, match=r"write class Mine\(HybridActions, Plain\) with HybridActions from"):
        small(policy=Plain, env=envs(KICK))
    model = small(policy=Own, env=envs(KICK)).learn(64)
    assert isinstance(model.policy, Own) and model.policy_class is Own
    assert KICK.contains(model.predict(np.zeros(3, np.float32))[0])


class Aim(gym.Env):
    """Choose 1 of 3 and aim at 0.6 for a reward of 1."""

    observation_space = VECTOR
    action_space = spaces.Dict({"choice": spaces.Discrete(3), "aim": spaces.Box(-1, 1, (1,))})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        reward = (action["choice"] == 1) - abs(action["aim"].item() - 0.6)
        return np.zeros(3, np.float32), float(reward), True, False, {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cls", [PPOClip, PPOAdaptiveKL])
def test_both_parts_are_learned(cls: Any) -> None:
    model = cls("MlpPolicy", Aim(), 3e-3, n_steps=256, batch_size=64, n_epochs=10, seed=0).learn(6_000)
    action, _ = model.predict(np.zeros(3, np.float32), deterministic=True)
    assert action["choice"] == 1 and action["aim"].item() == pytest.approx(0.6, abs=0.15)


def dict_of(**parts: spaces.Space) -> spaces.Dict:
    return spaces.Dict(parts)


TEXT = dict_of(words=spaces.Text(3), go=spaces.Discrete(2))
UNBOUNDED = dict_of(go=spaces.Tuple([spaces.Box(np.array([0, -np.inf]), np.array([1, np.inf]))]))
REFUSED: list[tuple[spaces.Space, dict[str, Any], str]] = [
    (TEXT, {}, r"env\.action_space\['words'\]=Text\(.* is not supported; supported are Box, .*, Dict, Tuple"),
    (UNBOUNDED, {}, r"env\.action_space\['go'\]\[0\]=Box.* has infinite bounds; .* dimensions 1 lack"),
    (dict_of(go=spaces.Box(0, 1, (0,))), {}, r"env\.action_space\['go'\]=Box.* has no actions"),
    (KICK, {"use_sde": True}, "use_sde=True needs a Box action space, but the environment has Dict"),
    (BOX, {"policy_kwargs": {"only_if": {}}}, r"\['only_if'\] needs a Dict or Tuple action space, .* Box"),
    (KICK, {"policy_kwargs": {"entropy_weights": {"kick": 1}}}, "names 'kick', but the parts .* are 'choice', 'force'"),
    (KICK, {"policy_kwargs": {"entropy_weights": {"force": np.nan}}}, r"\['force'\]=nan is not allowed; .* finite"),
    (KICK, {"policy_kwargs": {"only_if": {"force": 1}}}, r"\['only_if'\]\['force'\]=1 is not allowed; allowed: a dict"),
    (KICK, {"policy_kwargs": {"only_if": {"force": ("choice", 3)}}}, r"one or more values of 'choice': \[0, 1, 2\]"),
    (KICK, {"policy_kwargs": {"only_if": {"choice": ("force", 1)}}}, "needs a Discrete part, but 'force' is Box"),
    (KICK, {"policy_kwargs": {"only_if": {"choice": ("choice", 1)}}}, "which itself depends on another part"),
]


@pytest.mark.parametrize(("space", "arguments", "message"), REFUSED)
def test_what_does_not_fit_is_refused(space: spaces.Space, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small(env=noise_envs(space), **arguments)
