"""A worked example of each part that can be added. The page about the architecture shows them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from scipy.integrate import quad
from stable_baselines3 import PPO
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from helpers import ACTION_SPACES, BOX, LogRecorder, flat_weights, noise_envs
from sb3_ppo_variants import Batch, Objective, PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, register_kl
from sb3_ppo_variants.engines import choice
from sb3_ppo_variants.engines.choice import Reference
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.engines.reference import TorchUpdate
from sb3_ppo_variants.limits import EarlyStop
from sb3_ppo_variants.policies.kind import Evaluated, PolicyKind, register_kind
from sb3_ppo_variants.rollout import Samples
from sb3_ppo_variants.update import Descent, DescentResult, JointUpdates, Trained, UpdatePlan

SETTINGS: dict[str, Any] = dict(n_steps=16, batch_size=8, n_epochs=2, seed=0)


# An objective: its loss.


# [objective]
@dataclass(frozen=True)
class Squared(Objective):
    """r A - c (r - 1)^2, which pulls every ratio back to 1."""

    c: float

    def loss(self, batch: Batch) -> th.Tensor:
        return -(batch.ratio * batch.advantages - self.c * (batch.ratio - 1) ** 2).mean()

    def coefficients(self) -> dict[str, float]:
        return {"c": self.c}


# [end]


def test_an_objective() -> None:
    # r A = 3 and -0.5, minus 2 (r - 1)^2 = 0.5 and 0.5: 2.5 and -1, with the mean 0.75.
    batch = Batch(th.tensor([1.5, 0.5]), th.tensor([2.0, -1.0]))
    assert Squared(2.0).loss(batch).item() == pytest.approx(-0.75)
    env, log = noise_envs(BOX), LogRecorder()
    PPOCustom("MlpPolicy", env, objective=Squared(2.0), **SETTINGS).learn(32, log)
    assert log.updates[-1]["train/c"] == 2.0


# A distribution: an SB3 distribution, a policy that uses it, and its KL.


# [distribution]
class Laplace(DiagGaussianDistribution):
    """Draws each action dimension from a Laplace distribution instead of a Gaussian."""

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor) -> "Laplace":
        self.distribution: Any = th.distributions.Laplace(mean_actions, log_std.exp().expand_as(mean_actions))
        return self

    def mode(self) -> th.Tensor:
        return self.distribution.mean


class LaplacePolicy(ActorCriticPolicy):
    """SB3's policy with this distribution."""

    def _build(self, lr_schedule: Any) -> None:
        self.action_dist = Laplace(self.action_space.shape[0])  # type: ignore[index]
        super()._build(lr_schedule)


def laplace_parameters(distribution: Laplace) -> tuple[th.Tensor, ...]:
    return distribution.distribution.loc, distribution.distribution.scale


def laplace_kl(old: tuple[th.Tensor, ...], new: tuple[th.Tensor, ...]) -> th.Tensor:
    """KL(old || new), summed over action dimensions."""
    (old_loc, old_scale), (loc, scale) = old, new
    distance = (old_loc - loc).abs()
    kl = (scale / old_scale).log() + (old_scale * (-distance / old_scale).exp() + distance) / scale - 1
    return kl.sum(dim=1)


register_kl(Laplace, laplace_parameters, laplace_kl)
# [end]


def test_a_distribution() -> None:
    old, new = (th.tensor([[0.3]]), th.tensor([[0.5]])), (th.tensor([[-0.4]]), th.tensor([[0.8]]))
    p, q = (th.distributions.Laplace(*each) for each in (old, new))

    def integrand(x: float) -> float:
        at = th.tensor([[x]])
        return float(p.log_prob(at).exp() * (p.log_prob(at) - q.log_prob(at)))

    expected = quad(integrand, -10, 10, points=[-0.4, 0.3], limit=200)[0]
    assert laplace_kl(old, new).item() == pytest.approx(expected, rel=1e-4)
    log = LogRecorder()
    model = PPOAdaptiveKL(LaplacePolicy, noise_envs(BOX), **SETTINGS).learn(32, log)
    assert isinstance(model.policy.action_dist, Laplace) and log.updates[-1]["train/kl"] > 0


# A policy kind: how to call policies whose methods are not SB3's.


# [kind]
class AuxiliaryPolicy(ActorCriticPolicy):
    """Its ``evaluate_actions`` also returns the features, for losses of other algorithms."""

    def evaluate_actions(self, obs: Any, actions: th.Tensor) -> Any:
        return *super().evaluate_actions(obs, actions), self.extract_features(obs)


@register_kind
class Auxiliary(PolicyKind):
    """Ignores what such policies return in addition."""

    policies = (AuxiliaryPolicy,)

    def evaluate(self, samples: Samples) -> Evaluated:
        values, *others, _ = self.policy.evaluate_actions(samples.observations, samples.actions.long().flatten())
        return Evaluated(values.flatten(), *others)


# [end]


def test_a_policy_kind() -> None:
    model = PPOFixedKL(AuxiliaryPolicy, noise_envs(ACTION_SPACES["Discrete"]), kl_coef=0.0, **SETTINGS).learn(64)
    assert type(model.policy) is AuxiliaryPolicy
    plain = PPOFixedKL("MlpPolicy", noise_envs(ACTION_SPACES["Discrete"]), kl_coef=0.0, fast=False, **SETTINGS)
    assert th.equal(flat_weights(model), flat_weights(plain.learn(64)))


# An update: which descents it consists of.


# [update]
@dataclass(frozen=True)
class MoreValueEpochs(JointUpdates):
    """SB3's update, followed by further passes that only train the value function, with the same optimizer."""

    epochs: int

    def descents(self, model: Trained, stop: EarlyStop | None) -> list[Descent]:
        (joint,) = super().descents(model, stop)
        value = Descent(
            joint.optimizer, joint.parameters, joint.learning_rate, self.epochs, joint.max_grad_norm, of_policy=False
        )
        return [joint, value]


# [end]


def test_an_update() -> None:
    def trained(cls: Any, **arguments: Any) -> Any:
        return cls("MlpPolicy", noise_envs(BOX), **SETTINGS, **arguments).learn(32)

    theirs = trained(PPO)
    for samples in theirs.rollout_buffer.get(8):
        loss = theirs.vf_coef * th.nn.functional.mse_loss(
            samples.returns, theirs.policy.predict_values(samples.observations).flatten()
        )
        theirs.policy.optimizer.zero_grad()
        loss.backward()
        th.nn.utils.clip_grad_norm_(theirs.policy.parameters(), theirs.max_grad_norm)
        theirs.policy.optimizer.step()
    ours = trained(PPOClip, updates=MoreValueEpochs(1), fast=False)
    assert th.equal(flat_weights(ours), flat_weights(theirs))


# An engine: what it can compute, and how.


# [engine]
class ThreadedUpdate(TorchUpdate):
    """Takes the steps on all cores, whatever the number of threads that PyTorch was set to."""

    def descend(self, descent: Descent) -> DescentResult:
        before = th.get_num_threads()
        th.set_num_threads(4)
        try:
            return super().descend(descent)
        finally:
            th.set_num_threads(before)


class Threaded(Reference):
    """Updates large networks on all cores."""

    name, path, how = "threaded", "fast", "all cores compute"
    update = ThreadedUpdate

    def check(self, plan: UpdatePlan) -> None:
        size = sum(parameter.numel() for parameter in plan.parameters.values())
        if size < 2**16:
            raise ObstacleError(f"the policy has only {size} parameters")


# [end]


@pytest.mark.parametrize(("size", "expected"), [(256, "fast"), (8, "reference")])
def test_an_engine(size: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(choice, "ENGINES", (Threaded(), Reference()))
    before, threads, step = th.get_num_threads(), set(), th.optim.Adam.step

    def counted(self: Any) -> None:
        threads.add(th.get_num_threads())
        step(self)

    monkeypatch.setattr(th.optim.Adam, "step", counted)
    network = {"net_arch": [size, size]}
    PPOClip("MlpPolicy", noise_envs(BOX), policy_kwargs=network, verbose=1, **SETTINGS).learn(32)
    assert f"Training on the {expected} path" in capsys.readouterr().out
    assert threads == {4 if expected == "fast" else before} and th.get_num_threads() == before


# A vectorised environment: SB3's abstract methods over a batch.


# [environment]
class Walks(VecEnv):
    """Points on a line that are to come to 0, all moved by one operation; episodes of 8 steps."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs, spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(3))
        self._rng = np.random.default_rng(0)

    def reset(self) -> VecEnvObs:
        self._at = self._rng.normal(size=(self.num_envs, 1)).astype(np.float32)
        self._steps = 0
        return self._at.copy()

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        self._at += 0.1 * (self._actions[:, None] - 1).astype(np.float32)
        self._steps += 1
        observations, rewards, over = self._at.copy(), -np.abs(self._at[:, 0]), self._steps == 8
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if over:
            infos = [{"terminal_observation": at, "TimeLimit.truncated": True} for at in observations]
            observations = self.reset()  # type: ignore[assignment]
        return observations, rewards, np.full(self.num_envs, over), infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        raise AttributeError(f"a walk has no {attr_name}")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"a walk has no {attr_name}")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(f"a walk has no {method_name}")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


# [end]


def test_a_vectorised_environment() -> None:
    theirs = PPO("MlpPolicy", Walks(4), **SETTINGS).learn(128)
    assert th.equal(
        flat_weights(PPOClip("MlpPolicy", Walks(4), fast=False, **SETTINGS).learn(128)), flat_weights(theirs)
    )
