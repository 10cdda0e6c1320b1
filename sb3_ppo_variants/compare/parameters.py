"""The hyperparameters that the settings of a comparison share, those that differ, and the command for the runs."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from sb3_ppo_variants.compare.markdown import escaped
from sb3_ppo_variants.compare.presets import PRESETS, Preset
from sb3_ppo_variants.compare.scores import Comparison

# Hyperparameters that are shown at once if all settings share them. A click shows the others.
FIRST = (
    "policy", "policy_kwargs", "n_envs", "n_steps", "batch_size", "n_epochs", "learning_rate", "gamma", "gae_lambda",
    "clip_range", "ent_coef", "vf_coef", "max_grad_norm", "normalize_advantage", "normalize", "env_wrapper", "updates",
)  # fmt: skip
# Shown for a hyperparameter that a setting does not have.
LACKING = "-"


def blocks(comparison: Comparison) -> list[str]:
    """Return tables of the hyperparameters, as blocks of Markdown."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for record in comparison.records:
        rows[record["label"], record["env"]] = {name: _text(v) for name, v in record["hyperparameters"].items()}
    names = sorted({name for row in rows.values() for name in row}, key=_order)
    values = {name: {row.get(name, LACKING) for row in rows.values()} for name in names}
    shared = {name: of.copy().pop() for name, of in values.items() if len(of) == 1}
    differing = [name for name in names if name not in shared]
    found = ["Shared by all settings in all environments:", _listed({n: shared[n] for n in FIRST if n in shared})]
    found += ["<details><summary>All shared values</summary>", _listed(shared), "</details>"]
    if differing:
        found += ["Different:", _differences(rows, differing)]
    return found


def _order(name: str) -> tuple[int, str]:
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)


def _text(value: object) -> str:
    return escaped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _listed(values: Mapping[str, str]) -> str:
    return pd.DataFrame(values.items(), columns=["hyperparameter", "value"]).to_markdown(
        index=False, disable_numparse=True
    )


def _differences(rows: Mapping[tuple[str, str], Mapping[str, str]], names: list[str]) -> str:
    """Return a table with a row for each setting, or for each of its environments if they differ."""
    by_label: dict[str, list[tuple[str, list[str]]]] = {}
    for (label, env), row in rows.items():
        by_label.setdefault(label, []).append((env, [row.get(name, LACKING) for name in names]))
    lines = []
    for label, found in by_label.items():
        alike = all(values == found[0][1] for _, values in found)
        text = escaped(label)
        lines += [[text, "all", *found[0][1]]] if alike else [[text, env, *values] for env, values in sorted(found)]
    frame = pd.DataFrame(lines, columns=["setting", "environment", *names])
    if (frame["environment"] == "all").all():
        frame = frame.drop(columns="environment")
    return frame.to_markdown(index=False, disable_numparse=True)


def command(comparison: Comparison) -> str | None:
    """Return the command that makes the runs, or ``None`` if there is none, as with a file of hyperparameters."""
    conditions = comparison.conditions
    if conditions["file"] is not None or any("#" in label for label in comparison.labels):
        return None
    name = conditions["preset"]
    preset = PRESETS.get(name or "")
    words = ["python", "-m", "sb3_ppo_variants", "compare"]
    words += ["--preset", name] if name else []
    if preset is None or not preset.studied:
        words += _options(conditions)
    elif not _studies(preset, conditions):
        return None
    if conditions["timesteps"] is not None:
        words += ["--timesteps", str(conditions["timesteps"])]
    labels = comparison.labels
    if preset is None or preset.labels(conditions.get("protocol")) != set(labels):
        words += ["--algos", *map(_setting, labels)]
    words += ["--envs", *comparison.envs]
    words += ["--seeds", str(1 + max(record["seed"] for record in comparison.records))]
    return shlex.join(words)


def _studies(preset: Preset, conditions: Mapping[str, Any]) -> bool:
    """Return whether a preset compares its settings under these conditions, with any number of steps."""
    return any(replace(each, timesteps=conditions["timesteps"]).description() == conditions for each in preset.studied)


def _options(conditions: Mapping[str, Any]) -> list[str]:
    """Return the conditions as command-line options."""
    words = []
    for name in ("protocol", "entry"):
        if conditions.get(name):
            words += [f"--{name}", conditions[name]]
    for name in ("normalize", "anneal"):
        if conditions[name] is not None:
            words.append(f"--{name}" if conditions[name] else f"--no-{name}")
    return [*words, *_parameters(conditions["parameters"].items())]


def _parameters(items: Iterable[tuple[str, object]]) -> list[str]:
    return [word for name, value in items for word in ("-p", f"{name}={value}")]


def _setting(label: str) -> str:
    """Return a setting in the format of the command line."""
    name, _, arguments = label.partition(" ")
    return f"{name}:{arguments}" if arguments else name
