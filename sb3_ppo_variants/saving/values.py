"""The attributes of a saved model that SB3 pickles: how to read them, with and without unpickling."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from gymnasium import spaces
from stable_baselines3.common.save_util import json_to_data

from sb3_ppo_variants.errors import DamagedFileError, PickledValueError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.archive import NOTE, Archive

# What a model makes anew: observations at the reset that precedes training, the schedule from learning_rate.
MADE_ANEW = ("_last_obs", "_last_original_obs", "_last_episode_starts", "lr_schedule")
# Statistics of past episodes, without which a model starts new ones.
STATISTICS = ("ep_info_buffer", "ep_success_buffer")
# No attributes to set but parts of the model, which SB3 would make of what a file says.
PARTS = ("env", "device", "policy", "rollout_buffer", "_vec_normalize_env", "_logger", "_custom_logger")
# What to pass for a value that is refused.
EXAMPLES = {
    "policy_class": "'MlpPolicy'",
    "policy_kwargs": "{'net_arch': [64, 64]}",
    "rollout_buffer_class": "None",
    "learning_rate": "3e-4",
    "clip_range": "0.2",
    "clip_range_vf": "0.2",
}


def plain_forms(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The plain forms of those attributes that JSON lacks and that have one.

    :param attributes: the attributes of a model
    """
    forms = {}
    for name, value in attributes.items():
        if name in MADE_ANEW:
            continue
        try:
            form = plain.encode(value)
        except plain.NotPlainError:
            continue  # Refused by name when it is read.
        if not isinstance(value, spaces.Space) or plain.decode(form) == value:
            forms[name] = form
    return forms


def unpickle(archive: Archive, names: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unpickle attributes one by one.

    As in SB3, one whose class has changed since is left out with a warning.

    :param archive: the file
    :param names: which attributes
    :return: the attributes that are not pickled, and those that were
    :raises DamagedFileError: if one cannot be unpickled
    """
    values: dict[str, Any] = {}
    for name in names:
        try:
            values |= json_to_data(json.dumps({name: archive.data[name]}))
        except Exception as error:  # Whatever the code in a pickle raises.
            fault = f"cannot be unpickled: {error!r}; custom_objects={{{name!r}: ...}} would take its place"
            raise DamagedFileError(archive.name, name, fault) from error
    return _not_pickled(archive), values


def read_plain(archive: Archive, names: list[str], known: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read attributes without unpickling.

    :param archive: the file
    :param names: which attributes
    :param known: values for attributes that have no plain form in the file
    :return: the attributes that are not pickled, and those that were
    :raises PickledValueError: if there are attributes with neither, saying what to pass for each
    :raises DamagedFileError: if a plain form has no meaning
    """
    forms = archive.note.get("plain", {})
    if not isinstance(forms, dict):
        raise DamagedFileError(archive.name, NOTE, "has plain values without names")
    values: dict[str, Any] = {}
    refused = []
    for name in names:
        if name in forms:
            values[name] = _decoded(archive, name, forms[name])
        elif name in known:
            values[name] = known[name]
        elif name not in MADE_ANEW + STATISTICS + PARTS:
            refused.append(name)
    if refused:
        _refuse(archive, refused)
    return {name: value for name, value in _not_pickled(archive).items() if name not in PARTS}, values


def _not_pickled(archive: Archive) -> dict[str, Any]:
    return {name: value for name, value in archive.data.items() if name not in archive.pickled}


def _decoded(archive: Archive, name: str, form: Any) -> Any:
    try:
        return plain.decode(form)
    except (plain.NotPlainError, RecursionError) as error:
        raise DamagedFileError(archive.name, NOTE, f"has a {name} that cannot be read: {error}") from error


def _refuse(archive: Archive, names: list[str]) -> NoReturn:
    objects = ", ".join(f"{name!r}: {EXAMPLES.get(name, '...')}" for name in names)
    or_env = ", or env for the spaces" if any(name.endswith("_space") for name in names) else ""
    raise PickledValueError(
        f"{archive.name} holds pickled values, which weights_only=True does not unpickle: {', '.join(names)}. "
        f"Pass values of your own for them, such as custom_objects={{{objects}}}{or_env}"
    )
