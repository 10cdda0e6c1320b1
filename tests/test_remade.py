"""Callbacks may give a policy's tensors any shape, type and layout: what SB3 would then do happens, or raises as there.

`make test-native` runs all of these tests with sanitizers, which report any access outside the memory of a tensor.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from masked_envs import small_masked
from recurrence import small_recurrent
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from helpers import ACTION_SPACES, BOX, VECTOR, assert_same_policy, noise_envs, small
from sb3_ppo_variants import PPOClip, PPOFixedKL
from sb3_ppo_variants.backends.choice import choose

# With sanitizers, the slow tests of this file run too.
pytestmark = pytest.mark.remade

N_STEPS = 8
QUICK, ALL = 24, 400
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
# Its features are multiplied by oneDNN.
LARGE_IMAGE = spaces.Box(0, 255, (1, 84, 84), np.uint8)

Change = Callable[[Any], object]


class At(BaseCallback):
    """Changes the model at an event of training: ``"training_start"``, ``"rollout_start"``, ``"step"``, ..."""

    def __init__(self, event: str, change: Change, call: int = 1):
        super().__init__()
        self.left, self.change = call, change
        setattr(self, f"_on_{event}", self._count)

    def _count(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.change(self.model)
        return True

    def _on_step(self) -> bool:
        return True


def model_of(cls: Any, env: Any, policy: str = "MlpPolicy", **arguments: Any) -> Any:
    arguments = {"n_steps": N_STEPS, "batch_size": 8, "n_epochs": 2, "seed": 0, "device": "cpu", **arguments}
    return cls(policy, env, **arguments)


def outcome(model: Any, callback: BaseCallback) -> type[BaseException] | None:
    """Train, and return the type of the error that this raises."""
    try:
        model.learn(3 * N_STEPS * model.n_envs, callback=callback)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
        return type(error)
    return None


# Tensors in place of others.


def shaped(*shape: int) -> Callable[[th.Tensor], th.Tensor]:
    return lambda tensor: th.zeros(*shape)


def unaligned(tensor: th.Tensor) -> th.Tensor:
    """Copy a tensor to an address that no number of its type usually has."""
    memory = bytearray(1) + tensor.contiguous().numpy().tobytes()
    return th.frombuffer(memory, dtype=tensor.dtype, offset=1).reshape(tensor.shape)


def apart(tensor: th.Tensor) -> th.Tensor:
    """Copy a tensor with gaps between its numbers."""
    return th.stack([tensor, tensor], dim=-1)[..., 0]


REPLACED: dict[str, Callable[[th.Tensor], th.Tensor]] = {
    "copy": th.clone,
    "shared": lambda tensor: tensor.clone().share_memory_(),
    "longer": lambda tensor: th.cat([tensor, tensor[:1]]),
    "much longer": lambda tensor: tensor.repeat(5000, *[1] * (tensor.ndim - 1)),
    "wider": lambda tensor: th.cat([tensor, tensor], dim=-1),
    "much wider": lambda tensor: tensor.repeat(*[1] * (tensor.ndim - 1), 3000),
    "shorter": lambda tensor: tensor[:1],
    "narrower": lambda tensor: tensor[..., :1],
    "one": lambda tensor: tensor.flatten()[:1],
    "none": lambda tensor: tensor[:0],
    "scalar": th.sum,
    "flat": th.flatten,
    "transposed": lambda tensor: tensor.mT if tensor.ndim > 1 else tensor[None].mT,
    "copied and transposed": lambda tensor: (tensor.mT if tensor.ndim > 1 else tensor[None].mT).contiguous(),
    "repeated": lambda tensor: tensor[:1].expand_as(tensor),
    "apart": apart,
    "unaligned": unaligned,
    "double": th.Tensor.double,
    "half": th.Tensor.half,
    "bfloat16": th.Tensor.bfloat16,
    "as bytes": lambda tensor: tensor.contiguous().view(th.uint8),
}


def in_place(how: str, names: list[str]) -> Change:
    """Return a change of the data of some parameters."""

    def change(model: Any) -> None:
        for name in names:
            parameter = model.policy.get_parameter(name)
            parameter.data = REPLACED[how](parameter.data)

    return change


def new_parameters(how: str, names: list[str]) -> Change:
    """Return a change that puts other parameters in the place of some."""

    def change(model: Any) -> None:
        for name in names:
            *path, own = name.split(".")
            old = model.policy.get_parameter(name)
            setattr(model.policy.get_submodule(".".join(path)), own, nn.Parameter(REPLACED[how](old.data)))

    return change


def test_more_outputs_in_the_middle_of_a_rollout() -> None:
    """The case that ended in a segmentation fault: many more outputs, and a bias and deviations to match."""
    for outputs in (3, 5000):

        def more(model: Any, outputs: int = outputs) -> None:
            policy = model.policy
            policy.action_net.weight.data = th.zeros(outputs, 64)
            policy.action_net.bias.data, policy.log_std.data = th.zeros(outputs), th.zeros(outputs)

        for cls in (PPO, PPOClip):
            with pytest.raises(ValueError, match=r"cannot reshape array of size|could not broadcast"):
                model_of(cls, noise_envs(BOX)).learn(4 * N_STEPS, callback=At("step", more, 5))


def test_more_inputs_in_the_middle_of_a_rollout() -> None:
    change: Change = lambda model: setattr(  # noqa: E731
        model.policy.mlp_extractor.policy_net[0].weight, "data", th.zeros(64, 100_000)
    )
    for cls in (PPO, PPOClip):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            model_of(cls, noise_envs(BOX)).learn(4 * N_STEPS, callback=At("step", change, 5))


@pytest.mark.usefixtures("natively")
def test_a_bias_of_one_number_is_broadcast() -> None:
    one = in_place("one", ["action_net.bias"])
    for cls, fast in ((PPO, {}), (PPOClip, {"fast": "auto"})):
        model = model_of(cls, noise_envs(BOX), **fast)
        # SB3 broadcasts the bias in the rollout, and cannot update the moments of its former shape.
        assert outcome(model, At("step", one, 5)) is outcome(model_of(PPO, noise_envs(BOX)), At("step", one, 5))
        assert model.num_timesteps >= N_STEPS


class Values(At):
    """Computes at the end of the first rollout which values the policy would have given to its observations."""

    found: Any = None

    def _on_rollout_end(self) -> None:
        if self.found is None:
            model: Any = self.model
            buffer = model.rollout_buffer
            with th.no_grad():
                values = model.policy.predict_values(th.as_tensor(buffer.observations).flatten(0, 1))
            self.found, self.wanted = buffer.values.copy(), values.numpy().reshape(N_STEPS, -1)


def other_critic(model: Any) -> None:
    model.policy.value_net = nn.Linear(64, 1)


def other_width(model: Any) -> None:
    extractor = model.policy.mlp_extractor
    extractor.value_net = nn.Sequential(nn.Linear(3, 7), nn.Tanh())
    model.policy.value_net = nn.Linear(7, 1)


REMADE: dict[str, Change] = {
    "module": other_critic,
    "modules": other_width,
    "parameter": new_parameters("copied and transposed", ["mlp_extractor.value_net.2.weight"]),
    "transposed": in_place("transposed", ["mlp_extractor.value_net.2.weight"]),
    "repeated": in_place("repeated", ["mlp_extractor.value_net.2.weight"]),
    "apart": in_place("apart", ["mlp_extractor.value_net.0.weight"]),
    "unaligned": in_place("unaligned", ["mlp_extractor.value_net.0.bias"]),
    "narrower": in_place("one", ["mlp_extractor.value_net.2.bias"]),
}


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("name", REMADE)
def test_the_next_step_uses_the_remade_policy(name: str, use_sde: bool) -> None:
    model = model_of(PPOClip, noise_envs(BOX), use_sde=use_sde)
    for parameter in model.policy.mlp_extractor.parameters():
        parameter.data.add_(0.1)  # The biases are zero at first.
    assert choose(model._plan(), "auto").backend.path == "fast"
    callback = Values("step", REMADE[name], 4)
    outcome(model, callback)
    # The change followed the fourth step, and so did the value of the first state of the fifth step.
    np.testing.assert_allclose(callback.found[4:], callback.wanted[4:], rtol=1e-5, atol=1e-6)
    assert name in ("apart", "unaligned", "narrower") or not np.allclose(
        callback.found[:4], callback.wanted[:4], atol=1e-4
    )


def seven(critic: nn.Linear) -> nn.Linear:
    """Return a critic with the same inputs for which every state has the value 7."""
    made = nn.Linear(critic.in_features, 1)
    nn.init.zeros_(made.weight)
    nn.init.constant_(made.bias, 7.0)
    return made


def replace_critic(model: Any) -> None:
    model.policy.value_net = seven(model.policy.value_net)


def replace_policy(model: Any) -> None:
    policy = deepcopy(model.policy)
    policy.value_net = seven(policy.value_net)
    model.policy = policy


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("fast", [False, "auto"])
@pytest.mark.parametrize("change", [replace_critic, replace_policy])
@pytest.mark.parametrize(
    ("policy", "space", "networks"),
    [
        ("MlpPolicy", VECTOR, {}),
        ("MlpLstmPolicy", VECTOR, {"lstm_hidden_size": 4}),
        ("MlpLstmPolicy", VECTOR, {"lstm_hidden_size": 4, "memory": "gru"}),
        ("CnnPolicy", LARGE_IMAGE, {}),
        ("CnnPolicy", LARGE_IMAGE, {"share_features_extractor": False}),
    ],
    ids=str,
)
def test_all_paths_see_what_replaces_a_critic(
    policy: str, space: Any, networks: Any, change: Change, fast: Any
) -> None:
    model = model_of(PPOClip, noise_envs(BOX, space), policy, policy_kwargs=networks, fast=fast)
    found: list[np.ndarray] = []
    keep = At("rollout_end", lambda model: found.append(model.rollout_buffer.values == 7))
    model.learn(2 * N_STEPS, callback=[At("step", change, 4), keep])
    assert found[0][4:].all()
    assert not found[0][:4].any()


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize(
    ("cls", "policy", "space", "module"),
    [
        (PPO, "MlpPolicy", VECTOR, "action_net"),
        (PPO, "CnnPolicy", LARGE_IMAGE, "features_extractor.cnn.0"),
        (RecurrentPPO, "MlpLstmPolicy", VECTOR, "value_net"),
        (RecurrentPPO, "MlpLstmPolicy", VECTOR, "lstm_actor"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", [False, True])
def test_hooks_and_methods_are_called_from_the_next_step_on(
    cls: Any, policy: str, space: Any, module: str, method: bool
) -> None:
    calls: list[Any] = []  # The models whose modules are called, and None at the end of each rollout.

    def hook(model: Any) -> None:
        found = model.policy.get_submodule(module)
        before = found.forward

        def forward(*given: Any) -> Any:
            calls.append(model)
            return before(*given)

        if method:
            found.forward = forward
        else:
            found.register_forward_hook(lambda *_: calls.append(model))

    sb3s, ours = (model_of(each, noise_envs(BOX, space), policy) for each in (cls, PPOClip))
    for model in (sb3s, ours):
        end = At("rollout_end", lambda _: calls.append(None))
        model.learn(2 * N_STEPS, callback=[At("step", hook, 4), end])
    first, second = (calls.index(model) for model in (sb3s, ours))
    assert calls.index(None, first) - first == calls.index(None, second) - second > 3


@pytest.mark.usefixtures("natively")
def test_parameters_that_moved_before_a_time_limit_are_found_after_it() -> None:
    left: list[th.Tensor] = []  # It stays in memory, for a fast path that would still read it.

    def move(model: Any) -> None:
        weight = model.policy.value_net.weight
        left.append(weight.data)
        weight.data = unaligned(weight.data)
        left[0].fill_(100.0)

    model = model_of(PPOClip, noise_envs(BOX))
    callback = Values("step", move, 7)  # All episodes have seven steps.
    outcome(model, callback)
    np.testing.assert_allclose(callback.found, callback.wanted, rtol=1e-5, atol=1e-6)


def other_policy(model: Any) -> None:
    replacement = deepcopy(model.policy)
    for parameter in replacement.parameters():
        parameter.data.add_(0.1)
    model.policy = replacement


@pytest.mark.parametrize("call", [4, 16])  # The last one is at the end of a rollout.
@pytest.mark.parametrize("name", ["plain", "masks", "memory"])
def test_another_policy_trains_as_with_sb3(name: str, call: int) -> None:
    makers: dict[str, Any] = {
        "plain": lambda ours: small(PPOClip, fast=False) if ours else small(PPO),
        "masks": lambda ours: small_masked(fast=False) if ours else small_masked(MaskablePPO, policy="MlpPolicy"),
        "memory": lambda ours: small_recurrent(PPOClip, fast=False) if ours else small_recurrent(RecurrentPPO),
    }
    models = []
    for ours in (True, False):
        model = makers[name](ours)
        models.append(model.learn(32 * model.n_envs, At("step", other_policy, call)))
    assert_same_policy(*models)


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_the_kl_sees_the_distributions_of_both_actors(space: str) -> None:
    """Without a learning rate, the policy stays as it is, whichever actor has acted."""
    model = model_of(PPOFixedKL, noise_envs(ACTION_SPACES[space]), learning_rate=0.0)
    same = new_parameters("copy", ["action_net.weight"])
    model.learn(2 * N_STEPS, callback=At("step", same, 4))
    assert len(model.old_policy.parameters[0]) == 2 * N_STEPS
    assert model.logger.name_to_value["train/kl"] == pytest.approx(0, abs=1e-6)


# The same at random, compared with SB3.

EVENTS = ["training_start", "rollout_start", "step", "rollout_end"]


def drawn(seed: int) -> tuple[Change, BaseCallback, dict[str, Any]]:
    """Draw a change, a callback that makes it at some event, and the arguments of :func:`model_of`."""
    rng = np.random.default_rng(seed)
    event = EVENTS[seed % len(EVENTS)]
    call = int(rng.integers(1, {"training_start": 2, "step": 2 * N_STEPS}.get(event, 3)))
    space = ACTION_SPACES[rng.choice([*ACTION_SPACES])]
    env = noise_envs(space, VECTOR, int(rng.integers(1, 4)))
    use_sde = bool(rng.integers(3) == 0) and isinstance(space, spaces.Box)
    arguments: dict[str, Any] = {
        "env": env,
        "policy_kwargs": {"net_arch": rng.choice([3, 8], 2).tolist()},
        "use_sde": use_sde,
    }
    names = [name for name, _ in model_of(PPO, **arguments).policy.named_parameters()]
    how = str(rng.choice([*REPLACED]))
    some = rng.choice(names, rng.integers(1, 3), replace=False).tolist()
    change = (in_place, new_parameters)[rng.integers(2)](how, some)
    return change, At(event, change, call), arguments


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, ALL))]
)
def test_any_change_ends_as_with_sb3(seed: int) -> None:
    ended = []
    for cls in (PPO, PPOClip):
        _, callback, arguments = drawn(seed)
        ended.append(outcome(model_of(cls, **arguments), callback))
    assert (ended[0] is None) == (ended[1] is None), ended


def moments(how: str) -> Change:
    """Return a change of Adam's moments of a parameter."""

    def change(model: Any) -> None:
        state = model.policy.optimizer.state[model.policy.get_parameter("value_net.weight")]
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = REPLACED[how](state[name])

    return change


def buffered(how: str, name: str) -> Change:
    """Return a change of an array of the rollout buffer."""

    def change(model: Any) -> None:
        array = getattr(model.rollout_buffer, name)
        tensor = REPLACED[how](th.as_tensor(array))
        setattr(model.rollout_buffer, name, tensor.float().numpy() if tensor.dtype == th.bfloat16 else tensor.numpy())

    return change


def normalised(how: str, name: str) -> Change:
    """Return a change of an array of the statistics of a ``VecNormalize``."""

    def change(model: Any) -> None:
        statistics = model.env.obs_rms
        setattr(statistics, name, REPLACED[how](th.as_tensor(getattr(statistics, name))).numpy())

    return change


def convolved(how: str, name: str) -> Change:
    return in_place(how, [f"features_extractor.cnn.{name}"])


def strided(model: Any) -> None:
    model.policy.features_extractor.cnn[0].stride = (2, 2)


NORMAL = ["copy", "longer", "much wider", "narrower", "one", "none", "double", "half", "unaligned", "apart", "flat"]
EVERY = [pytest.param(how, marks=() if how in ("much wider", "one") else pytest.mark.slow) for how in REPLACED]


@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", EVERY)
def test_moments_in_place_of_others_end_as_with_sb3(how: str) -> None:
    ended = [outcome(model_of(cls, noise_envs(BOX)), At("rollout_start", moments(how), 2)) for cls in (PPO, PPOClip)]
    assert (ended[0] is None) == (ended[1] is None), ended


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["observations", "actions", "values", "log_probs", "advantages", "returns"])
@pytest.mark.parametrize("how", EVERY)
def test_columns_in_place_of_others_end_as_on_the_reference_path(how: str, name: str) -> None:
    ended = []
    for fast in (False, "auto"):
        model = model_of(PPOFixedKL, noise_envs(BOX), fast=fast)
        ended.append(outcome(model, At("rollout_end", buffered(how, name))))
    assert (ended[0] is None) == (ended[1] is None), ended


@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mean", "var"])
@pytest.mark.parametrize("how", [*(pytest.param(how, marks=pytest.mark.slow) for how in NORMAL[1:]), NORMAL[0]])
@pytest.mark.parametrize("event", ["step", "rollout_start"])
def test_statistics_in_place_of_others_end_as_with_sb3(event: str, how: str, name: str) -> None:
    ended, found = [], []
    for cls in (PPO, PPOClip):
        env = VecNormalize(noise_envs(BOX))
        ended.append(outcome(model_of(cls, env), At(event, normalised(how, name), 2)))
        statistics: Any = env.obs_rms
        found.append((statistics.mean, statistics.var, statistics.count))
    assert (ended[0] is None) == (ended[1] is None), ended
    if ended[0] is None:
        for sb3s, ours in zip(*found, strict=True):
            assert np.shape(sb3s) == np.shape(ours)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("natively")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("event", ["step", "rollout_end", "rollout_start"])
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "4.bias"])
@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how == "one" else pytest.mark.slow) for how in REPLACED])
def test_convolutions_in_place_of_others_end_as_with_sb3(how: str, name: str, event: str) -> None:
    if (how, event) == ("repeated", "step") and "weight" in name:
        pytest.skip("the filters are laid out anew after the rollout, and then no longer overlap")
    ended = []
    for cls in (PPO, PPOClip):
        model = model_of(cls, noise_envs(BOX, IMAGE, 1), "CnnPolicy", n_steps=4, batch_size=4, n_epochs=1)
        ended.append(outcome(model, At(event, convolved(how, name), 2)))
    assert (ended[0] is None) == (ended[1] is None), ended


@pytest.mark.usefixtures("natively")
def test_other_strides_end_as_with_sb3() -> None:
    for cls in (PPO, PPOClip):
        model = model_of(cls, noise_envs(BOX, IMAGE, 1), "CnnPolicy", n_steps=4, batch_size=4)
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            model.learn(8, callback=At("step", strided, 2))
