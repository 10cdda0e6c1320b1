"""A stranger's file is refused if its rollouts would take more than 4 GiB, with the masks and states of its policy."""

from typing import Any

import numpy as np
import pytest
from forging import load, unzip, with_values
from gymnasium import spaces

from helpers import noise_envs, save
from sb3_ppo_variants import DamagedFileError, PPOClip

pytest.importorskip("sb3_contrib")

VECTOR = spaces.Box(-1, 1, (4,))
TWO = spaces.Dict({"both": VECTOR, "critic": spaces.Box(0, 255, (5,), np.uint8)})
THREE = spaces.Discrete(3)
HYBRID = spaces.Dict({"force": spaces.Box(-1, 1, (2,)), "kind": THREE})
SMALL_LSTM = {"lstm_hidden_size": 8}
LAYERS = {"lstm_hidden_size": 8, "n_lstm_layers": 2}
GRU = {"lstm_hidden_size": 8, "memory": "gru"}
ASYMMETRIC = {**SMALL_LSTM, "actor_keys": ["both"]}
# Policies, observations, actions and arguments, with the bytes that a step takes: those of six numbers such as the
# reward, observations, actions (of Discrete and MultiDiscrete, eight each), masks and the four states of LSTMs.
STEPS: dict[str, tuple[str, spaces.Space, spaces.Space, dict[str, Any], int]] = {
    "discrete actions": ("MlpPolicy", VECTOR, THREE, {}, 24 + 4 * 4 + 8),
    "continuous actions": ("MlpPolicy", VECTOR, spaces.Box(-1, 1, (2,)), {}, 24 + 4 * 4 + 2 * 4),
    "dictionaries": ("MultiInputPolicy", TWO, THREE, {}, 24 + 4 * 4 + 5 + 8),
    "masks": ("MaskableMlpPolicy", VECTOR, spaces.Discrete(1000), {}, 24 + 4 * 4 + 8 + 1000 * 4),
    "several masks": ("MaskableMlpPolicy", VECTOR, spaces.MultiDiscrete([2, 3]), {}, 24 + 4 * 4 + 2 * 8 + 5 * 4),
    "masks of bits": ("MaskableMlpPolicy", VECTOR, spaces.MultiBinary(3), {}, 24 + 4 * 4 + 3 + 6 * 4),
    "masks of parts": ("MaskableMlpPolicy", VECTOR, HYBRID, {}, 24 + 4 * 4 + 3 * 4 + 3 * 4),
    "an LSTM": ("MlpLstmPolicy", VECTOR, THREE, {}, 24 + 4 * 4 + 8 + 4 * 256 * 4),
    "layers": ("MlpLstmPolicy", VECTOR, THREE, LAYERS, 24 + 4 * 4 + 8 + 4 * 2 * 8 * 4),
    "a GRU": ("MlpLstmPolicy", VECTOR, THREE, GRU, 24 + 4 * 4 + 8 + 4 * 8 * 4),
    "an asymmetric critic": ("MultiInputLstmPolicy", TWO, THREE, ASYMMETRIC, 24 + 4 * 4 + 5 + 8 + 4 * 8 * 4),
    "masks and an LSTM": ("MaskableMlpLstmPolicy", VECTOR, THREE, SMALL_LSTM, 24 + 4 * 4 + 8 + 3 * 4 + 4 * 8 * 4),
}


def arrays_in(buffer: Any) -> list[np.ndarray]:
    values = [
        part for value in vars(buffer).values() for part in (value.values() if isinstance(value, dict) else [value])
    ]
    return [value for value in values if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("case", STEPS)
def test_the_largest_rollout(case: str) -> None:
    policy, observations, actions, arguments, n_bytes = STEPS[case]
    env = noise_envs(actions, observations, n_envs=2)
    model: Any = PPOClip(policy, env, n_steps=16, batch_size=16, policy_kwargs=arguments, device="cpu")
    assert sum(array.nbytes for array in arrays_in(model.rollout_buffer)) == 16 * 2 * n_bytes
    file = unzip(save(model))
    assert load(with_values(file, n_steps=32), PPOClip).n_steps == 32
    n_steps = 2**32 // (2 * n_bytes) + 1
    with pytest.raises(DamagedFileError, match=f"n_steps is {n_steps} for 2 environments, .* would take 4.0 GiB"):
        load(with_values(file, n_steps=n_steps), PPOClip)


def test_masks_of_more_bits_than_a_list_can_hold() -> None:
    model: Any = PPOClip("MaskableMlpPolicy", noise_envs(spaces.MultiBinary(3), VECTOR), n_steps=16, batch_size=16)
    file = with_values(unzip(save(model)), action_space=spaces.MultiBinary(10**8), n_steps=1, n_envs=1)
    with pytest.raises(DamagedFileError, match="action_space has 100000000 dimensions, more than the policy has bytes"):
        load(file, PPOClip)
