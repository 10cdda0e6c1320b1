"""Random bytes in saved files: either loading names the damage, or the model is the one that was saved."""

import io
from functools import cache
from typing import Any

import pytest
import torch as th
from forging import NOTE, unzip, zip_members
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from masked_envs import masked_envs
from models import state_of

from helpers import ACTION_SPACES, BOX, noise_envs, save
from sb3_ppo_variants import DamagedFileError, PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped, SeparateUpdates

CLASSES: list[Any] = [PPOClip, PPOAdaptiveKL, PPOFixedKL, PPOUnclipped]


KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "plain": ("MlpPolicy", noise_envs(BOX), {}),
    "separate updates": ("MlpPolicy", noise_envs(BOX), {"updates": SeparateUpdates()}),
    "gSDE": ("MlpPolicy", noise_envs(BOX), {"use_sde": True}),
    "masks": ("MaskableMlpPolicy", masked_envs(ACTION_SPACES["Discrete"], n_envs=2), {}),
    "LSTM": ("MlpLstmPolicy", noise_envs(BOX), {}),
}
MODELS = st.tuples(st.sampled_from(CLASSES), st.sampled_from([*KINDS]))


@cache
def saved(cls: Any, kind: str) -> bytes:
    policy, env, arguments = KINDS[kind]
    network = {"net_arch": [4], **({"lstm_hidden_size": 4} if kind == "LSTM" else {})}
    model = cls(policy, env, n_steps=8, batch_size=8, policy_kwargs=network, seed=0, device="cpu", **arguments)
    file = save(model.learn(16))
    return file.getvalue()


def loaded(cls: Any, content: bytes, weights_only: bool) -> Any:
    return cls.load(io.BytesIO(content), device="cpu", weights_only=weights_only)


def assert_whole(model_of: tuple[Any, str], content: bytes, weights_only: bool) -> None:
    """Assert that the file is refused with the name of a part, or that the model is unchanged."""
    cls, kind = model_of
    expected = state_of(loaded(cls, saved(cls, kind), weights_only))
    try:
        model = loaded(cls, content, weights_only)
    except DamagedFileError as error:
        assert error.part and error.fault
        return
    got = state_of(model)
    assert {key: got[key] for key in ("updates", "kl_coef")} == {key: expected[key] for key in ("updates", "kl_coef")}
    th.testing.assert_close(got["policy"], expected["policy"], rtol=0, atol=0)
    for ours, theirs in zip(got["optimizers"], expected["optimizers"], strict=True):
        th.testing.assert_close(ours["state"], theirs["state"], rtol=0, atol=0)
        assert ours["param_groups"] == theirs["param_groups"]


POSITIONS = st.floats(0, 1, exclude_max=True)
# For each change: its position as a fraction of the length, the number of bytes to replace, and the new bytes.
CHANGES = st.lists(st.tuples(POSITIONS, st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4)


def changed(content: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for position, length, new in changes:
        start = int(position * len(content))
        content = content[:start] + new + content[start + length :]
    return content


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=15, endless=100)
@given(model=MODELS, changes=CHANGES, weights_only=st.booleans())
def test_bytes_of_a_file(model: Any, changes: list[tuple[float, int, bytes]], weights_only: bool) -> None:
    assert_whole(model, changed(saved(*model), changes), weights_only)


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=15, endless=100)
@given(model=MODELS, data=st.data(), changes=CHANGES, weights_only=st.booleans())
def test_bytes_of_a_member(model: Any, data: st.DataObject, changes: Any, weights_only: bool) -> None:
    """The archive's checksums are correct, so only this package's hashes can detect the change."""
    members = unzip(io.BytesIO(saved(*model)))
    name = data.draw(st.sampled_from(sorted(members.keys() - {NOTE})))
    members[name] = changed(members[name], changes)
    assert_whole(model, zip_members(members).getvalue(), weights_only)
