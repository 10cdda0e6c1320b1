"""Which files a class can load, and the attributes that it takes from them."""

import json
from collections.abc import Collection

from stable_baselines3.common.save_util import json_to_data

from sb3_ppo_variants.errors import OtherClassError, PickledValueError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.archive import DATA, NOTE, Archive
from sb3_ppo_variants.saving.plain import Values
from sb3_ppo_variants.saving.state import EPISODES

# Attributes of SB3's PPO. None of SB3's other algorithms has all of them.
OF_PPO = ("n_steps", "batch_size", "n_epochs", "gae_lambda")
# Policies to pass instead of pickled ones, by the module of their classes. Those in MASKABLE take action masks.
MASKABLE = {
    "sb3_contrib.common.maskable.policies": "'MaskableMlpPolicy'",
    "sb3_ppo_variants.policies.masked_recurrent": "'MaskableMlpLstmPolicy'",
}
POLICIES = {**MASKABLE, "sb3_contrib.common.recurrent.policies": "'MlpLstmPolicy'"}
# Examples of other values to pass.
EXAMPLES = {"policy_class": "'MlpPolicy'", "policy_kwargs": "{'net_arch': [64, 64]}", "rollout_buffer_class": "None"}
EXAMPLES |= {"learning_rate": "3e-4", "clip_range": "0.2", "clip_range_vf": "0.2"}
# What a model does without: a reset makes the last observations, and learning_rate the schedule.
NOT_NEEDED = ("_last_obs", "_last_original_obs", "_last_episode_starts", "lr_schedule", "tensorboard_log", *EPISODES)


def get_plain_forms(attributes: Values) -> Values:
    """Get the plain forms of all attributes of a model that have one."""
    kept = {name: value for name, value in attributes.items() if not name.startswith("_last") and name != "lr_schedule"}
    return {name: plain.encode(value) for name, value in kept.items() if plain.is_plain(value)}


def check_class(archive: Archive, names: Collection[str], reads_sb3s_ppo: bool, converts: bool = False) -> None:
    """Check that a class can load a file, whose class must have the same objective.

    :param names: the names of the class and of its bases that have an objective
    :param reads_sb3s_ppo: whether the class can also load files of SB3's and sb3-contrib's PPO
    :param converts: whether to allow all classes of this package, and SB3's and sb3-contrib's PPO, with any objective
    :raises DamagedFileError: if the file does not say what it is
    :raises OtherClassError: if it is of another class
    """
    own, *_ = names
    how = f"set_parameters() reads its parameters, and {own}.from_ppo() also reads its hyperparameters"
    if NOTE in archive.members:
        classes = archive.note["classes"]
        if not converts and set(names).isdisjoint(classes):
            raise OtherClassError(archive.name, NOTE, f"says that this is a {classes[0]}, not a {own}; {how}")
        return
    missing = [name for name in OF_PPO if name not in archive.data]
    if missing:
        raise OtherClassError(archive.name, DATA, f"has no {', '.join(missing)}, so it is not a file of PPO")
    if not (converts or reads_sb3s_ppo):
        raise OtherClassError(archive.name, DATA, f"is of SB3 or sb3-contrib, not of {own}; {how}")


def read_attributes(
    archive: Archive, objects: Values, given: Collection[str], known: Collection[str], weights_only: bool
) -> Values:
    """Read the attributes in a file, from plain forms or else from pickles.

    :param objects: values that replace those in the file
    :param given: the names of attributes that are set anyway
    :param known: the names of the attributes that a new model has
    :param weights_only: whether to unpickle nothing
    :raises DamagedFileError: if one cannot be read
    :raises PickledValueError: with ``weights_only``, if the model needs values that are only pickled, naming them all
    """
    forms, values, refused = archive.note.get("plain", {}), Values(), []
    for name, value in archive.data.items():
        if name in objects:
            values[name] = objects[name]
        elif name in forms:
            try:
                values[name] = plain.decode(forms[name])
            except Exception as error:  # The form may be anything.
                raise archive.error(NOTE, f"has a form of {name} that cannot be read: {error!r}") from error
        elif name not in archive.pickled:
            values[name] = value
        elif not weights_only:
            values |= _unpickle(archive, name)
        elif name in known and name not in {*given, *NOT_NEEDED}:
            refused.append(name)
    if not refused:
        return values
    examples = {**EXAMPLES, "policy_class": POLICIES.get(archive.policy_module, EXAMPLES["policy_class"])}
    shown = ", ".join(f"{name!r}: {examples.get(name, '...')}" for name in refused)
    or_env = ", or env for the spaces" if any(name.endswith("_space") for name in refused) else ""
    raise PickledValueError(
        f"{archive.name} contains pickled values, which weights_only=True does not unpickle: {', '.join(refused)}. "
        f"Pass your own values for them, such as custom_objects={{{shown}}}{or_env}"
    )


def _unpickle(archive: Archive, name: str) -> Values:
    """Unpickle an attribute. As in SB3, one whose class has changed since is left out with a warning."""
    try:
        return json_to_data(json.dumps({name: archive.data[name]}))
    except Exception as error:  # The code in a pickle may raise anything.
        fault = f"cannot be unpickled: {error!r}; pass custom_objects={{{name!r}: ...}} to replace it"
        raise archive.error(name, fault) from error


def check_masks(archive: Archive, policy: str | type) -> None:
    """Check that a policy takes action masks if the saved one does, whose weights it could take without them.

    :raises DamagedFileError: if it does not
    """
    bases = policy.__mro__ if isinstance(policy, type) else ()
    if archive.policy_module in MASKABLE and MASKABLE.keys().isdisjoint(base.__module__ for base in bases):
        fault = f"is {getattr(policy, '__name__', policy)}, which ignores the action masks that the saved policy takes"
        raise archive.error("policy_class", f"{fault}; pass one such as {POLICIES[archive.policy_module]}")
