"""What the package uses of other libraries without a public name still exists and does the same.

Each test names the function that uses it. If one fails with a new version of a library, this function has to change.
"""

import inspect
from functools import partial
from operator import is_, is_not
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from torch.nn import functional

from helpers import BOX, NoiseEnv, assert_same_weights, noise_envs, save, small
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.engines import images, recognised, sequences


def make() -> gym.Env:
    return NoiseEnv(BOX)


def test_seeds_and_options_of_sb3() -> None:
    """``DummySteps.reset`` passes them on, and ``pending_seeds`` reads the seeds."""
    env = noise_envs(BOX)
    env.seed(5)
    env.set_options({"easy": True})
    assert (env._seeds, env._options) == ([5, 6], [{"easy": True}] * 2)
    env._reset_seeds()
    env._reset_options()
    assert (env._seeds, env._options) == ([None] * 2, [{}] * 2)


def test_what_a_step_or_a_reset_replaces() -> None:
    """``collector.Turn`` compares them."""
    limit = TimeLimit(NoiseEnv(BOX), 10)
    env = DummyVecEnv([lambda: limit])

    def now() -> list[object]:
        return [env.actions, env._options, limit._elapsed_steps]

    env.reset()
    action = np.zeros((1, *(BOX.shape or ())))
    env.step(action.copy())
    before = now()
    assert all(map(is_, before, now()))
    env.step(action)
    stepped = now()
    env.reset()
    assert [*map(is_not, before, stepped)] == [True, False, True] and stepped[1] is not env._options


@pytest.mark.skipif(not (th.backends.mkl.is_available() and th.backends.mkldnn.is_available()), reason="of both")
def test_products_of_onednn_in_pytorch() -> None:
    """``engines.images.multiply`` calls ``torch.ops.mkldnn._linear_pointwise``."""
    rows, weight, bias = th.randn(3, 5), th.randn(4, 5), th.randn(4)
    th.testing.assert_close(images.multiply(rows, weight, bias), functional.linear(rows, weight, bias))


def test_children_of_modules_in_pytorch() -> None:
    """``engines.sequences.make_view`` gives a copied module other ``_modules``."""
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    view = sequences.make_view(module, **{"1": nn.ReLU()})
    rows = th.randn(4, 2)
    assert th.equal(view(rows), functional.relu(module[0](rows))) and th.equal(module(rows), module[0](rows).tanh())
    assert [*view.parameters()] == [*module.parameters()]


def test_the_fused_kernel_of_adam_in_pytorch() -> None:
    """``engines.sequences.fuse_adam`` sets ``fused`` in the group of parameters of an Adam that exists already."""

    def kernels() -> bool:
        with th.profiler.profile() as profile:
            optimizer.step()
        return any("fused_adam" in event.key for event in profile.key_averages())

    weight = nn.Parameter(th.ones(3))
    optimizer = th.optim.Adam([weight])
    weight.grad = th.ones(3)
    assert not kernels()
    with sequences.fuse_adam(optimizer):
        assert kernels()
    assert not kernels() and optimizer.param_groups[0]["fused"] is None


def test_sequences_of_sb3_contrib() -> None:
    """``engines.sequences`` replaces ``RecurrentActorCriticPolicy._process_sequence``."""
    policies = pytest.importorskip("sb3_contrib.common.recurrent.policies")
    cls = policies.RecurrentActorCriticPolicy
    assert all(hasattr(cls, name) for name in sequences.RELIED_ON)
    parameters = [*inspect.signature(cls._process_sequence).parameters]
    assert parameters == ["features", "lstm_states", "episode_starts", "lstm"]
    assert "self._process_sequence(" in inspect.getsource(cls.forward)
    # The function computes single steps as the method does; the second environment begins an episode.
    lstm, features, starts = nn.LSTM(3, 4, num_layers=2), th.randn(2, 3), th.tensor([0.0, 1.0])
    states = th.randn(2, 2, 4), th.randn(2, 2, 4)
    theirs, ours = (
        process(features, states, starts, lstm)
        for process in (cls._process_sequence, partial(sequences.process_by_cells, cls._process_sequence))
    )
    th.testing.assert_close(ours, theirs)


def test_methods_of_sb3s_policies() -> None:
    """``engines.recognised`` refuses policies that override one of these methods."""
    assert all(callable(getattr(ActorCriticPolicy, name, None)) for name in recognised.WRITTEN_OUT)


def test_steps_that_schedulers_of_pytorch_count() -> None:
    """``engines.native.engine`` allows an optimizer whose ``step`` a scheduler has replaced."""
    optimizer = th.optim.Adam([nn.Parameter(th.ones(1))])
    th.optim.lr_scheduler.StepLR(optimizer, 1)
    assert "step" in vars(optimizer) and hasattr(optimizer.step, "_wrapped_by_lr_sched")


@pytest.mark.parametrize("policy", ["MlpPolicy", "MaskableMlpPolicy", "MlpLstmPolicy"])
def test_policies_that_pytorch_compiles(policy: str) -> None:
    """``policies.kind.kind_of`` looks into what ``torch.compile`` wraps around a policy, as users of SB3 do."""
    env: Any = "CartPole-v1"
    if policy != "MlpPolicy":
        contrib = pytest.importorskip("sb3_contrib.common.envs")
        env = contrib.InvalidActionEnvDiscrete() if policy == "MaskableMlpPolicy" else env
    wanted = small(env=env, policy=policy, fast=False).learn(64)
    model = small(env=env, policy=policy, fast=False)
    model.policy = th.compile(model.policy, backend="eager")
    model.learn(64)
    part = small(env=env, policy=policy, fast=False)
    part.policy.mlp_extractor = th.compile(part.policy.mlp_extractor, backend="eager")
    for other in (model, part.learn(64)):
        th.testing.assert_close([*other.policy.parameters()], [*wanted.policy.parameters()], rtol=0, atol=0)
    assert_same_weights(PPOClip.load(save(model)), wanted)
