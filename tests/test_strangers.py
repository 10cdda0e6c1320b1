"""A file from a stranger can only set a model's own attributes, and loading it cannot take excessive resources."""

import bz2
import io
import json
import multiprocessing
import resource
import zipfile
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from forged_states import STATES, as_zeros
from forging import NOTE, OPTIMIZER, change_state, load, members, seal, with_optimizer, with_values, zip_members
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.utils import LinearSchedule

from helpers import BOX, named, noise_envs
from sb3_ppo_variants import DamagedFileError, PPOAdaptiveKL, PPOClip

GIB = 2**30
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)


def test_places_and_methods_are_not_the_files_to_choose(tmp_path: Path) -> None:
    place = tmp_path / "logs"
    file = with_values(members(), tensorboard_log=str(place), learn=1, rules={}, reads_sb3s_ppo=True, unheard_of=2)
    model = load(file, env=noise_envs(BOX))
    assert model.rules is PPOAdaptiveKL.rules
    assert {"learn", "rules", "reads_sb3s_ppo", "unheard_of"}.isdisjoint(vars(model))
    assert model.tensorboard_log is None
    model.learn(32)
    assert not place.exists()
    assert load(file, tensorboard_log=str(place)).tensorboard_log == str(place)


def test_what_a_model_keeps_of_its_training_is_taken() -> None:
    model = load(seal(members()))
    assert (model.num_timesteps, model._n_updates, model.n_steps) == (64, 2, 16)


VALUES: dict[str, Any] = {
    "kl_coef": -1.0,
    "desired_kl": float("nan"),
    "gamma": 10**400,
    "n_steps": 10**12,
    "batch_size": 0,
    "n_envs": 10**12,
    "num_timesteps": "many",
    "_n_updates": -1,
    "_stats_window_size": 0,
    "_current_progress_remaining": None,
    "action_noise": 1,
    "ep_info_buffer": [1],
    "ep_success_buffer": 3,
    "fast": np.zeros(3),
    "clip_range_vf": np.float32(-2.0),
    "policy_kwargs": None,
    "rollout_buffer_kwargs": {"hidden": 1},
    "observation_space": 5,
    "learning_rate": LinearSchedule("a", 1, 1.0),  # type: ignore[arg-type]
    "clip_range": LinearSchedule(-1.0, 1.0, 1.0),
    "use_sde": "no",
    "updates": 4,
}


@pytest.mark.parametrize("name", VALUES)
def test_the_rules_of_the_constructor_hold(name: str) -> None:
    with pytest.raises(DamagedFileError) as caught:
        load(with_values(members(), **{name: VALUES[name]}))
    assert caught.value.part == ("n_steps" if name == "n_envs" else name)
    assert caught.value.file == "BytesIO"


@pytest.mark.parametrize("name", ["kl_coef", "gamma", "batch_size", "action_noise"])
def test_the_rules_of_the_constructor_hold_for_files_that_are_unpickled(name: str) -> None:
    data = {**json.loads(members()["data"]), name: VALUES[name]}
    with pytest.raises(DamagedFileError, match=f"BytesIO: {name} is .*, but must be"):
        PPOAdaptiveKL.load(seal({**members(), "data": json.dumps(data).encode()}))


ITEMS: list[Any] = [{"r": None, "l": 1}, {"r": 1.0}, {"r": "1", "l": 1}, {"r": np.zeros(2), "l": 1}, "one"]


@pytest.mark.parametrize("item", ITEMS, ids=named)
@pytest.mark.parametrize("name", ["ep_info_buffer", "ep_success_buffer"])
def test_episodes_without_numbers(name: str, item: Any) -> None:
    with pytest.raises(DamagedFileError, match=f"{name} is "):
        load(with_values(members(), **{name: deque([item])}))


@pytest.mark.parametrize("name", ["ep_info_buffer", "ep_success_buffer"])
def test_half_of_the_statistics_begins_anew(name: str) -> None:
    model = load(with_values(members(), **{name: None}), env=noise_envs(BOX))
    model.learn(32, reset_num_timesteps=False)
    assert len(model.ep_info_buffer) == 0


def test_statistics_that_environments_report_as_arrays() -> None:
    episodes = deque([{"r": np.ones(1, np.float32), "l": np.array([3]), "t": np.float64(1.0)}], maxlen=100)
    model = load(with_values(members(), ep_info_buffer=episodes, ep_success_buffer=deque([np.bool_(True), 0.0])))
    assert (len(model.ep_info_buffer), len(model.ep_success_buffer)) == (1, 2)


def test_what_is_given_is_taken_in_the_place_of_what_is_wrong() -> None:
    file = with_values(members(), n_steps=10**12, kl_coef=-1.0)
    model = load(file, n_steps=8, custom_objects={"kl_coef": 2.0})
    assert (model.n_steps, model.kl_coef) == (8, 2.0)


KWARGS: dict[str, Any] = {
    "no such argument": {"hidden": 1},
    "an activation that needs arguments": {"activation_fn": th.nn.MultiheadAttention},
    "eps": {"optimizer_kwargs": {"eps": -1}},
    "betas": {"optimizer_kwargs": {"betas": (2, 2)}},
    "an optimizer that needs a closure": {"optimizer_class": th.optim.LBFGS},
    "sizes": {"net_arch": [0]},
    "a spread": {"log_std_init": float("inf")},
}


@pytest.mark.parametrize("case", KWARGS)
def test_odd_arguments_of_the_policy(case: str) -> None:
    with pytest.raises(DamagedFileError, match=r"BytesIO: (policy_kwargs|the model|policy.optimizer) "):
        load(with_values(members(), policy_kwargs=KWARGS[case]))


def test_variables_that_would_be_set_besides() -> None:
    file = seal(
        change_state(members(), "pytorch_variables.pth", lambda state: state.update({"policy.log_std": th.ones(9)}))
    )
    with pytest.raises(DamagedFileError, match=r"pytorch_variables has policy\.log_std; PPO has none"):
        load(file)


def test_weights_without_numbers() -> None:
    file = seal(change_state(members(), "policy.pth", lambda state: state.update(log_std=th.empty(2, device="meta"))))
    with pytest.raises(DamagedFileError, match="policy has a log_std without numbers"):
        PPOAdaptiveKL.load(file)
    with pytest.raises(DamagedFileError, match=r"policy contains torch\._utils\._rebuild_meta_tensor_no_storage"):
        load(file)


def with_repeated(member: str, number: float, times: int) -> io.BytesIO:
    """Return a file in which a tensor of any size takes the place of a single number."""
    repeated = th.tensor([number]).expand(times)

    def change(state: Any) -> None:
        if member == OPTIMIZER:
            state["state"][0]["exp_avg"] = repeated
        else:
            state["log_std"] = repeated

    return seal(change_state(members(), member, change))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("member", "fault"), [("policy.pth", r"log_std of shape \(5,\)"), (OPTIMIZER, "exp_avg that does not hold real")]
)
def test_tensors_that_repeat_a_number_are_not_read(member: str, fault: str) -> None:
    with pytest.raises(DamagedFileError, match=fault):  # Otherwise NaN would be noticed first.
        load(with_repeated(member, float("nan"), 5))


def compressed_as(file: io.BytesIO, method: int, size: int = 2**27) -> io.BytesIO:
    """Return the file with an extra member of 128 MiB of zeros, whose header states a size."""
    packer: Any = bz2.BZ2Compressor() if method == zipfile.ZIP_BZIP2 else zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(2**24)
    packed = b"".join(packer.compress(zeros) for _ in range(8)) + packer.flush()
    info = zipfile.ZipInfo("more")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(info, packed)
        info.compress_type, info.file_size = method, size
    return file


def with_option(value: Any) -> io.BytesIO:
    return seal(change_state(members(), OPTIMIZER, lambda state: state["param_groups"][0].update(betas=value)))


def with_json(values: str) -> io.BytesIO:
    """Return a compressed file with more values among its attributes."""
    data = members(PPO)["data"].decode().strip().removesuffix("}") + f', "more": {values}}}'
    return zip_members({**members(PPO), "data": data.encode()}, zipfile.ZIP_DEFLATED)


def as_file(make: Callable[[], bytes]) -> io.BytesIO:
    return with_optimizer(make())


SIZES: dict[str, Callable[[], io.BytesIO]] = {
    "bzip2": lambda: compressed_as(seal(members(PPO)), zipfile.ZIP_BZIP2),
    "deflate": lambda: compressed_as(seal(members(PPO)), zipfile.ZIP_DEFLATED),
    "a header that lies": lambda: compressed_as(seal(members(PPO)), zipfile.ZIP_DEFLATED, size=1000),
    "bzip2 and a header that lies": lambda: compressed_as(seal(members(PPO)), zipfile.ZIP_BZIP2, size=1000),
    "wide layers": lambda: with_values(members(), policy_kwargs={"net_arch": [30_000, 30_000]}),
    "wider layers": lambda: with_values(members(), policy_kwargs={"net_arch": [10**7, 10**7]}),
    "many layers": lambda: with_values(members(), policy_kwargs={"net_arch": [1] * 100_000}),
    "observations": lambda: with_values(members(), observation_space=spaces.Discrete(50_000_000)),
    "actions": lambda: with_values(members(), action_space=spaces.Discrete(50_000_000)),
    "bits": lambda: with_values(members(), action_space=spaces.MultiBinary(10**9)),
    "a long rollout": lambda: with_values(members(), n_steps=10**12),
    "many environments": lambda: with_values(members(), n_envs=10**10),
    "a repeated weight": lambda: with_repeated("policy.pth", 0.0, 2**26),
    "a repeated moment": lambda: with_repeated(OPTIMIZER, 0.0, 2**26),
    "a large extractor": lambda: with_values(
        members(),
        observation_space=IMAGE,
        policy_kwargs={"features_extractor_class": NatureCNN, "features_extractor_kwargs": {"features_dim": 10**8}},
    ),
    **{case: partial(as_file, make) for case, make in STATES.items()},
    "a repeated option": lambda: with_option((th.zeros(1).expand(GIB // 4), 0.9)),
    "an option of repeated text": lambda: with_option([float("nan"), ("x" * 1000,) * 300_000]),
    "a state of zeros": lambda: zip_members({**members(PPO), OPTIMIZER: as_zeros()}, zipfile.ZIP_DEFLATED),
    "many values": lambda: with_json(f"[{','.join(['[]'] * 10**7)}]"),
    "a long text": lambda: with_json(f'"{"x" * 60 * 2**20}\U0001f600"'),
}


def most_memory(case: str, answers: Any) -> None:
    file = SIZES[case]()
    # Use PyTorch first, because its code counts as memory of a forked process from the first use on.
    load(seal(members()))
    NatureCNN(IMAGE, 8)(th.zeros(1, *IMAGE.shape))
    before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        load(file, PPOAdaptiveKL if NOTE in zipfile.ZipFile(file).namelist() else PPOClip)
        answers.put("loaded")
    except DamagedFileError as error:
        after = resource.getrusage(resource.RUSAGE_SELF)
        answers.put((len(file.getvalue()), str(error)[:100], (after.ru_maxrss - before.ru_maxrss) * 1024))
    except BaseException as error:
        answers.put(repr(error))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", SIZES)
def test_what_a_file_can_cost(case: str) -> None:
    members(), members(PPO)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    process = fork.Process(target=most_memory, args=(case, answers))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    size, error, memory = answers.get()
    assert error.startswith("BytesIO: ")
    assert size < 4 * 2**20
    assert memory < GIB / 10


def test_tensors_that_are_compressed() -> None:
    repacked = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(members()["policy.pth"])) as whole, zipfile.ZipFile(repacked, "w") as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name), zipfile.ZIP_DEFLATED)
    changed = {**members(), "policy.pth": repacked.getvalue()}
    PPOAdaptiveKL.load(seal(changed))  # PyTorch itself accepts compressed members, at any ratio.
    with pytest.raises(DamagedFileError, match="policy is compressed"):
        load(seal(changed))


def test_a_rollout_that_does_not_fit_is_named_in_files_that_are_unpickled_too() -> None:
    data = {**json.loads(members()["data"]), "n_steps": 10**12}
    with pytest.raises(DamagedFileError, match="BytesIO: the model does not fit into memory"):
        PPOAdaptiveKL.load(seal({**members(), "data": json.dumps(data).encode()}))


def test_a_file_that_was_zipped_again_loads() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members().items():
            archive.writestr(name, content)
    assert load(file).num_timesteps == 64


def test_many_observations_load() -> None:
    """SB3 saves the last observations with a model, which are not read."""
    observations = {":type:": "<class 'numpy.ndarray'>", ":serialized:": "A" * 17 * 2**20}
    data = {**json.loads(members()["data"]), "_last_obs": observations}
    assert load(seal({**members(), "data": json.dumps(data).encode()})).num_timesteps == 64


def test_the_largest_rollout_depends_on_the_environments_that_there_are() -> None:
    file = with_values(members(), n_steps=10**7)
    assert load(file).n_steps == 10**7
    with pytest.raises(
        DamagedFileError, match=r"n_steps is 10000000 for 100 environments, .* load\(..., n_steps=...\)"
    ):
        load(file, env=noise_envs(BOX, n_envs=100))


def test_another_thread_may_build_what_it_wants() -> None:
    from threading import Thread

    from sb3_ppo_variants.saving.archive import read_archive
    from sb3_ppo_variants.saving.reading import limit_networks

    built: list[th.nn.Module] = []
    with limit_networks(read_archive(seal(members()))):
        thread = Thread(target=lambda: built.append(th.nn.Linear(3000, 3000)))
        thread.start()
        thread.join()
        with pytest.raises(DamagedFileError, match="policy is smaller than the network"):
            th.nn.Linear(3000, 3000)
    assert len(built) == 1
