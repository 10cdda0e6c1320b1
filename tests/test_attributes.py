"""Arguments that are set as attributes count when the table on the page about guarantees says, or raise an error."""

import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecMonitor

from helpers import BOX, flat_weights, noise_envs
from sb3_ppo_variants import (
    ArgumentError,
    ExactKL,
    Huber,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    SeparateUpdates,
)
from sb3_ppo_variants.objectives import Clipped

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"
STEPS = 32
# A new value for each argument that changes what is learned, where one does.
VALUES: dict[str, Any] = {
    "learning_rate": 0.01,
    "gamma": 0.5,
    "gae_lambda": 0.1,
    "batch_size": 4,
    "n_epochs": 3,
    "ent_coef": 0.5,
    "vf_coef": 3.0,
    "max_grad_norm": 0.01,
    "target_kl": 1e-9,
    "normalize_advantage": False,
    "clip_range": 1e-6,
    "clip_range_vf": 1e-6,
    "kl_coef": 50.0,
    "desired_kl": 1e-9,
    "objective": Clipped(1e-6),
    "stop": ExactKL(0.0),
    "value_loss": Huber(1e-3),
    "updates": SeparateUpdates(),
    "sde_sample_freq": 1,
    "fast": False,
    "verbose": 1,
    "tensorboard_log": "logs",
    "data_parallel": False,
    "stats_window_size": 1,
    "seed": 7,
    "n_steps": 8,
    "policy_kwargs": {"net_arch": [8]},
    "rollout_buffer_class": type("OwnBuffer", (RolloutBuffer,), {}),
    "rollout_buffer_kwargs": {"gamma": 0.5},
    "use_sde": True,
    "device": th.device("meta"),
}
# These do not change the weights, which is tested elsewhere or below.
ELSEWHERE = {"fast", "verbose", "tensorboard_log", "data_parallel", "stats_window_size", "updates"}
OF_CLASS = {"kl_coef": PPOFixedKL, "desired_kl": PPOAdaptiveKL, "objective": PPOCustom}


def rows() -> dict[str, tuple[str, str]]:
    """Return what the page says of SB3 and of this package, by the name of the attribute."""
    table = re.search(r"\| attributes \| in SB3.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text())
    assert table is not None
    found: dict[str, tuple[str, str]] = {}
    for line in table[1].splitlines():
        names, theirs, ours = (cell.strip() for cell in line.split("|")[1:-1])
        found |= {name: (theirs, ours) for name in re.findall(r"`(\w+)`", names)}
    return found


def make(cls: Any, **arguments: Any) -> Any:
    own = {"objective": Clipped(0.2)} if cls is PPOCustom else {}
    fast = {} if cls is PPO else {"fast": False}
    env = VecMonitor(noise_envs(BOX))
    settings: dict[str, Any] = dict(n_steps=16, batch_size=8, n_epochs=2, ent_coef=0.01, seed=0)
    return cls("MlpPolicy", env, **settings, **own, **fast, **arguments)


def trained(model: Any, **attributes: Any) -> th.Tensor:
    """Return the weights after four rollouts; the attributes are set after the first."""
    model.learn(STEPS)
    for name, value in attributes.items():
        setattr(model, name, value)
    model.learn(3 * STEPS, reset_num_timesteps=False)
    return flat_weights(model)


def test_the_table_names_every_argument() -> None:
    arguments = {name for cls in (PPOClip, *OF_CLASS.values()) for name in signature(cls).parameters}
    assert rows().keys() == arguments - {"policy", "env", "_init_setup_model"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", rows())
def test_here(name: str) -> None:
    cls = OF_CLASS.get(name, PPOClip)
    explores: dict[str, Any] = {"use_sde": True} if name == "sde_sample_freq" else {}
    says = rows()[name][1]
    if says.startswith("an error"):
        with pytest.raises(ArgumentError, match=f"^{name}="):
            trained(make(cls), **{name: VALUES[name]})
    elif name not in ELSEWHERE:
        set_later, never_set = trained(make(cls, **explores), **{name: VALUES[name]}), trained(make(cls, **explores))
        assert not th.equal(set_later, never_set)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in rows() if rows()[name][0]])
def test_in_sb3(name: str) -> None:
    says, value = rows()[name][0], VALUES[name]
    explores: dict[str, Any] = {"use_sde": True} if name == "sde_sample_freq" else {}
    if name in ELSEWHERE - {"stats_window_size"} or "or ignored" in says:
        return
    if "`TypeError`" in says or "`AssertionError`" in says:
        with pytest.raises((TypeError, AssertionError)):
            trained(make(PPO), **{name: value})
        return
    changes = not th.equal(trained(make(PPO, **explores), **{name: value}), trained(make(PPO, **explores)))
    assert changes == (not says.startswith("ignored"))


def set_in_sb3(model: Any, name: str, value: Any) -> None:
    """Set an argument of SB3's PPO so that it takes effect."""
    setattr(model, name, value)
    if name == "learning_rate":
        model.lr_schedule = FloatSchedule(value)
    else:
        setattr(model.rollout_buffer, name, value)


@pytest.mark.parametrize("name", ["learning_rate", "gamma", "gae_lambda"])
def test_a_new_value_counts_as_if_it_had_been_passed(name: str) -> None:
    theirs = make(PPO).learn(STEPS)
    set_in_sb3(theirs, name, VALUES[name])
    expected = flat_weights(theirs.learn(3 * STEPS, reset_num_timesteps=False))
    assert th.equal(trained(make(PPOClip), **{name: VALUES[name]}), expected)


def test_gamma_of_a_rollout_under_way_stays() -> None:
    """A callback that sets it after the first step of the second rollout counts from the third on."""
    calls = 0

    def callback(found: Any, _: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 17:
            found["self"].gamma = 0.5
        return True

    ours = make(PPOClip).learn(4 * STEPS, callback)
    theirs = make(PPO).learn(2 * STEPS)
    set_in_sb3(theirs, "gamma", 0.5)
    theirs.learn(2 * STEPS, reset_num_timesteps=False)
    pairs = zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True)
    assert all(th.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("set_first", [True, False])
def test_the_window_of_the_statistics(set_first: bool) -> None:
    model = make(PPOClip)
    if not set_first:
        model.learn(2 * STEPS)
    model.stats_window_size = 3
    model.learn(4 * STEPS)
    assert model.ep_info_buffer.maxlen == 3 and len(model.ep_info_buffer) == 3
    assert not hasattr(PPO, "stats_window_size")
    with pytest.raises(ArgumentError, match=r"^stats_window_size=0 is not allowed"):
        model.stats_window_size = 0


def test_a_dict_that_changes_in_place() -> None:
    model = make(PPOClip, policy_kwargs={"net_arch": [4]})
    model.policy_kwargs["net_arch"] = [8]
    with pytest.raises(ArgumentError, match=r"^policy_kwargs="):
        model.learn(STEPS)


@pytest.mark.parametrize("name", ["learning_rate", "gamma", "gae_lambda"])
def test_load_passes_new_values(name: str, tmp_path: Path) -> None:
    make(PPOClip).save(tmp_path / "model")
    loaded = PPOClip.load(tmp_path / "model", noise_envs(BOX), **{name: VALUES[name]})
    found = loaded.lr_schedule(0.5) if name == "learning_rate" else getattr(loaded.rollout_buffer, name)
    assert found == VALUES[name]


def test_a_device_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="^device='cuda:1' is not available: training on device='cpu' instead"):
        assert make(PPOClip, device="cuda:1").device == th.device("cpu")
