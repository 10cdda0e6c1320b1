"""Arguments that are set as attributes count when the table on the page about guarantees says, or raise an error."""

import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecMonitor

from helpers import BOX, flat_weights, noise_envs
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL
from sb3_ppo_variants.objectives import Clipped

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"
STEPS = 32
VALUES: dict[str, Any] = {"learning_rate": 0.01, "gamma": 0.5, "gae_lambda": 0.1}
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


def set_in_sb3(model: Any, name: str, value: Any) -> None:
    """Set an argument of SB3's PPO so that it takes effect."""
    setattr(model, name, value)
    if name == "learning_rate":
        model.lr_schedule = FloatSchedule(value)
    else:
        setattr(model.rollout_buffer, name, value)


@pytest.mark.parametrize("name", VALUES)
def test_a_new_value_counts_as_if_it_had_been_passed(name: str) -> None:
    theirs = make(PPO).learn(STEPS)
    set_in_sb3(theirs, name, VALUES[name])
    expected = flat_weights(theirs.learn(3 * STEPS, reset_num_timesteps=False))
    assert th.equal(trained(make(PPOClip), **{name: VALUES[name]}), expected)
