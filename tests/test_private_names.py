"""What the package uses of other libraries without a public name still exists and does the same.

Each test names the function that uses it. If one fails with a new version of a library, this function has to change.
"""

import inspect
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.common.vec_env.patch_gym import _patch_env
from stable_baselines3.common.vec_env.subproc_vec_env import _worker
from torch import nn
from torch.nn import functional

from helpers import ACTION_SPACES, BOX, VECTOR, NoiseEnv, assert_same_weights, noise_envs, save, small
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.distributions import StateGaussianDistribution
from sb3_ppo_variants.engines import recognised, sequences, views


def make() -> gym.Env:
    return NoiseEnv(BOX)


class Pipe:
    """Sends commands to a worker in the same process, and collects its answers."""

    def __init__(self, *commands: Any):
        self.commands = [*commands]
        self.answers: list[Any] = []

    def recv(self) -> Any:
        if not self.commands:
            raise EOFError
        return self.commands.pop(0)

    def send(self, answer: Any) -> None:
        self.answers.append(answer)

    def close(self) -> None:
        pass


def test_worker_of_sb3() -> None:
    """``check_answers`` reads the answers of a reset and a step."""
    pipe: Any = Pipe(("reset", (3, {})), ("step", np.zeros(2)), ("env_method", ("get_wrapper_attr", ("spec",), {})))
    _worker(pipe, Pipe(), CloudpickleWrapper(make))  # type: ignore[arg-type]
    reset, step, spec = pipe.answers
    assert [len(reset), len(step), spec] == [2, 5, None]
    assert [type(value) for value in step[1:4]] == [float, bool, dict]


def test_patch_env_of_sb3() -> None:
    """``SafeSubprocVecEnv`` checks the outputs of the environment that it returns."""
    env = make()
    assert _patch_env(env) is env


def test_seeds_and_options_of_sb3() -> None:
    """``DummySteps.reset`` passes them on, and ``pending_seeds`` reads the seeds."""
    env = noise_envs(BOX)
    env.seed(5)
    env.set_options({"easy": True})
    assert (env._seeds, env._options) == ([5, 6], [{"easy": True}] * 2)
    env._reset_seeds()
    env._reset_options()
    assert (env._seeds, env._options) == ([None] * 2, [{}] * 2)


@pytest.mark.parametrize("name", ["_save_obs", "_obs_from_buf"])
def test_storage_of_sb3(name: str) -> None:
    """``DummySteps`` leaves environments alone that override these."""
    assert callable(getattr(DummyVecEnv, name))


def test_state_of_gymnasium() -> None:
    """``GymnasiumVecEnv`` sets it after an interrupt, so that the next command is accepted."""
    env: Any = AsyncVectorEnv([make] * 2, context="fork")
    assert env._state == AsyncState.DEFAULT
    env.reset_async()
    assert env._state == AsyncState.WAITING_RESET
    env.reset_wait()
    assert env._state == AsyncState.DEFAULT
    env.close()


def test_infos_of_gymnasium() -> None:
    """``collect_info`` takes the place of this method, which vector environments call for each environment in turn."""
    assert list(inspect.signature(SyncVectorEnv._add_info).parameters) == [
        "self",
        "vector_infos",
        "env_info",
        "env_num",
    ]
    env: Any = SyncVectorEnv([make] * 2)
    seen: list[int] = []

    def add(infos: Any, info: Any, i: int) -> Any:
        seen.append(i)
        return {**infos, i: info}

    env._add_info = add
    assert list(env.reset()[1]) == seen == [0, 1]


def test_key_of_the_statistics_of_gymnasium() -> None:
    """Where episodes are reset in the same step, the statistics are moved to the info of the episode that ended."""
    assert RecordEpisodeStatistics(SyncVectorEnv([make]), stats_key="mine")._stats_key == "mine"


@pytest.mark.skipif(not (th.backends.mkl.is_available() and th.backends.mkldnn.is_available()), reason="of both")
def test_products_of_onednn_in_pytorch() -> None:
    """``engines.views.multiply`` calls ``torch.ops.mkldnn._linear_pointwise``."""
    rows, weight, bias = th.randn(3, 5), th.randn(4, 5), th.randn(4)
    th.testing.assert_close(views.multiply(rows, weight, bias), functional.linear(rows, weight, bias))


def test_children_of_modules_in_pytorch() -> None:
    """``engines.views.make_view`` gives a copied module other ``_modules``."""
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    view = views.make_view(module, **{"1": nn.ReLU()})
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


def test_where_the_fused_kernel_counts_steps() -> None:
    """``engines.sequences.fuse_adam`` moves the counts to where PyTorch loads those of a fused Adam."""
    weight = nn.Parameter(th.ones(3, device="meta"))
    fused, other = (th.optim.Adam([weight]) for _ in range(2))
    state = {"step": th.tensor(5.0), "exp_avg": th.zeros(3), "exp_avg_sq": th.zeros(3)}  # As a file has it.
    other.load_state_dict({**other.state_dict(), "state": {0: state}})
    fused.load_state_dict(
        {"state": {0: state}, "param_groups": [{**fused.state_dict()["param_groups"][0], "fused": True}]}
    )
    assert other.state[weight]["step"].device != fused.state[weight]["step"].device
    with sequences.fuse_adam(other):
        assert other.state[weight]["step"].device == fused.state[weight]["step"].device


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


@pytest.mark.parametrize("policy", [ActorCriticPolicy, "maskable", "recurrent"])
def test_how_policies_create_their_networks(policy: Any) -> None:
    """``policies.asymmetric.Asymmetric`` overrides both methods; the first call creates the extractor of the actor."""
    if isinstance(policy, str):
        contrib = pytest.importorskip(f"sb3_contrib.common.{policy}.policies")
        policy = vars(contrib)[f"{policy.capitalize()}ActorCriticPolicy"]
    made: list[Any] = []

    class Watched(policy):
        def make_features_extractor(self) -> Any:
            made.append(super().make_features_extractor())
            return made[-1]

        def _build_mlp_extractor(self) -> None:
            assert [self.pi_features_extractor, self.vf_features_extractor] == made
            super()._build_mlp_extractor()
            made.append(self.mlp_extractor)

    watched = Watched(BOX, ACTION_SPACES["Discrete"], lambda _: 1e-3, share_features_extractor=False)
    assert watched.mlp_extractor is made[2]
    assert [made[2].latent_dim_pi, made[2].latent_dim_vf] == [64, 64]


def test_hooks_of_pytorch() -> None:
    """``engines.recognised.check_modules`` finds hooks by these names."""
    hooked: list[Any] = [nn.Linear(1, 1) for _ in range(4)]
    hooked[0].register_forward_hook(lambda *_: None)
    hooked[1].register_forward_pre_hook(lambda *_: None)
    hooked[2].register_full_backward_hook(lambda *_: None)
    hooked[3].register_full_backward_pre_hook(lambda *_: None)
    recognised.check_modules([nn.Linear(1, 1)])
    for module in hooked:
        with pytest.raises(recognised.ObstacleError, match="hooks"):
            recognised.check_modules([module])


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
    th.testing.assert_close([*model.policy.parameters()], [*wanted.policy.parameters()], rtol=0, atol=0)
    assert_same_weights(PPOClip.load(save(model)), wanted)


def test_building_of_sb3s_policies() -> None:
    """``ActionHead._build`` replaces the distribution, whose layer and parameter, or ``None``, SB3 then asks for."""
    made = StateGaussianDistribution(2)
    unbuilt = ActorCriticPolicy._build

    class Built(ActorCriticPolicy):
        def _build(self, lr_schedule: Any) -> None:
            self.action_dist, self._squash_output = made, True
            unbuilt(self, lr_schedule)

    policy = Built(VECTOR, BOX, lambda _: 1e-3)
    assert policy.squash_output and policy.log_std is None
    assert policy.action_net.out_features == 4 and "log_std" not in dict(policy.named_parameters())
    assert policy.get_distribution(th.zeros(1, 3)) is made
    assert policy._get_constructor_parameters()["log_std_init"] == 0.0
