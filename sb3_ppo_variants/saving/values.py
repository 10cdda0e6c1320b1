"""Reads the attributes of a saved model that SB3 pickles, with or without unpickling."""

import json
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from gymnasium import spaces
from stable_baselines3.common.save_util import json_to_data

from sb3_ppo_variants.errors import DamagedFileError, PickledValueError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.archive import MASKABLE, NOTE, Archive

# A model recreates these: observations at the reset before training, the schedule from learning_rate.
MADE_ANEW = ("_last_obs", "_last_original_obs", "_last_episode_starts", "lr_schedule")
# Statistics of past episodes; without them a model starts new ones.
STATISTICS = ("ep_info_buffer", "ep_success_buffer")
# Parts of the model, which SB3 would replace with values from a file.
PARTS = ("env", "device", "policy", "rollout_buffer", "_vec_normalize_env", "_logger", "_custom_logger")
# Examples of values to pass instead of pickled ones.
EXAMPLES = {
    "policy_class": "'MlpPolicy'",
    "policy_kwargs": "{'net_arch': [64, 64]}",
    "rollout_buffer_class": "None",
    "learning_rate": "3e-4",
    "clip_range": "0.2",
    "clip_range_vf": "0.2",
}
# The same for the policies of sb3-contrib, by the module of their classes.
POLICIES = {
    MASKABLE: "'MaskableMlpPolicy'",
    "sb3_contrib.common.recurrent.policies": "'MlpLstmPolicy'",
}


def plain_forms(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain forms of all attributes of a model that have one."""
    plain_ones = {name: value for name, value in attributes.items() if name not in MADE_ANEW and plain.is_plain(value)}
    forms = {name: plain.encode(value) for name, value in plain_ones.items()}
    for name, value in plain_ones.items():
        if isinstance(value, spaces.Space) and plain.decode(forms[name]) != value:
            del forms[name]  # The plain form does not capture the whole space.
    return forms


def read_attributes(
    archive: Archive,
    custom_objects: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
    ignored: Collection[str] = (),
) -> dict[str, Any]:
    """Read the attributes in a file.

    :param custom_objects: values that replace those in the file
    :param known: ``None`` to unpickle. Otherwise nothing is unpickled, and these values are used for attributes without
        a plain form in the file
    :param ignored: pickled attributes that are not read
    :raises DamagedFileError: if an attribute cannot be read
    :raises PickledValueError: if an attribute must not be unpickled and is not in ``known``, saying what to pass for it
    """
    names = [name for name in archive.pickled if name not in custom_objects and name not in ignored]
    values = _unpickled(archive, names) if known is None else _read_plain(archive, names, known)
    return {**values, **{name: value for name, value in custom_objects.items() if name in archive.data}}


def _unpickled(archive: Archive, names: list[str]) -> dict[str, Any]:
    """Unpickle attributes. As in SB3, those whose class has changed since are left out with a warning."""
    values = archive.not_pickled
    for name in names:
        try:
            values |= json_to_data(json.dumps({name: archive.data[name]}))
        except Exception as error:  # The code in a pickle may raise anything.
            fault = f"cannot be unpickled: {error!r}; pass custom_objects={{{name!r}: ...}} to replace it"
            raise DamagedFileError(archive.name, name, fault) from error
    return values


def _read_plain(archive: Archive, names: list[str], known: Mapping[str, Any]) -> dict[str, Any]:
    forms = archive.note.get("plain", {})
    if not isinstance(forms, dict):
        raise DamagedFileError(archive.name, NOTE, "has plain values without names")
    values = {name: value for name, value in archive.not_pickled.items() if name not in PARTS}
    refused = []
    for name in names:
        if name in forms:
            try:
                values[name] = plain.decode(forms[name])
            except (plain.NotPlainError, RecursionError) as error:
                raise DamagedFileError(archive.name, NOTE, f"has a {name} that cannot be read: {error}") from error
        elif name in known:
            values[name] = known[name]
        elif name not in STATISTICS:
            refused.append(name)
    if refused:
        _refuse_pickled(archive, refused)
    return values


def _refuse_pickled(archive: Archive, names: list[str]) -> NoReturn:
    examples = {**EXAMPLES, "policy_class": POLICIES.get(archive.policy_module, EXAMPLES["policy_class"])}
    objects = ", ".join(f"{name!r}: {examples.get(name, '...')}" for name in names)
    or_env = ", or env for the spaces" if any(name.endswith("_space") for name in names) else ""
    raise PickledValueError(
        f"{archive.name} contains pickled values, which weights_only=True does not unpickle: {', '.join(names)}. "
        f"Pass your own values for them, such as custom_objects={{{objects}}}{or_env}"
    )
