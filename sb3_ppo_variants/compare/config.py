"""Comparisons as YAML files: those of the package, in the folder ``presets``, and those that users write.

A file has these keys, of which all but ``settings`` may be missing::

    name: of the comparison (default: the name of the file)
    settings: [ppo_clip, "ppo_fixed_kl:kl_coef=1", sb3_ppo]
    envs: [CartPole-v1]
    seeds: 3
    conditions: {timesteps: 50000, normalize: true, parameters: {n_steps: 512}}

The ``conditions`` are fields of :class:`~sb3_ppo_variants.compare.settings.Conditions`. If they are a list, settings
are compared under each of them. Options of the command line replace what a file says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from sb3_ppo_variants.compare.options import DEFAULT_ALGORITHMS
from sb3_ppo_variants.compare.settings import Conditions
from sb3_ppo_variants.errors import ArgumentError

PRESETS = Path(__file__).parent / "presets"
ENTRIES = ("name", "settings", "envs", "seeds", "conditions")
# A file of hyperparameters is named on the command line.
CONDITIONS = {field.name for field in fields(Conditions)} - {"preset", "file"}


@dataclass(frozen=True)
class Config:
    """What is compared, as texts for :func:`~sb3_ppo_variants.compare.settings.read_setting`, and how."""

    settings: Sequence[str] = tuple(DEFAULT_ALGORITHMS)
    envs: Sequence[str] = ("CartPole-v1",)
    seeds: int = 3
    conditions: Sequence[Conditions] = (Conditions(),)


def list_presets() -> list[str]:
    """List the names of the package's comparisons."""
    return sorted(path.stem for path in PRESETS.glob("*.yml"))


def read_config(name: str) -> Config:
    """Read a comparison.

    :param name: of one of the package's comparisons, or the path of a YAML file
    :raises ArgumentError: if there is no such file, or it does not describe a comparison
    """
    path = PRESETS / f"{name}.yml" if name in list_presets() else Path(name)
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or "settings" not in found:
            raise ValueError(f"it has no settings; a comparison has {', '.join(ENTRIES)}")
        shared = found.get("conditions", {})
        listed = shared if isinstance(shared, list) else [shared]
        for part, known in ((found, set(ENTRIES)), *((each, CONDITIONS) for each in listed)):
            if unknown := sorted(part.keys() - known):
                raise ValueError(f"{unknown[0]} is none of {', '.join(sorted(known))}")
        for key in {"settings", "envs"} & found.keys():
            if not (isinstance(found[key], list) and found[key] and all(isinstance(text, str) for text in found[key])):
                raise ValueError(f"{key} must be a list of texts, not {found[key]!r}")
        own = {key: found[key] for key in ("settings", "envs", "seeds") if key in found}
        preset = str(found.get("name", path.stem))
        return Config(**own, conditions=[Conditions(preset, **each) for each in listed])
    except (OSError, UnicodeDecodeError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        names = ", ".join(list_presets())
        raise ArgumentError(f"--config {name} is neither {names} nor a YAML file of a comparison: {error}") from error
